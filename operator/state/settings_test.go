package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpuready/gpuready/operator/fleet"
)

var every = []fleet.Injection{fleet.NRI, fleet.CDI, fleet.Annotations, fleet.Handler}

// envOf returns the environment of a DaemonSet's first container.
func envOf(t *testing.T, objects []Object, daemonset string) map[string]string {
	t.Helper()
	for _, o := range objects {
		if d, is := o.Object.(*appsv1.DaemonSet); is && d.Name == daemonset {
			env := map[string]string{}
			for _, e := range d.Spec.Template.Spec.Containers[0].Env {
				env[e.Name] = e.Value
			}
			return env
		}
	}
	t.Fatalf("there is no DaemonSet %s", daemonset)
	return nil
}

// messages returns the messages of the settings that are not followed.
func messages(problems []Problem) string {
	var all []string
	for _, p := range problems {
		if p.Reason == SettingUnserved {
			all = append(all, p.Message)
		}
	}
	return strings.Join(all, "\n")
}

// A policy has one list for all nodes, and the plugin chooses the way that its node serves.
func TestListedStrategiesHaveTheNodesOwnWay(t *testing.T) {
	const nri, cdi, annotations, handler = "nvidia-device-plugin-daemonset", "nvidia-device-plugin-daemonset-cdi", "nvidia-device-plugin-daemonset-annotations", "nvidia-device-plugin-daemonset-handler"
	for _, c := range []struct {
		spec string
		want map[string]string
		says []string // the injections that serve none of the list
	}{
		{`{}`, map[string]string{nri: "cdi-cri", cdi: "cdi-cri", annotations: "cdi-annotations", handler: "volume-mounts"}, nil},
		{`{devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: ""}]}}`, map[string]string{nri: "cdi-cri", handler: "volume-mounts"}, nil},
		{`{devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: "cdi-cri,cdi-annotations,volume-mounts"}]}}`,
			map[string]string{nri: "cdi-cri,cdi-annotations,volume-mounts", cdi: "cdi-cri,cdi-annotations,volume-mounts", annotations: "cdi-cri,cdi-annotations,volume-mounts", handler: "cdi-cri,cdi-annotations,volume-mounts"}, nil},
		{`{devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: volume-mounts}]}}`,
			map[string]string{nri: "volume-mounts,cdi-cri", cdi: "volume-mounts,cdi-cri", annotations: "volume-mounts,cdi-annotations", handler: "volume-mounts"}, []string{"nri", "cdi", "annotations"}},
		{`{devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: envvar}]}}`,
			map[string]string{nri: "envvar,cdi-cri", handler: "envvar,volume-mounts"}, []string{"nri", "cdi", "annotations"}},
		{`{devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: cdi-cri}]}}`,
			map[string]string{nri: "cdi-cri", annotations: "cdi-cri,cdi-annotations", handler: "cdi-cri,volume-mounts"}, []string{"annotations", "handler"}},
		{`{cdi: {enabled: false}, devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: "volume-mounts"}]}}`, map[string]string{nri: "volume-mounts", handler: "volume-mounts"}, nil},
		{`{toolkit: {enabled: false}, devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: envvar}]}}`, map[string]string{nri: "envvar", handler: "envvar"}, nil},
	} {
		objects, problems := render(t, Input{Policy: policy(t, c.spec), Cluster: cluster, Injections: every})
		for daemonset, want := range c.want {
			require.Equal(t, want, envOf(t, objects, daemonset)["DEVICE_LIST_STRATEGY"], "%s: %s", c.spec, daemonset)
		}
		said := messages(problems)
		for _, i := range every {
			with := "nodes with gpuready.io/injection=" + string(i) + " serve none of it"
			require.Equal(t, strings.Contains(strings.Join(c.says, " "), string(i)), strings.Contains(said, with), "%s: %s", c.spec, said)
		}
	}
}
