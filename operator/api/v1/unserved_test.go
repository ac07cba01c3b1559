package v1_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

func TestEveryFieldIsServedOrKept(t *testing.T) {
	served, kept := schematest.Served(), v1.IgnoredFields()
	isKept := func(path string) bool {
		return slices.ContainsFunc(kept, func(k v1.IgnoredField) bool {
			return path == k.Field || strings.HasPrefix(path, k.Field+".")
		})
	}
	fields := load(t).Fields()
	for _, path := range fields {
		require.True(t, slices.Contains(served, path) != isKept(path),
			"spec.%s: say in schematest.Served that it is served, or in v1.IgnoredFields that it is not, and not both", path)
	}
	for _, path := range served {
		require.Contains(t, fields, path, "served")
	}
	for _, k := range kept {
		require.True(t, slices.ContainsFunc(fields, func(path string) bool {
			return path == k.Field || strings.HasPrefix(path, k.Field+".")
		}), "kept: %s is no field", k.Field)
		for _, w := range k.When {
			require.Contains(t, fields, w, "kept: %s", k.Field)
		}
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
		"service monitor": {`{dcgmExporter: {serviceMonitor: {enabled: true, interval: 15s}}}`, []string{"dcgmExporter.serviceMonitor"}},
		"image of gfd":    {`{gfd: {enabled: true, image: gpu-feature-discovery, version: v0.17.0}}`, []string{"gfd.image", "gfd.version"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := s.Admit(t.Context(), policy(c.spec))
			require.NoError(t, err)
			require.Equal(t, c.want, v1.Unserved(&p.Spec))
		})
	}
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
	require.Equal(t, []string{"gds", "spec.gdz (unknown)"}, p.Unserved())
}
