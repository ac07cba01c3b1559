package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	nodev1 "k8s.io/api/node/v1"

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

// messages returns the messages of the settings that are not followed, without that of the
// RuntimeClass, which does not fit for nodes of every kind at once.
func messages(problems []Problem) string {
	_, others := splitMessages(problems)
	return others
}

// splitMessages returns the message of the RuntimeClass and the others.
func splitMessages(problems []Problem) (class, others string) {
	var all []string
	for _, p := range problems {
		switch {
		case !p.Unserved:
		case strings.HasPrefix(p.Message, "runtimeClassName"):
			class = p.Message
		default:
			all = append(all, p.Message)
		}
	}
	return class, strings.Join(all, "\n")
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

// NVIDIA's documentation of k3s and RKE2 has these variables.
func TestToolkitsVariablesForAHandlerAreFollowed(t *testing.T) {
	const nri, cdi, handler = "nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-daemonset-cdi", "nvidia-container-toolkit-daemonset-handler"
	const k3s = `{name: CONTAINERD_CONFIG, value: /var/lib/rancher/k3s/agent/etc/containerd/config.toml}, {name: CONTAINERD_SOCKET, value: /run/k3s/containerd/containerd.sock}, {name: CONTAINERD_RUNTIME_CLASS, value: nvidia}`
	for _, c := range []struct {
		name, spec string
		daemonset  string
		want       map[string]string // "-": not set
		handler    string            // of the RuntimeClass
	}{
		{"k3s, by default", `{toolkit: {env: [` + k3s + `, {name: CONTAINERD_SET_AS_DEFAULT, value: "true"}]}}`, nri,
			map[string]string{"RUNTIME_RESTART_MODE": "auto", "CONTAINERD_RUNTIME_CLASS": "nvidia", "CONTAINERD_SET_AS_DEFAULT": "true", "NVIDIA_RUNTIME_NAME": "-", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "-"}, "nvidia"},
		{"k3s, for pods of the class", `{toolkit: {env: [` + k3s + `, {name: CONTAINERD_SET_AS_DEFAULT, value: "false"}]}}`, handler,
			map[string]string{"CONTAINERD_SET_AS_DEFAULT": "false", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "-", "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true"}, "nvidia"},
		{"another name", `{toolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: gpus}]}}`, cdi,
			map[string]string{"CONTAINERD_RUNTIME_CLASS": "gpus", "NVIDIA_RUNTIME_NAME": "-"}, "gpus"},
		{"NRI leaves the runtime alone", `{cdi: {nriPluginEnabled: true}, toolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: nvidia}]}}`, nri,
			map[string]string{"RUNTIME_RESTART_MODE": "-", "CONTAINERD_RUNTIME_CLASS": "nvidia"}, "nvidia"},
		{"nothing", `{}`, handler, map[string]string{"NVIDIA_RUNTIME_NAME": "nvidia", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true"}, "nvidia"},
		{"a directory", `{toolkit: {env: [{name: TOOLKIT_INSTALL_DIR, value: /opt/nvidia}]}}`, nri, map[string]string{"TOOLKIT_INSTALL_DIR": "/opt/nvidia/gpuready"}, "nvidia"},
		{"an older name of it", `{toolkit: {env: [{name: ROOT, value: /opt/nvidia/toolkit}]}}`, nri, map[string]string{"TOOLKIT_INSTALL_DIR": "/opt/nvidia/gpuready", "ROOT": "-"}, "nvidia"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, problems := render(t, Input{Policy: policy(t, c.spec), Cluster: cluster, Injections: every})
			require.Empty(t, messages(problems))
			env := envOf(t, objects, c.daemonset)
			for name, want := range c.want {
				value, set := env[name]
				require.Equal(t, want != "-", set, name)
				require.True(t, !set || value == want, "%s=%s", name, value)
			}
			for _, o := range objects {
				if class, is := o.Object.(*nodev1.RuntimeClass); is {
					require.Equal(t, "nvidia", class.Name)
					require.Equal(t, c.handler, class.Handler)
				}
			}
		})
	}
	objects, _ := render(t, Input{Policy: policy(t, `{toolkit: {env: [{name: CONTAINERD_SET_AS_DEFAULT, value: "false"}]}}`), Cluster: cluster, Injections: every})
	require.Equal(t, "nvidia", envOf(t, objects, "nvidia-operator-validator-handler")["VALIDATOR_RUNTIME_CLASS"], "its pod needs what users' pods need")
	require.NotContains(t, envOf(t, objects, "nvidia-operator-validator"), "VALIDATOR_RUNTIME_CLASS")
}

func TestToolkitsUnfollowedVariablesAreReported(t *testing.T) {
	_, problems := render(t, Input{Policy: policy(t, `{toolkit: {env: [{name: CREATE_DEVICE_NODES, value: none}, {name: NO_DAEMON, value: "false"}, {name: NVIDIA_CONTAINER_RUNTIME_MODE, value: legacy}, {name: HTTP_PROXY, value: x}]}}`),
		Cluster: cluster, Injections: every})
	require.Equal(t, "toolkit.env CREATE_DEVICE_NODES: missing control device nodes are always created\n"+
		"toolkit.env NVIDIA_CONTAINER_RUNTIME_MODE: the settings of gpu-oci-runtime are in a file next to it, see docs/injection.md", messages(problems))
}

// The proofs of NVIDIA's validator are containers of their own, each with WITH_WORKLOAD.
func TestEachProofHasItsWorkload(t *testing.T) {
	const validator = "nvidia-operator-validator"
	for spec, want := range map[string]map[string]string{
		`{}`: {},
		`{validator: {plugin: {env: [{name: WITH_WORKLOAD, value: "false"}]}}}`:                                            {"PLUGIN_WITH_WORKLOAD": "false"},
		`{validator: {cuda: {env: [{name: WITH_WORKLOAD, value: "false"}]}}}`:                                              {"CUDA_WITH_WORKLOAD": "false"},
		`{validator: {env: [{name: WITH_WORKLOAD, value: "false"}], cuda: {env: [{name: WITH_WORKLOAD, value: "true"}]}}}`: {"WITH_WORKLOAD": "false", "CUDA_WITH_WORKLOAD": "true"},
		`{validator: {driver: {env: [{name: WITH_WORKLOAD, value: "false"}]}}}`:                                            {},
	} {
		objects, problems := render(t, Input{Policy: policy(t, spec), Cluster: cluster, Injections: every})
		require.Empty(t, messages(problems))
		env := envOf(t, objects, validator)
		for _, name := range []string{"WITH_WORKLOAD", "CUDA_WITH_WORKLOAD", "PLUGIN_WITH_WORKLOAD"} {
			value, set := env[name]
			require.Equal(t, want[name] != "", set, "%s: %s", spec, name)
			require.Equal(t, want[name], value)
		}
	}
	_, problems := render(t, Input{Policy: policy(t, `{validator: {driver: {env: [{name: DISABLE_DEV_CHAR_SYMLINK_CREATION, value: "true"}]}, toolkit: {env: [{name: WITH_WAIT, value: "true"}]}}}`), Cluster: cluster, Injections: every})
	require.Contains(t, messages(problems), "validator.driver.env DISABLE_DEV_CHAR_SYMLINK_CREATION: the validator makes no links")
	require.NotContains(t, messages(problems), "WITH_WAIT")
}
