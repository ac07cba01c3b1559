package v1_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"pgregory.net/rapid"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// effects returns everything that follows from a policy, as text.
func effects(t *testing.T, p *v1.ClusterPolicy) string {
	facts := driver.Facts{
		OpenShift: true,
		Images:    v1.ImageSpec{Repository: "gpuready", Version: "1.0"},
		NVIDIA:    v1.ImageSpec{Repository: "nvcr.io/nvidia", Image: "driver", Version: "580.105.08"},
		Toolkit:   func(rhcos string) (string, bool) { return "toolkit@" + rhcos, true },
		Registry:  func(string) driver.Presence { return driver.Presence{State: driver.Absent} },
	}
	in := state.Input{
		Policy:     p,
		Cluster:    state.Cluster{Namespace: "gpu-operator", ImageRepository: "gpuready", ImageVersion: "1.0", ServiceMonitors: true, DRA: true},
		Injections: []fleet.Injection{fleet.NRI, fleet.Handler},
		Keys:       map[string][]string{},
	}
	for _, pool := range []fleet.Pool{
		{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-91-generic"},
		{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", RHCOS: "412.86.202303241612-0", CoreOS: true},
	} {
		if !p.Spec.Driver.UsesNVIDIADrivers() { // TestPolicySpecHasTheDriver, otherwise
			in.Drivers = append(in.Drivers, driver.Choose(&p.Spec, pool, "node-a", facts))
		}
	}
	for _, name := range state.ConfigMaps(&p.Spec.Driver) {
		in.Keys[name] = []string{"a.conf"}
	}
	objects, _, err := state.Render(in)
	require.NoError(t, err)
	text, err := json.Marshal(objects)
	require.NoError(t, err)
	roll, err := upgrade.ParsePolicy(p.Spec.Driver.UpgradePolicy)
	require.NoError(t, err)
	if !roll.Auto || !p.Spec.Driver.IsEnabled() {
		roll = upgrade.Policy{} // the limits are of automatic upgrades
	}
	limit := p.Spec.DRADriver.Unavailable()
	serving := fmt.Sprint(p.Spec.DRADriver.ServesDRA(), limit.String())
	return fmt.Sprintf("%s\n%s\n%v\n%+v %v\n%v %v", text, serving, in.Drivers, roll, roll.Drain, progress.States(&p.Spec), p.Spec.Driver.UsesNVIDIADrivers())
}

// Any label selector and number that the schema accepts can be parsed.
func TestAnyUpgradePolicyCanBeRead(t *testing.T) {
	s := load(t)
	rapid.Check(t, func(t *rapid.T) {
		_, err := upgrade.ParsePolicy(s.Random(t).Spec.Driver.UpgradePolicy)
		require.NoError(t, err)
	})
}

// context returns the settings that a field needs to matter, by the field's prefix.
func context(field string) string {
	const images = `dcgm: {enabled: true, repository: r, image: i, version: v}, dcgmExporter: {enabled: true, repository: r, image: i, version: v}, migManager: {enabled: true, repository: r, image: i, version: v}`
	for _, c := range []struct{ field, spec string }{
		{"driver.simulated.enabled", `{}`},
		{"driver.simulated.", `{driver: {simulated: {enabled: true}}}`},
		{"driver.precompiledFallback", `{driver: {usePrecompiled: true, repository: r, image: i, version: v}}`},
		{"driver.usePrecompiled", `{driver: {usePrecompiled: false, repository: r, image: i, version: v}}`},
		{"driver.repoConfig.dest", `{driver: {repository: r, image: i, version: v, repoConfig: {configMapName: c}}}`},
		{"dcgmExporter.serviceMonitor.enabled", `{dcgmExporter: {enabled: true}}`},
		{"dcgmExporter.serviceMonitor", `{dcgmExporter: {enabled: true, serviceMonitor: {enabled: true}}}`},
		{"driver.licensingConfig.nls", `{driver: {repository: r, image: i, version: v, licensingConfig: {secretName: s}}}`},
		{"driver.rdma.use", `{driver: {repository: r, image: i, version: v, rdma: {enabled: true}}}`},
		{"driver.upgradePolicy.drain", `{driver: {upgradePolicy: {autoUpgrade: true, drain: {enable: true}}}}`},
		{"driver.upgradePolicy", `{driver: {upgradePolicy: {autoUpgrade: true, waitForCompletion: {podSelector: c=d}}}}`},
		{"driver.prebuild.repository", `{driver: {repository: gpuready, image: driver, version: 580.95.05}}`},
		{"driver.prebuild", `{driver: {repository: gpuready, image: driver, version: 580.95.05, prebuild: {repository: registry.example/driver}}}`},
		{"driver.moduleSigning", `{driver: {repository: gpuready, image: driver}}`},
		{"driver", `{driver: {repository: r, image: i, version: v}}`},
		{"operator.use_ocp_driver_toolkit", `{driver: {repository: r, image: i, version: v}}`},
		{"devicePlugin", `{devicePlugin: {config: {name: c}}}`},
		{"draDriver.enabled", `{}`},
		{"draDriver", `{draDriver: {enabled: true}}`},
		{"dcgmExporter.hpcJobMapping.dir", `{dcgmExporter: {enabled: true, repository: r, image: i, version: v, hpcJobMapping: {enabled: true}}}`},
		{"node.startupTaint.settle", `{node: {startupTaint: {manage: true}}}`},
	} {
		if strings.HasPrefix(field, c.field) {
			return c.spec
		}
	}
	return `{` + images + `}`
}

// other returns another value for a field than its own.
func other(s *schema.Structural, field string, value any) any {
	name := field[strings.LastIndex(field, ".")+1:]
	special := map[string]any{
		"installDir": "/other", "rootFS": "/other", "driverInstallDir": "/other", "root": "/other", "directory": "/other", "updateStrategy": "OnDelete",
		"driver.prebuild.repository": "registry.example/other", "draDriver.serve": "dra",
		"settle": "5m", "podSelector": "a=b", "maxUnavailable": int64(3), "precompiledFallback": v1.FallbackDriverToolkit,
		"destinationDir": "/other", "kubeletRootDir": "/other", "podLabelAllowlistRegex": []any{"^other$"}, "interval": "7s", "scrapeTimeout": "7s",
		"affinity":           map[string]any{"podAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{"topologyKey": "other"}}}},
		"podSecurityContext": map[string]any{"fsGroup": int64(7)}, "securityContext": map[string]any{"runAsUser": int64(7)},
		"relabelings": []any{map[string]any{"targetLabel": "other"}},
		"limits":      map[string]any{"cpu": int64(3)}, "requests": map[string]any{"cpu": "3m"},
		"args": []any{"--other"}, "env": []any{map[string]any{"name": "OTHER", "value": "x"}},
		"imagePullSecrets": []any{"other"}, "tolerations": []any{map[string]any{"key": "other", "operator": "Exists"}},
	}
	switch {
	case special[field] != nil:
		return special[field]
	case special[name] != nil:
		return special[name]
	case s.Type == "boolean":
		return value == false || value == nil && !slices.Contains([]string{"driver.enabled", "toolkit.enabled", "devicePlugin.enabled", "gfd.enabled", "operator.use_ocp_driver_toolkit"}, field)
	case s.Type == "integer":
		return int64(7)
	case s.Type == "object":
		return map[string]any{"other": "x"}
	case s.ValueValidation != nil && len(s.ValueValidation.Enum) > 0:
		for _, e := range s.ValueValidation.Enum {
			if e.Object != "" && e.Object != value && e.Object != "IfNotPresent" && e.Object != "ClusterIP" && e.Object != "all-disabled" {
				return e.Object
			}
		}
		return ""
	}
	return "other"
}

// changed returns a policy with another value of a field, and the value, or the refusal.
func changed(t *testing.T, s *schematest.Schema, p *v1.ClusterPolicy, field string) (*v1.ClusterPolicy, any, error) {
	t.Helper()
	text, err := json.Marshal(p.Spec)
	require.NoError(t, err)
	var spec map[string]any
	require.NoError(t, json.Unmarshal(text, &spec))
	property, object := s.Structural.Properties["spec"], spec
	path := strings.Split(field, ".")
	for i, name := range path {
		property = property.Properties[name]
		if i == len(path)-1 {
			object[name] = other(&property, field, object[name])
		} else {
			if object[name] == nil {
				object[name] = map[string]any{}
			}
			object = object[name].(map[string]any)
		}
	}
	text, err = json.Marshal(spec)
	require.NoError(t, err)
	with, err := s.Admit(t.Context(), policy(string(text)))
	return with, object[path[len(path)-1]], err
}

func TestEveryServedFieldHasAnEffect(t *testing.T) {
	s, before := load(t), map[string]string{}
	for _, field := range s.Served() {
		if strings.HasSuffix(field, "Probe.successThreshold") && !strings.HasPrefix(field, "driver.readiness") {
			continue // 1 is all that it may be
		}
		if field == "migManager.config.default" {
			continue // all-disabled is all that it may be
		}
		t.Run(field, func(t *testing.T) {
			without, err := s.Admit(t.Context(), policy(context(field)))
			require.NoError(t, err)
			text, err := json.Marshal(without.Spec)
			require.NoError(t, err)
			if before[context(field)] == "" {
				// Admitted again, so that each part of the policy has its defaults, as below.
				without, err = s.Admit(t.Context(), policy(string(text)))
				require.NoError(t, err)
				before[context(field)] = effects(t, without)
			}
			with, value, err := changed(t, s, without, field)
			require.NoError(t, err)
			require.NotEqual(t, before[context(field)], effects(t, with), "it has no effect, and is to be in v1.IgnoredFields with the reason: %v", value)
		})
	}
}
