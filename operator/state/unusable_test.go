package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
)

// renderPod renders an operand of a policy, and returns its pods' template and all problems'
// messages.
func renderPod(t *testing.T, s progress.State, spec string, in ...fleet.Injection) (*corev1.PodTemplateSpec, []string) {
	t.Helper()
	if len(in) == 0 {
		in = []fleet.Injection{fleet.NRI}
	}
	objects, problems := render(t, Input{Policy: policy(t, spec), Cluster: cluster, Drivers: []driver.Choice{ubuntu()}, Injections: in, Keys: map[string][]string{"repos": {"cuda.list"}}})
	var messages []string
	for _, p := range problems {
		messages = append(messages, p.Message)
	}
	for _, o := range objects {
		if d, is := o.Object.(*appsv1.DaemonSet); is && o.State == s {
			return &d.Spec.Template, messages
		}
	}
	return nil, messages
}

// Kubernetes would refuse the whole DaemonSet for any of these values.
func TestValuesThatKubernetesRefusesAreLeftOutAndReported(t *testing.T) {
	for spec, message := range map[string]string{
		`{toolkit: {resources: {limits: {cpu: -1}}}}`:                                                                  `spec.toolkit.resources: a negative amount of cpu is not valid in Kubernetes, and the defaults are used`,
		`{toolkit: {resources: {limits: {memory: "1e.5"}}}}`:                                                           `spec.toolkit.resources: an amount of "1e.5" of memory is not valid in Kubernetes, and the defaults are used`,
		`{toolkit: {imagePullSecrets: [Registry]}}`:                                                                    `spec.*.imagePullSecrets: "Registry" is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: "A=B"}]}}`:                                                                            `spec.toolkit.env: "A=B" is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: x}}}]}}`:                               `spec.toolkit.env: A: it has a value and valueFrom is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.tolerations}}}]}}`:                          `spec.toolkit.env: A: "spec.tolerations" is no field of a pod that a variable can have is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: "a b"}}}]}}`:                              `spec.toolkit.env: A: key "a b" of Secret "s" cannot exist is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: "1e444444444"}}}]}}`: `spec.toolkit.env: A: valueFrom: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' is not valid in Kubernetes, and is left out`,
		`{toolkit: {env: [{name: A, valueFrom: {podRef: {}}}]}}`:                                                       `spec.toolkit.env: A: valueFrom: unknown field "podRef" is not valid in Kubernetes, and is left out`,
		`{toolkit: {tolerations: [{key: a, operator: In}]}}`:                                                           `spec.toolkit.tolerations[0]: {"key":"a","operator":"In"} is not valid in Kubernetes, and is left out`,
		`{toolkit: {priorityClassName: System_Critical}}`:                                                              `spec.toolkit.priorityClassName: "System_Critical" is not valid in Kubernetes, and "system-node-critical" is used`,
		`{toolkit: {nodeSelector: {"a b": c}}}`:                                                                        `spec.toolkit.nodeSelector: "a b": "c" is not valid in Kubernetes, and is left out`,
		`{toolkit: {nodeSelector: {kubernetes.io/os: windows}}}`:                                                       `spec.toolkit.nodeSelector: kubernetes.io/os=windows, which the operator itself requires to be "linux", is not valid in Kubernetes, and is left out`,
		`{toolkit: {affinity: {nodeAffinity: {required: {}}}}}`:                                                        `spec.toolkit.affinity: unknown field "nodeAffinity.required" is not valid in Kubernetes, and is left out`,
		`{toolkit: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{}]}}}}`:                 `spec.toolkit.affinity: topologyKey "" is not valid in Kubernetes, and is left out`,
		`{toolkit: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` + strings.Repeat("{},", 65) + `]}}}}}`: `spec.toolkit.affinity: a node selector of 65 terms, which are more than the 64 that gpuready takes, is not valid in Kubernetes, and is left out`,
		`{toolkit: {podSecurityContext: {fsGroup: -1}}}`:                                                `spec.toolkit.podSecurityContext: user or group -1 is not valid in Kubernetes, and is left out`,
		`{toolkit: {podSecurityContext: {runAsNonRoot: true}}}`:                                         `spec.toolkit.podSecurityContext: runAsNonRoot: the containers write root's files of the host; it is not valid in Kubernetes, and is left out`,
		`{dcgm: {enabled: true, securityContext: {privileged: true, allowPrivilegeEscalation: false}}}`: `spec.dcgm.securityContext: allowPrivilegeEscalation: false of a privileged container is not valid in Kubernetes, and is left out`,
		`{daemonsets: {rollingUpdate: {maxUnavailable: "0"}}}`:                                          `spec.daemonsets.rollingUpdate.maxUnavailable: "0" is not valid in Kubernetes, and 1 is used`,
		`{hostPaths: {driverInstallDir: /run/../etc}}`:                                                  `spec.hostPaths.driverInstallDir: "/run/../etc" is not valid in Kubernetes, and the default is used`,
		`{driver: {secretEnv: "../x"}}`:                                                                 `spec.driver.secretEnv: "../x" is not valid in Kubernetes, and is left out`,
	} {
		_, messages := renderPod(t, progress.Toolkit, spec)
		require.Equal(t, []string{message}, messages, spec)
	}
}

func TestOfTwoVariablesWithOneNameTheLastCounts(t *testing.T) {
	pod, messages := renderPod(t, progress.Toolkit, `{toolkit: {env: [{name: A, value: "1"}, {name: B}, {name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}}`)
	require.Empty(t, messages)
	env := pod.Spec.Containers[0].Env
	require.Equal(t, []corev1.EnvVar{{Name: "B"}, {Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}, env[len(env)-2:])
}

func TestOperandsPodsFollowThePolicy(t *testing.T) {
	const spec = `
  daemonsets:
    labels: {team: ml, tier: gpu}
    nodeSelector: {pool: gpu, zone: a}
    affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: Exists}]}]}}}
    podSecurityContext: {fsGroup: 7, supplementalGroups: [8]}
    priorityClassName: high
  FIELD:
    enabled: true
    labels: {team: hpc}
    annotations: {example.com/a: b}
    nodeSelector: {zone: b}
    affinity:
      nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: x, operator: In, values: ["1"]}]}, {}]}}
      podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}]}
    tolerations: [{key: example.com/own, operator: Exists}]
    priorityClassName: higher
    podSecurityContext: {fsGroup: 9}
    hostNetwork: true`
	for field, s := range map[string]progress.State{
		"toolkit": progress.Toolkit, "devicePlugin": progress.DevicePlugin, "driver": progress.Driver,
		"dcgm": progress.DCGM, "dcgmExporter": progress.DCGMExporter, "migManager": progress.MIGManager, "validator": progress.DriverValidation,
	} {
		t.Run(field, func(t *testing.T) {
			var tree map[string]map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(spec), &tree))
			tree[field] = tree["FIELD"]
			delete(tree, "FIELD")
			if field == "validator" {
				delete(tree[field], "enabled")
			}
			text, err := yaml.Marshal(map[string]any{"spec": tree})
			require.NoError(t, err)
			var p v1.ClusterPolicy
			require.NoError(t, yaml.UnmarshalStrict(text, &p))
			objects, problems := render(t, Input{Policy: &p, Cluster: with(cluster, func(c *Cluster) { c.HandOver = true }), Drivers: []driver.Choice{ubuntu()}, Injections: []fleet.Injection{fleet.NRI}})
			require.Empty(t, problems)
			var pod *corev1.PodTemplateSpec
			for _, o := range objects {
				if d, is := o.Object.(*appsv1.DaemonSet); is && o.State == s {
					pod = &d.Spec.Template
				}
			}
			require.Equal(t, "hpc", pod.Labels["team"])
			require.Equal(t, "gpu", pod.Labels["tier"])
			require.Equal(t, "b", pod.Annotations["example.com/a"])
			require.Equal(t, "gpu", pod.Spec.NodeSelector["pool"])
			require.Equal(t, "b", pod.Spec.NodeSelector["zone"])
			require.Equal(t, "linux", pod.Spec.NodeSelector["kubernetes.io/os"])
			terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			require.Len(t, terms, 2, "one for each of the operand's, joined with those of all")
			var keys []string
			for _, e := range terms[0].MatchExpressions {
				keys = append(keys, e.Key)
			}
			require.Equal(t, []string{"x", "arch"}, keys[:2])
			require.Contains(t, keys[2], "nvidia.com/gpu.deploy.")
			require.Empty(t, terms[1].MatchExpressions, "it selects no node, and does not begin to")
			apart := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			require.Equal(t, "rack", apart[0].TopologyKey)
			require.Equal(t, s == progress.Driver, len(apart) == 2, "drivers avoid other drivers")
			require.Contains(t, pod.Spec.Tolerations, corev1.Toleration{Key: "example.com/own", Operator: corev1.TolerationOpExists})
			require.Equal(t, "higher", pod.Spec.PriorityClassName)
			require.EqualValues(t, 9, *pod.Spec.SecurityContext.FSGroup)
			require.Equal(t, []int64{8}, pod.Spec.SecurityContext.SupplementalGroups)
			require.True(t, pod.Spec.HostNetwork)
			require.Equal(t, corev1.DNSClusterFirstWithHostNet, pod.Spec.DNSPolicy)
		})
	}
}

func TestSecurityContextOfNVIDIAsOperandsIsReplaced(t *testing.T) {
	pod, messages := renderPod(t, progress.DCGMExporter, `{dcgmExporter: {enabled: true, securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN]}}}}`)
	require.Empty(t, messages)
	root := int64(0)
	require.Equal(t, &corev1.SecurityContext{RunAsUser: &root, Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}, pod.Spec.Containers[0].SecurityContext)
}

func TestKubeletsDirectoryIsMounted(t *testing.T) {
	mounts := func(pod *corev1.PodTemplateSpec, volume string) (host, at string) {
		for _, v := range pod.Spec.Volumes {
			if v.Name == volume {
				host = v.HostPath.Path
			}
		}
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			if m.Name == volume {
				at = m.MountPath
			}
		}
		return host, at
	}
	const spec = `{hostPaths: {kubeletRootDir: /data/kubelet}, dcgmExporter: {enabled: true}}`
	for _, c := range []struct {
		state                          progress.State
		injection                      fleet.Injection
		volume, host, at, name, socket string
	}{
		{progress.DevicePlugin, fleet.NRI, "kubelet", "/data/kubelet/device-plugins", "/data/kubelet/device-plugins", "KUBELET_SOCKET", "/data/kubelet/device-plugins/kubelet.sock"},
		{progress.DevicePlugin, fleet.CDI, "kubelet", "/data/kubelet/device-plugins", "/host/data/kubelet/device-plugins", "KUBELET_SOCKET", "/data/kubelet/device-plugins/kubelet.sock"},
		{progress.DriverValidation, fleet.NRI, "pod-resources", "/data/kubelet/pod-resources", "/data/kubelet/pod-resources", "POD_RESOURCES_SOCKET", "/data/kubelet/pod-resources/kubelet.sock"},
		{progress.DriverValidation, fleet.Handler, "pod-resources", "", "", "POD_RESOURCES_SOCKET", "/data/kubelet/pod-resources/kubelet.sock"},
		{progress.DCGMExporter, fleet.NRI, "pod-gpu-resources", "/data/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", "", ""},
	} {
		pod, messages := renderPod(t, c.state, spec, c.injection)
		require.Empty(t, messages)
		host, at := mounts(pod, c.volume)
		require.Equal(t, c.host, host, c)
		require.Equal(t, c.at, at, c)
		if c.name != "" {
			require.Contains(t, pod.Spec.Containers[0].Env, corev1.EnvVar{Name: c.name, Value: c.socket})
		}
	}
}

func TestExporterReadsPodsOnlyOnRequest(t *testing.T) {
	pod, _ := renderPod(t, progress.DCGMExporter, `{dcgmExporter: {enabled: true}}`)
	require.False(t, *pod.Spec.AutomountServiceAccountToken)
	pod, _ = renderPod(t, progress.DCGMExporter, `{dcgmExporter: {enabled: true, enablePodLabels: true, podLabelAllowlistRegex: ["^app$", "^team$"]}}`)
	require.True(t, *pod.Spec.AutomountServiceAccountToken)
	require.Subset(t, pod.Spec.Containers[0].Env, []corev1.EnvVar{
		{Name: "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", Value: "true"}, {Name: "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", Value: "^app$,^team$"},
	})
}

func TestServiceMonitorWhereTheClusterHasTheKind(t *testing.T) {
	in := Input{Policy: policy(t, `{dcgmExporter: {enabled: true, serviceMonitor: {enabled: true, interval: 15s, scrapeTimeout: 10s, honorLabels: true, additionalLabels: {release: prometheus}, relabelings: [{sourceLabels: [a], targetLabel: b, modulus: 3, action: replace}]}}}`),
		Cluster: with(cluster, func(c *Cluster) { c.ServiceMonitors = true }), Injections: []fleet.Injection{fleet.NRI}}
	objects, problems := render(t, in)
	require.Empty(t, problems)
	var monitor Object
	for _, o := range objects {
		if o.Object.GetObjectKind().GroupVersionKind() == ServiceMonitor {
			monitor = o
		}
	}
	text, err := yaml.Marshal(monitor.Object)
	require.NoError(t, err)
	require.Contains(t, string(text), "release: prometheus")
	require.Contains(t, string(text), `spec:
  endpoints:
  - honorLabels: true
    interval: 15s
    path: /metrics
    port: gpu-metrics
    relabelings:
    - action: replace
      modulus: 3
      sourceLabels:
      - a
      targetLabel: b
    scrapeTimeout: 10s
  jobLabel: app
  namespaceSelector:
    matchNames:
    - nvidia-gpu-operator
  selector:
    matchLabels:
      app: nvidia-dcgm-exporter
      app.kubernetes.io/part-of: gpuready
`)
	in.Cluster.ServiceMonitors = false
	objects, problems = render(t, in)
	require.Equal(t, []Problem{{State: progress.Prerequisites, Message: "dcgmExporter.serviceMonitor: the cluster has no ServiceMonitors: install the prometheus-operator, or set dcgmExporter.serviceMonitor.enabled to false", Unserved: true}}, problems)
	for _, o := range objects {
		require.NotEqual(t, ServiceMonitor, o.Object.GetObjectKind().GroupVersionKind())
	}
}
