package v1alpha1_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpuready/gpuready/operator/api/schema"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
)

func load(t *testing.T) *schematest.Schema {
	t.Helper()
	s, err := schema.LoadDriver()
	require.NoError(t, err)
	return &schematest.Schema{Schema: s}
}

// admit returns an NVIDIADriver with a spec in flow style, as the API server stores it.
func admit(t *testing.T, spec string) (*v1alpha1.NVIDIADriver, error) {
	t.Helper()
	return load(t).AdmitDriver(t.Context(), fmt.Appendf(nil, "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: gold}\nspec: %s\n", spec))
}

func TestDefaultsAreThoseOfNVIDIAsOperator(t *testing.T) {
	d, err := admit(t, `{upgradePolicy: {drain: {}, podDeletion: {}, waitForCompletion: {}}}`)
	require.NoError(t, err)
	require.False(t, d.Spec.Default)
	require.Equal(t, v1alpha1.TypeGPU, d.Spec.DriverType)
	require.Equal(t, "auto", d.Spec.KernelModuleType)
	require.Equal(t, "nvcr.io/nvidia/driver", d.Spec.Image)
	require.True(t, *d.Spec.UpgradePolicy.AutoUpgrade)
	require.Equal(t, 1, *d.Spec.UpgradePolicy.MaxParallelUpgrades)
	require.Equal(t, intstr.FromString("25%"), *d.Spec.UpgradePolicy.MaxUnavailable)
	var found []string
	var walk func(s *structural.Structural, path string)
	walk = func(s *structural.Structural, path string) {
		if s.Default.Object != nil {
			found = append(found, path)
		}
		for name, child := range s.Properties {
			walk(&child, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	spec := load(t).Structural.Properties["spec"]
	walk(&spec, "")
	require.ElementsMatch(t, []string{
		"default", "driverType", "image", "kernelModuleType",
		"upgradePolicy.autoUpgrade", "upgradePolicy.maxParallelUpgrades", "upgradePolicy.maxUnavailable",
		"upgradePolicy.drain.deleteEmptyDir", "upgradePolicy.drain.enable", "upgradePolicy.drain.force", "upgradePolicy.drain.timeoutSeconds",
		"upgradePolicy.podDeletion.deleteEmptyDir", "upgradePolicy.podDeletion.force", "upgradePolicy.podDeletion.timeoutSeconds",
		"upgradePolicy.waitForCompletion.timeoutSeconds",
	}, found)
}

func TestNVIDIADriversOfNVIDIAsDocumentationAreAccepted(t *testing.T) {
	for _, spec := range []string{
		`{}`,
		`{driverType: gpu, env: [], image: driver, imagePullPolicy: IfNotPresent, imagePullSecrets: [], manager: {}, nodeSelector: {driver.config: gold}, priorityClassName: system-node-critical,
		  rdma: {enabled: false, useHostMofed: false}, gds: {enabled: false}, repository: nvcr.io/nvidia, tolerations: [{key: a, operator: Exists}],
		  startupProbe: {failureThreshold: 120, initialDelaySeconds: 60, periodSeconds: 10, timeoutSeconds: 60}, usePrecompiled: false, version: 580.95.05}`,
		`{default: true, repository: nvcr.io/nvidia, image: driver, version: "535", usePrecompiled: true}`,
		`{nodeSelector: {a: b}, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}`,
		`{driverType: vgpu, licensingConfig: {name: l, secretName: s, nlsEnabled: true}, virtualTopologyConfig: {name: t}, gdrcopy: {enabled: true, usePrecompiled: true, repository: r, image: i, version: v}}`,
		`{repoConfig: {name: r}, certConfig: {name: c}, kernelModuleConfig: {name: k}, secretEnv: s, hostNetwork: true, podSecurityContext: {fsGroup: 1}, resources: {limits: {cpu: 1}}}`,
		`{simulated: {enabled: true}, prebuild: {repository: r.example/d}, moduleSigning: {secret: s}}`,
	} {
		_, err := admit(t, spec)
		require.NoError(t, err, spec)
	}
}

func TestInvalidNVIDIADriversAreRefusedWithTheReason(t *testing.T) {
	for spec, reason := range map[string]string{
		`{default: true, nodeSelector: {a: b}}`:              "a default NVIDIADriver has no nodeSelector",
		`{driverType: host}`:                                 `supported values: "gpu", "vgpu", "vgpu-host-manager"`,
		`{versions: "550"}`:                                  `unknown field ["spec.versions"]`,
		`{usePrecompiled: true, simulated: {enabled: true}}`: "simulated and usePrecompiled exclude each other",
		`{precompiledFallback: DriverToolkit}`:               "precompiledFallback is for usePrecompiled",
		`{upgradePolicy: {maxUnavailable: most}}`:            "maxUnavailable is a number of nodes (2) or a percentage",
		`{image: "driver container"}`:                        "image is an image's name",
		`{upgradePolicy: {drain: {podSelector: "a=b=c"}}}`:   "podSelector is a label selector",
		`{startupProbe: {timeoutSeconds: 0}}`:                "should be greater than or equal to 1",
	} {
		_, err := admit(t, spec)
		require.ErrorContains(t, err, reason, spec)
	}
}

func TestFieldsThatNVIDIAHasFixedCannotBeChanged(t *testing.T) {
	spec := load(t).Structural.Properties["spec"]
	for _, field := range []string{"driverType", "usePrecompiled"} {
		rules := spec.Properties[field].XValidations
		require.Len(t, rules, 1, field)
		require.Equal(t, "self == oldSelf", rules[0].Rule, field)
	}
}

func TestPolicySpecHasTheDriver(t *testing.T) {
	policy := &v1.ClusterPolicySpec{}
	policy.Driver.Version = "550.54.15"
	policy.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	policy.Daemonsets.PriorityClassName = "high"
	d, err := admit(t, `{version: 580.95.05, repoConfig: {name: r}, certConfig: {name: c}, licensingConfig: {secretName: s}, virtualTopologyConfig: {name: t}, kernelModuleConfig: {name: k}, labels: {a: b}}`)
	require.NoError(t, err)
	spec := d.PolicySpec(policy)
	require.Equal(t, "high", spec.Daemonsets.PriorityClassName)
	require.Equal(t, "nvcr.io/nvidia/driver:580.95.05", spec.Driver.Ref(v1.ImageSpec{}))
	require.Equal(t, []string{"r", "c", "s", "t", "k"}, []string{spec.Driver.RepoConfig.ConfigMapName, spec.Driver.CertConfig.Name, spec.Driver.LicensingConfig.SecretName, spec.Driver.VirtualTopology.Config, spec.Driver.KernelModuleConfig.Name})
	require.Equal(t, map[string]string{"a": "b"}, spec.Driver.Labels)
	require.Same(t, policy.Driver.UpgradePolicy, spec.Driver.UpgradePolicy, "the policy's by default")
	require.Equal(t, "550.54.15", policy.Driver.Version)
	d, err = admit(t, `{upgradePolicy: {maxParallelUpgrades: 3}}`)
	require.NoError(t, err)
	upgrades := d.PolicySpec(policy).Driver.UpgradePolicy
	require.True(t, upgrades.AutoUpgrade)
	require.Equal(t, 3, upgrades.Parallel())
}

func TestImageOfAnNVIDIADriver(t *testing.T) {
	const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for spec, want := range map[string]string{
		`{}`:                              "nvcr.io/nvidia/driver:1",
		`{repository: r.example/nvidia}`:  "r.example/nvidia/driver:1",
		`{image: r.example/a/driver}`:     "r.example/a/driver:1",
		`{image: "r.example/a/driver:2"}`: "r.example/a/driver:2",
		`{image: driver, repository: r, version: "` + digest + `"}`: "r/driver@" + digest,
		`{image: "r.example:5000/driver", version: "3"}`:            "r.example:5000/driver:3",
	} {
		d, err := admit(t, spec)
		require.NoError(t, err)
		require.Equal(t, want, d.PolicySpec(&v1.ClusterPolicySpec{}).Driver.Ref(v1.ImageSpec{Repository: "nvcr.io/nvidia", Image: "driver", Version: "1"}), spec)
	}
}

func TestFieldsWithoutEffectAreReported(t *testing.T) {
	for spec, want := range map[string][]string{
		`{}`: nil,
		`{gds: {enabled: false, image: g}, startupProbe: {successThreshold: 1}}`:                                                 nil,
		`{gds: {enabled: true}, gdrcopy: {enabled: true}, manager: {image: m}, useOpenKernelModules: true}`:                      {"gdrcopy", "gds", "manager", "useOpenKernelModules"},
		`{nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1}]}, livenessProbe: {successThreshold: 2}}`: {"livenessProbe.successThreshold", "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"},
		`{simulated: {enabled: true, profile: dgx-2}, nodeSelector: {a: b}, labels: {a: b}, upgradePolicy: {maxUnavailable: 2}}`: nil,
		`{simulated: {enabled: true}, version: 580.95.05, image: driver, env: [{name: A}], manager: {image: m}}`:                 {"image, version, env", "manager"},
		`{simulated: {profile: dgx-2}, upgradePolicy: {drain: {force: true}}, rdma: {useHostMofed: true}}`:                       {"rdma.useHostMofed", "simulated.profile", "upgradePolicy.drain.force"},
		`{upgradePolicy: {autoUpgrade: false, maxParallelUpgrades: 1, maxUnavailable: 3, drain: {}}}`:                            {"upgradePolicy.maxUnavailable"},
	} {
		d, err := admit(t, spec)
		require.NoError(t, err)
		var fields []string
		for _, line := range d.Unserved() {
			field, why, _ := strings.Cut(line, ": ")
			require.NotEmpty(t, why)
			fields = append(fields, field)
		}
		require.Equal(t, want, fields, spec)
	}
}

func TestOverridesNameFields(t *testing.T) {
	spec := load(t).Structural.Properties["spec"]
	for _, o := range v1alpha1.Overrides() {
		require.Regexp(t, `: [a-z]`, o.Why)
		part := spec
		if o.Within != "" {
			part = spec.Properties[o.Within[:strings.Index(o.Within+".", ".")]]
		}
		for _, name := range o.Except {
			require.Contains(t, part.Properties, name)
		}
	}
	d, err := admit(t, `{simulated: {enabled: true}}`)
	require.NoError(t, err)
	empty := d.PolicySpec(&v1.ClusterPolicySpec{}).Driver
	for name, value := range map[string]string{"version": `"1"`, "secretEnv": "s", "kernelModuleConfig": "{name: c}", "prebuild": "{repository: r.example/d}"} {
		d, err := admit(t, fmt.Sprintf(`{simulated: {enabled: true}, %s: %s}`, name, value))
		require.NoError(t, err)
		require.NotEqual(t, empty, d.PolicySpec(&v1.ClusterPolicySpec{}).Driver, name)
		require.Len(t, d.Unserved(), 1, name)
	}
}

func TestSchemeHasNVIDIADrivers(t *testing.T) {
	s := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(s))
	for _, kind := range []string{v1alpha1.Kind, v1alpha1.Kind + "List"} {
		_, err := s.New(v1alpha1.GroupVersion().WithKind(kind))
		require.NoError(t, err)
	}
}

func TestEveryFieldOfTheRecordedReleasesIsKnown(t *testing.T) {
	s := load(t)
	for path := range recorded(t) {
		require.True(t, s.HasField(path), "NVIDIA's schema has spec.%s", path)
	}
}

// recorded returns the fields of NVIDIA's schema, each with the releases that are known to have it.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/fields.txt")
	require.NoError(t, err)
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if path, releases, ok := strings.Cut(strings.TrimSpace(line), " "); ok && path != "#" {
			fields[path] = releases
		}
	}
	return fields
}
