package v1_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Every other field is served: TestEveryServedFieldHasAnEffect.
func TestIgnoredFieldsAreFieldsWithAReasonAndAnAction(t *testing.T) {
	fields, seen := load(t).Fields(), map[string]bool{}
	for _, f := range v1.IgnoredFields() {
		require.False(t, seen[f.Field], "%s is there twice", f.Field)
		seen[f.Field] = true
		require.True(t, slices.ContainsFunc(fields, func(path string) bool {
			return path == f.Field || strings.HasPrefix(path, f.Field+".")
		}), "ignored: %s is no field", f.Field)
		for _, w := range append(slices.Clone(f.When), f.Without) {
			if w != "" {
				require.Contains(t, fields, w, "ignored: %s", f.Field)
			}
		}
		require.Regexp(t, `: [a-z]`, f.Why, "%s: the reason is followed by what to do", f.Field)
		require.Less(t, len(f.Field+": "+f.Why), 300, f.Field)
	}
}

func TestUnservedFieldsAreReported(t *testing.T) {
	s := load(t)
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"nothing":                            {`{}`, nil},
		"defaults":                           {`{operator: {}, cdi: {}, sandboxWorkloads: {}, migManager: {config: {}}}`, nil},
		"what is served":                     {`{driver: {version: "550.54.15"}, toolkit: {installDir: /opt}}`, nil},
		"switched off":                       {`{kataManager: {enabled: false, image: k8s-kata-manager}, gds: {enabled: false, image: nvidia-fs}, psp: {enabled: false}}`, nil},
		"another runtime":                    {`{operator: {defaultRuntime: containerd}}`, []string{"operator.defaultRuntime"}},
		"empty init container":               {`{operator: {initContainer: {}}}`, nil},
		"driver manager":                     {`{driver: {manager: {env: [{name: ENABLE_GPU_POD_EVICTION, value: "true"}]}}}`, []string{"driver.manager"}},
		"GPUDirect Storage":                  {`{gds: {enabled: true}}`, []string{"gds"}},
		"its parts without virtual machines": {`{vgpuManager: {enabled: true}, vfioManager: {enabled: true}}`, nil},
		"virtual machines": {`{sandboxWorkloads: {enabled: true}, vgpuManager: {enabled: true}, vfioManager: {enabled: false}, validator: {vfioPCI: {env: [{name: A}]}}}`,
			[]string{"sandboxWorkloads", "validator.vfioPCI", "vgpuManager"}},
		"key of a named ConfigMap": {`{devicePlugin: {config: {name: c, default: a100}}}`, nil},
		"key of no ConfigMap":      {`{devicePlugin: {config: {default: a100}}}`, []string{"devicePlugin.config.default"}},
		"thresholds of probes":     {`{driver: {startupProbe: {successThreshold: 1}, livenessProbe: {successThreshold: 2}}}`, []string{"driver.livenessProbe.successThreshold"}},
		"rights of our containers": {`{toolkit: {securityContext: {privileged: true}}, dcgm: {enabled: true, securityContext: {privileged: true}}, devicePlugin: {securityContext: {}}}`, []string{"toolkit.securityContext"}},
		"of early releases":        {`{operator: {deployGFD: true, validator: {image: v}}, gfd: {migStrategy: single}, toolkit: {repoConfig: {configMapName: c}}}`, []string{"gfd.migStrategy", "operator.deployGFD", "operator.validator", "toolkit.repoConfig"}},
		"image of gfd":             {`{gfd: {enabled: true, image: gpu-feature-discovery, version: v0.17.0}}`, []string{"gfd.image", "gfd.version"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := s.Admit(t.Context(), policy(c.spec))
			require.NoError(t, err)
			require.Equal(t, c.want, fieldNames(v1.Unserved(&p.Spec)))
		})
	}
}

// fieldNames returns the fields of lines of status.unserved.
func fieldNames(lines []string) (names []string) {
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ": ")
		names = append(names, name)
	}
	return names
}

func TestDroppedFieldsAreFoundInWhatWasApplied(t *testing.T) {
	for name, c := range map[string]struct {
		applied string
		want    []string
	}{
		"not by kubectl": {"", nil},
		"all are known":  {`{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": {"driver": {"version": "550"}}}`, nil},
		"two are not":    {`{"spec": {"driver": {"versions": "550"}, "dcgmexporter": {}}}`, []string{"spec.dcgmexporter", "spec.driver.versions"}},
		"a long one":     {`{"spec": {"` + strings.Repeat("é", 300) + `": 1}}`, []string{"spec." + strings.Repeat("é", 97)}},
		"no policy":      {`[`, []string{"annotation kubectl.kubernetes.io/last-applied-configuration: unexpected end of JSON input"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.ClusterPolicy{}
			if c.applied != "" {
				p.Annotations = map[string]string{v1.LastApplied: c.applied}
			}
			require.Equal(t, c.want, v1.Dropped(p))
		})
	}
}

func TestPolicyListsItsFieldsWithoutEffect(t *testing.T) {
	p, err := load(t).Admit(t.Context(), policy(`{gds: {enabled: true}}`))
	require.NoError(t, err)
	p.Annotations = map[string]string{v1.LastApplied: `{"spec": {"gds": {"enabled": true}, "gdz": {}}}`}
	require.Equal(t, []string{
		"gds: gpuready has no container for nvidia-fs: install nvidia-fs on the hosts, or use an image of the driver that contains it",
		"spec.gdz: the definition of policies has no such field: correct its name, or remove it",
	}, p.Unserved())
}
