package v1_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// overridden returns a policy in which the conditions of an override hold.
func overridden(t *testing.T, o v1.Override) string {
	t.Helper()
	spec := map[string]any{}
	set := func(path string, value any) {
		at := spec
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			if at[name] == nil {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[names[len(names)-1]] = value
	}
	for _, condition := range o.When {
		path, value, _ := strings.Cut(condition, "=")
		if value != "" && !strings.HasSuffix(path, "!") {
			set(path, value == "true")
		}
	}
	text, err := yaml.Marshal(spec)
	require.NoError(t, err)
	return "\n  " + strings.ReplaceAll(string(text), "\n", "\n  ")
}

// What an override names has no effect while its conditions hold, and everything else has.
func TestOverriddenFieldsHaveNoEffect(t *testing.T) {
	s := load(t)
	for _, o := range v1.Overrides() {
		require.Regexp(t, `: [a-z]`, o.Why, "the reason is followed by what to do")
		require.Less(t, len(o.Why), 150, o.Why)
		t.Run(strings.Join(o.When, ","), func(t *testing.T) {
			without, err := s.Admit(t.Context(), policy(overridden(t, o)))
			require.NoError(t, err)
			want := sync.OnceValue(func() string { return effects(t, without) })
			for _, field := range s.Served() {
				name, below := strings.CutPrefix(field, o.Within+".")
				name, _, _ = strings.Cut(name, ".")
				if !below || field == "migManager.config.default" { // all-disabled is all that it may be
					continue
				}
				with, _, err := changed(t, s, without, field)
				if err != nil {
					continue // the API server names the field that it needs, or that excludes it
				}
				named := slices.ContainsFunc(fieldNames(v1.Unserved(&with.Spec)), func(fields string) bool {
					return slices.ContainsFunc(strings.Split(fields, ", "), func(name string) bool { return strings.HasPrefix(field+".", name+".") })
				})
				require.Empty(t, v1.Unserved(&without.Spec))
				switch have := effects(t, with); {
				case named:
					require.True(t, want() == have, "%s has an effect", field)
				case !slices.Contains(o.Unnamed, name) && !strings.HasSuffix(field, ".enabled") && !strings.HasSuffix(field, ".successThreshold"):
					require.False(t, want() == have, "%s has no effect and is not named", field)
				}
			}
		})
	}
}

// A line of the status has at most 300 bytes, and the reason must not be cut.
func TestALineNamesTheFirstOfManyFields(t *testing.T) {
	p, err := load(t).Admit(t.Context(), policy(`{driver: {simulated: {enabled: true}, version: "580", args: [a], env: [{name: A}], secretEnv: s, kernelModuleType: open, certConfig: {name: c},
	  repoConfig: {configMapName: c}, kernelModuleConfig: {name: c}, licensingConfig: {secretName: s}, virtualTopology: {config: c}}}`))
	require.NoError(t, err)
	require.Equal(t, []string{"driver.version, driver.args, driver.certConfig, driver.env, driver.kernelModuleConfig, driver.kernelModuleType and 4 more: " +
		"the simulated driver has no driver image, version or kernel modules: remove the fields, or set driver.simulated.enabled to false"}, v1.Unserved(&p.Spec))
}

// A policy with all values of NVIDIA's chart has one line for each setting, and none for what the
// chart renders in any case.
func TestValuesOfNVIDIAsChartAreNotNamedOneByOne(t *testing.T) {
	text, err := os.ReadFile("testdata/helm.yaml")
	require.NoError(t, err)
	var helm map[string]any
	require.NoError(t, yaml.Unmarshal(text, &helm))
	spec := helm["spec"].(map[string]any)
	spec["devicePlugin"].(map[string]any)["config"] = nil
	delete(spec["driver"].(map[string]any), "repoConfig")
	delete(spec["driver"].(map[string]any), "certConfig")
	lines := func() string {
		text, err := yaml.Marshal(helm)
		require.NoError(t, err)
		p, err := load(t).Admit(t.Context(), text)
		require.NoError(t, err)
		return fmt.Sprint(fieldNames(v1.Unserved(&p.Spec)))
	}
	before := lines()
	for _, operand := range []string{"driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "migManager"} {
		spec[operand].(map[string]any)["enabled"] = false
		require.Equal(t, before, lines(), operand)
	}
	spec["driver"].(map[string]any)["enabled"] = true
	spec["driver"].(map[string]any)["simulated"] = map[string]any{"enabled": true}
	require.Contains(t, lines(), " driver.image, driver.repository, driver.version, driver.licensingConfig, driver.startupProbe ")
}
