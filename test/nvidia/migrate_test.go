package nvidia

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// migrationPatience limits each wait of the migration.
const migrationPatience = 10 * time.Minute

// user is a pod that was written for NVIDIA's stack and runs through the whole migration.
const user = `
apiVersion: v1
kind: Pod
metadata: {name: train-%[1]s, namespace: default}
spec:
  nodeName: %[1]s
  runtimeClassName: nvidia
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: ` + jobImage + `
      command: [/bin/sleep, "86400"]
      resources: {limits: {nvidia.com/gpu: 1}}
`

// newcomer is a user's pod that computes on a GPU and ends.
const newcomer = `
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  restartPolicy: Never
  %[3]s
  automountServiceAccountToken: false
  containers:
    - name: main
      image: ` + jobImage + `
      resources: {limits: {nvidia.com/gpu: 1}}
`

// migration is a cluster of two nodes that NVIDIA's stack serves, with a user's pod on each.
type migration struct {
	*suite
	world      *e2e.ClusterState
	pods       map[string]string // UIDs of the users' pods by node
	policy     any               // spec of NVIDIA's policy
	definition any               // spec of NVIDIA's definition
}

// The nodes of a cluster with NVIDIA's own operator are handed over one by one and given back, by the
// commands that docs/from-nvidia.md shows, while pods go on running.
func TestMigrateFromNVIDIA(t *testing.T) {
	s := up(t, cluster.Config{Name: "migrate", Nodes: 2}, Link{}, nil, Settings{})
	world, err := e2e.Watch(t.Context(), s.cluster.Kubeconfig)
	require.NoError(t, err)
	m := &migration{suite: s, world: world, pods: map[string]string{}}
	for _, n := range s.cluster.Nodes {
		// NVIDIA's toolkit signals containerd; gpuready's has systemd restart it.
		systemd, err := runtimetest.StartPrivateSystemd(n.PathOnNode("/"), map[string]string{"containerd.service": "active"},
			func(string, string) error { return n.RestartContainerd(t.Context()) })
		require.NoError(t, err)
		t.Cleanup(func() { _ = systemd.Die() })
	}
	for _, scenario := range []struct {
		name string
		run  func(*migration, *testing.T)
	}{
		{"NVIDIAsStackServes", (*migration).start},
		{"GPUReadyIsInstalledBeside", (*migration).install},
		{"ANodeWhosePodsUseTheDriverIsRefused", (*migration).refuse},
		{"OneNodeIsHandedOver", func(m *migration, t *testing.T) { m.handOver(t, "n1", "n1") }},
		{"AndTheOthers", func(m *migration, t *testing.T) { m.handOver(t, "n2", "--all") }},
		{"AndBack", (*migration).giveBack},
		{"NVIDIAsOperatorLeaves", (*migration).finish},
	} {
		if !t.Run(scenario.name, func(t *testing.T) { scenario.run(m, t) }) {
			m.describe(t, s.stacks[0])
			m.describe(t, s.stacks[1])
			t.FailNow()
		}
	}
}

// start installs NVIDIA's stack on both nodes, and users' pods.
func (m *migration) start(t *testing.T) {
	ctx, theirs := t.Context(), m.stacks[0]
	for _, n := range m.cluster.Nodes {
		require.NoError(t, m.registry.Warm(ctx, n))
	}
	require.NoError(t, theirs.Install(ctx, m.cluster))
	policy, err := theirs.Policy(ctx)
	require.NoError(t, err)
	require.NoError(t, m.Apply(ctx, m.cluster, policy))
	// Only a test has a simulated driver: NVIDIA's validator ignores the variable. NVIDIA's feature
	// discovery mounts /sys/class/dmi/id, which not every machine has.
	m.output(t, "patch", "clusterpolicy", "cluster-policy", "--type=merge", "-p", `{"spec":{"gfd":{"enabled":false},"validator":{"env":[{"name":"ALLOW_SIMULATED","value":"true"}]}}}`)
	for _, n := range m.cluster.Nodes {
		require.NoError(t, Plug(n))
	}
	m.until(t, "NVIDIA's operator is ready, and both nodes offer GPUs", func() error { return m.theirsReady(t, "n1", "n2") })
	for _, n := range m.cluster.Nodes {
		require.NoError(t, m.Apply(ctx, m.cluster, fmt.Sprintf(user, n.Name)))
	}
	for _, n := range m.cluster.Nodes {
		m.until(t, "a pod runs on "+n.Name, func() error {
			p := m.world.Pod("default", "train-"+n.Name)
			if p == nil || p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%+v", p)
			}
			m.pods[n.Name] = string(p.UID)
			return nil
		})
	}
	m.compute(t)
	m.policy, m.definition = m.spec(t, "clusterpolicy/cluster-policy"), m.spec(t, "crd/clusterpolicies.nvidia.com")
}

// install installs gpuready as the plan says. It changes nothing on the nodes.
func (m *migration) install(t *testing.T) {
	out, err := m.migrate(t)
	require.Error(t, err)
	require.Contains(t, out, "v24.3.0")
	require.Contains(t, out, "gpuready's operator is not installed")
	m.helmInstall(t, out)
	out, err = m.migrate(t)
	require.Error(t, err, "pods use the driver")
	require.Contains(t, out, "The definition of ClusterPolicies is NVIDIA's.")
	require.Regexp(t, `(?m)^n1 +NVIDIA's +ready +default/train-n1`, out)
	m.unchanged(t)
	require.NoError(t, m.theirsReady(t, "n1", "n2"))
}

// helmInstall runs the command with which the plan ends, with the chart and the registry of the test.
func (m *migration) helmInstall(t *testing.T, plan string) {
	_, command, found := strings.Cut(plan, "\n  helm ")
	require.True(t, found)
	chart, err := filepath.Glob(filepath.Join(m.bin, "charts/gpuready-*.tgz"))
	require.NoError(t, err)
	require.Len(t, chart, 1)
	require.Contains(t, command, " deployments/helm/gpuready ")
	args := strings.Fields(strings.Replace(command, "deployments/helm/gpuready", chart[0], 1))
	_, err = m.helm(t.Context(), m.cluster, append(args, "--set", "global.registry="+m.registry.Host, "--set", "operator.insecureRegistries={"+m.registry.Host+"}")...)
	require.NoError(t, err)
}

func (m *migration) refuse(t *testing.T) {
	before := m.world.Node("n1").Labels
	out, err := m.migrate(t, "node", "n1")
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, out, "n1: refused")
	require.Contains(t, out, "default/train-n1. The next driver container")
	out, err = m.migrate(t, "node", "n1", "--with-gpu-pods", "--dry-run")
	require.NoError(t, err)
	require.Contains(t, out, "kubectl label node n1 --overwrite nvidia.com/gpu.deploy.operands=false gpuready.io/operator=moving")
	require.Equal(t, before, m.world.Node("n1").Labels)
}

// handOver hands a node over.
func (m *migration) handOver(t *testing.T, node string, args ...string) {
	out, err := m.migrate(t, append([]string{"node", "--with-gpu-pods", "--timeout=10m"}, args...)...)
	require.NoError(t, err)
	require.Contains(t, out, node+": done")
	require.Equal(t, corev1.ConditionTrue, m.world.Condition(node, "GPUReady").Status)
	require.Empty(t, m.podsOn("gpu-operator", node), "NVIDIA's pods have left the node")
	m.newPods(t, node)
	m.compute(t)
	m.unchanged(t)
	var others []string
	for _, n := range m.cluster.Nodes {
		if m.world.Node(n.Name).Labels["gpuready.io/operator"] == "" {
			others = append(others, n.Name)
		}
	}
	require.NoError(t, m.theirsReady(t, others...), "NVIDIA's operator serves the others")
	out, err = m.migrate(t)
	require.Regexp(t, `(?m)^`+node+` +gpuready +ready +default/train-`+node, out)
	if len(others) == 0 {
		require.NoError(t, err)
		require.Contains(t, out, "kubectl -n gpu-operator scale deployment/gpu-operator --replicas=0")
	}
}

func (m *migration) giveBack(t *testing.T) {
	_, err := m.migrate(t, "back", "--all", "--with-gpu-pods", "--timeout=10m")
	require.NoError(t, err)
	for _, n := range m.cluster.Nodes {
		labels := m.world.Node(n.Name).Labels
		require.NotContains(t, labels, "gpuready.io/operator")
		require.NotContains(t, labels, "nvidia.com/gpu.deploy.operands")
	}
	m.until(t, "both nodes offer GPUs", func() error { return m.theirsReady(t, "n1", "n2") })
	m.newPods(t, "n1")
	m.compute(t)
	m.unchanged(t)
}

// finish hands all nodes over again and runs the commands with which the plan ends.
func (m *migration) finish(t *testing.T) {
	_, err := m.migrate(t, "node", "--all", "--with-gpu-pods", "--timeout=10m")
	require.NoError(t, err)
	out, err := m.migrate(t, "plan", "-o", "json")
	require.NoError(t, err)
	var plan struct{ Next []string }
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.NotEmpty(t, plan.Next)
	for _, command := range plan.Next {
		program, args, _ := strings.Cut(command, " ")
		if program == "kubectl" {
			program = m.kubectl
		} else {
			program = filepath.Join(m.bin, program)
		}
		args = strings.ReplaceAll(args, "${KUBECONFIG:-$HOME/.kube/config}", m.cluster.Kubeconfig)
		out, err := m.run(t.Context(), m.cluster, "", program, strings.Fields(args)...)
		t.Logf("$ %s\n%s", command, out)
		require.NoError(t, err)
	}
	m.until(t, "gpuready serves the cluster, and reports that in the policy", func() error {
		found, err := m.Kubectl(t.Context(), m.cluster, "get", "clusterpolicy", "cluster-policy", "-o", "jsonpath={.status.state} {.status.namespace} {.status.nodes.ready}")
		if err == nil && found != "ready gpuready-system 2" {
			err = fmt.Errorf("the status is %q", found)
		}
		return err
	})
	for _, n := range m.cluster.Nodes {
		require.Empty(t, m.podsOn("gpu-operator", n.Name))
		m.newPods(t, n.Name)
	}
	m.compute(t)
	contains(t, m.spec(t, "clusterpolicy/cluster-policy"), m.policy, "spec")
	_, err = m.migrate(t)
	require.NoError(t, err, "nothing is in the way")
}

// migrate runs kubectl gpu migrate, and logs what a person sees.
func (m *migration) migrate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := m.run(t.Context(), m.cluster, "", filepath.Join(m.bin, "kubectl-gpu"), append([]string{"migrate"}, args...)...)
	t.Logf("$ kubectl gpu migrate %s\n%s%v", strings.Join(args, " "), out, err)
	return out, err
}

func (m *migration) output(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.Kubectl(t.Context(), m.cluster, args...)
	require.NoError(t, err)
	return out
}

// until waits until cond returns no error.
func (m *migration) until(t *testing.T, what string, cond func() error) {
	t.Helper()
	began := time.Now()
	m.world.UntilWithin(t, migrationPatience, what, cond)
	t.Logf("%6.1f s until %s", time.Since(began).Seconds(), what)
}

// theirsReady returns an error unless NVIDIA's operator reports that it is ready, and nodes have its
// plugin and offer GPUs.
func (m *migration) theirsReady(t *testing.T, nodes ...string) error {
	for _, node := range nodes {
		if m.world.Allocatable(node) == 0 {
			return fmt.Errorf("%s offers no GPU", node)
		}
		if !slices.ContainsFunc(m.podsOn("gpu-operator", node), func(name string) bool { return strings.HasPrefix(name, "nvidia-device-plugin-daemonset") }) {
			return fmt.Errorf("%s has no plugin of NVIDIA's", node)
		}
	}
	state, err := m.Kubectl(t.Context(), m.cluster, "get", "clusterpolicy", "cluster-policy", "-o", "jsonpath={.status.state}")
	if err == nil && state != "ready" {
		err = fmt.Errorf("the policy is %q", state)
	}
	if err == nil {
		_, err = m.Kubectl(t.Context(), m.cluster, "-n", "gpu-operator", "rollout", "status", "deployment/gpu-operator", "--timeout=1s")
	}
	return err
}

// podsOn returns the DaemonSets' pods of a namespace on a node.
func (m *migration) podsOn(namespace, node string) (names []string) {
	for _, p := range m.world.Pods(namespace, "") {
		if p.Spec.NodeName == node && len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Kind == "DaemonSet" {
			names = append(names, p.Name)
		}
	}
	return names
}

// compute fails unless the users' pods are the same as ever, in containers that never ended, and
// compute on their GPUs.
func (m *migration) compute(t *testing.T) {
	t.Helper()
	for node, uid := range m.pods {
		p := m.world.Pod("default", "train-"+node)
		require.NotNil(t, p)
		require.Equal(t, uid, string(p.UID))
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Zero(t, p.Status.ContainerStatuses[0].RestartCount)
		m.until(t, p.Name+" computes on its GPU", func() error { // NVIDIA's toolkit may be restarting containerd
			out, err := m.Kubectl(t.Context(), m.cluster, "exec", p.Name, "--", "/usr/bin/vectoradd")
			if err == nil && !strings.Contains(out, "Test PASSED") {
				err = fmt.Errorf("it printed %s", out)
			}
			return err
		})
	}
}

// newPods runs pods that come after the switch, with the RuntimeClass and without.
func (m *migration) newPods(t *testing.T, node string) {
	t.Helper()
	for name, class := range map[string]string{"plain": "", "class": "runtimeClassName: nvidia"} {
		require.NoError(t, m.Apply(t.Context(), m.cluster, fmt.Sprintf(newcomer, node, name, class)))
		m.until(t, "a new pod ("+name+") has computed on "+node, func() error {
			passed, err := hasPassed(m.world.Pod("default", name))
			if err == nil && !passed {
				err = fmt.Errorf("it has not ended")
			}
			return err
		})
		assert.NoError(t, checkOutput(m.output(t, "logs", name)))
		m.output(t, "delete", "pod", name, "--grace-period=0", "--timeout=60s")
	}
}

// spec returns the spec of an object.
func (m *migration) spec(t *testing.T, name string) any {
	t.Helper()
	var object struct{ Spec any }
	require.NoError(t, json.Unmarshal([]byte(m.output(t, "get", name, "-o", "json")), &object))
	return object.Spec
}

// unchanged fails if anything of NVIDIA's policy or definition was changed.
func (m *migration) unchanged(t *testing.T) {
	t.Helper()
	require.Equal(t, m.policy, m.spec(t, "clusterpolicy/cluster-policy"))
	require.Equal(t, m.definition, m.spec(t, "crd/clusterpolicies.nvidia.com"))
}

// contains fails unless all of want is in have, which may have more: gpuready's defaults.
func contains(t *testing.T, have, want any, path string) {
	t.Helper()
	fields, is := want.(map[string]any)
	if !is {
		assert.Equal(t, want, have, path)
		return
	}
	all, _ := have.(map[string]any)
	for key, value := range fields {
		contains(t, all[key], value, path+"."+key)
	}
}
