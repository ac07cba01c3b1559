package v1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

// policy returns a policy in YAML with a spec in flow style.
func policy(spec string) []byte {
	return fmt.Appendf(nil, "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: gpu-cluster-policy}\nspec: %s\n", spec)
}

var loadOnce = sync.OnceValues(schematest.Load)

func load(t *testing.T) *schematest.Schema {
	t.Helper()
	s, err := loadOnce()
	require.NoError(t, err)
	return s
}

func TestPoliciesForNVIDIAsOperatorAreAccepted(t *testing.T) {
	s := load(t)
	for name, unserved := range map[string][]string{
		"openshift.yaml":   {"nodeStatusExporter", "operator.defaultRuntime"},
		"helm.yaml":        {"dcgm.hostPort", "driver.manager", "gfd.image", "gfd.repository", "gfd.version", "operator.defaultRuntime", "operator.initContainer"},
		"precompiled.json": {"operator.defaultRuntime"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", name))
			require.NoError(t, err)
			p, err := s.Admit(t.Context(), text)
			require.NoError(t, err)
			require.Equal(t, unserved, fieldNames(v1.Unserved(&p.Spec)))
		})
	}
}

// The patch is the one in NVIDIA's documentation, "Disabling Support for Precompiled Driver Containers":
// https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/gpu-operator-with-precompiled-drivers.html
func TestPrecompiledIsSwitchedOffByOnePatch(t *testing.T) {
	on, err := os.ReadFile("testdata/precompiled.json")
	require.NoError(t, err)
	patch, err := jsonpatch.DecodePatch([]byte(`[{"op": "replace", "path": "/spec/driver/usePrecompiled", "value":false},` +
		`{"op": "remove", "path": "/spec/driver/version"},{"op": "remove", "path": "/spec/driver/image"},{"op": "remove", "path": "/spec/driver/repository"}]`))
	require.NoError(t, err)
	off, err := patch.Apply(on)
	require.NoError(t, err)
	p, err := load(t).Admit(t.Context(), off)
	require.NoError(t, err)
	require.False(t, p.Spec.Driver.Precompiled())
	require.Empty(t, p.Spec.Driver.ImageSpec)
}

func TestDefaults(t *testing.T) {
	p, err := load(t).Admit(t.Context(), policy(`{operator: {}, daemonsets: {}, driver: {upgradePolicy: {drain: {}, podDeletion: {}}}, toolkit: {}, node: {startupTaint: {}}, cdi: {}}`))
	require.NoError(t, err)
	spec := &p.Spec
	require.Equal(t, "nvidia", spec.Operator.RuntimeClass)
	require.True(t, spec.Operator.DriverToolkit())
	require.Equal(t, "RollingUpdate", spec.Daemonsets.UpdateStrategy)
	unavailable, ok := spec.Daemonsets.RollingUpdate.Unavailable()
	require.True(t, ok)
	require.Equal(t, intstr.FromInt32(1), unavailable)
	require.Equal(t, "auto", spec.Driver.KernelModuleType)
	require.Equal(t, v1.FallbackNone, spec.Driver.Fallback())
	require.Equal(t, v1.HostPath("/usr/local/nvidia"), spec.Toolkit.InstallDir)
	require.Equal(t, time.Minute, spec.Node.StartupTaint.SettleTime())
	require.False(t, spec.Node.StartupTaint.Managed())
	require.True(t, spec.CDI.IsEnabled())
	upgrade := spec.Driver.UpgradePolicy
	require.False(t, upgrade.AutoUpgrade)
	require.Equal(t, 1, upgrade.Parallel())
	require.Equal(t, intstr.FromString("25%"), upgrade.Unavailable())
	require.Equal(t, 300, upgrade.DrainSpec.Timeout())
	require.Equal(t, 300, upgrade.PodDeletion.Timeout())
	require.True(t, spec.Driver.IsEnabled() && spec.Toolkit.IsEnabled() && spec.DevicePlugin.IsEnabled() && spec.MIGManager.IsEnabled())
	require.False(t, spec.Driver.IsSimulated() || spec.KataManager.IsEnabled() || spec.Driver.GPUDirectRDMA.IsEnabled())
}

func TestEmptySpecIsAccepted(t *testing.T) {
	s := load(t)
	_, err := s.Admit(t.Context(), policy("{}"))
	require.NoError(t, err)
	_, err = s.Admit(t.Context(), []byte("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\n"))
	require.NoError(t, err)
}

func TestImageReferenceFromItsParts(t *testing.T) {
	ours := v1.ImageSpec{Repository: "gpuready", Image: "toolkit", Version: "1.0"}
	digest := "sha256:9b9f1d2d0d2a8d3b1c5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c"
	for want, spec := range map[string]v1.ImageSpec{
		"gpuready/toolkit:1.0":         {},
		"mirror:5000/a/toolkit:1.0":    {Repository: "mirror:5000/a/"},
		"gpuready/toolkit:2.0":         {Version: "2.0"},
		"gpuready/toolkit@" + digest:   {Version: digest},
		"gpuready/tool:1.0":            {Image: "tool"},
		"quay.io/x/toolkit:1":          {Image: "quay.io/x/toolkit:1"},
		"nvcr.io/nvidia/k8s/tool:v1.2": {Repository: "nvcr.io/nvidia/k8s", Image: "tool", Version: "v1.2"},
	} {
		require.Equal(t, want, spec.Ref(ours))
	}
	require.Empty(t, v1.ImageSpec{Version: "1"}.Ref(v1.ImageSpec{}))
	require.Equal(t, "a", v1.ImageSpec{Image: "a"}.Ref(v1.ImageSpec{}))
	require.Equal(t, corev1.PullIfNotPresent, ours.PullPolicy())
	require.Equal(t, corev1.PullAlways, v1.ImageSpec{ImagePullPolicy: "Always"}.PullPolicy())
}

func TestResourcesAreThoseOfContainers(t *testing.T) {
	p, err := load(t).Admit(t.Context(), policy(`{toolkit: {resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 100m, memory: 1e8}}}}`))
	require.NoError(t, err)
	r, err := p.DeepCopy().Spec.Toolkit.Resources.Kubernetes()
	require.NoError(t, err)
	require.Equal(t, "2", r.Limits.Cpu().String())
	require.Equal(t, "1Gi", r.Limits.Memory().String())
	require.Equal(t, "100m", r.Requests.Cpu().String())
	require.Equal(t, int64(1e8), r.Requests.Memory().Value())
	none, err := (*v1.ResourceRequirements)(nil).Kubernetes()
	require.NoError(t, err)
	require.Empty(t, none)
	p, err = load(t).Admit(t.Context(), policy(`{toolkit: {resources: {limits: {cpu: 1e.5, memory: 1Gi}}}}`))
	require.NoError(t, err)
	_, err = p.Spec.Toolkit.Resources.Kubernetes()
	require.EqualError(t, err, `an amount of "1e.5" of cpu`)
	began := time.Now()
	p, err = load(t).Admit(t.Context(), policy(`{toolkit: {resources: {limits: {cpu: "1e444444444"}}}}`))
	require.NoError(t, err)
	_, err = p.Spec.Toolkit.Resources.Kubernetes()
	require.EqualError(t, err, `an amount of "1e444444444" of cpu`)
	require.Less(t, time.Since(began), time.Minute, "Kubernetes' parser would compute for minutes")
}

func TestSchemeHasPolicies(t *testing.T) {
	s := runtime.NewScheme()
	require.NoError(t, v1.AddToScheme(s))
	for _, kind := range []string{v1.Kind, v1.Kind + "List"} {
		_, err := s.New(v1.GroupVersion().WithKind(kind))
		require.NoError(t, err)
	}
}
