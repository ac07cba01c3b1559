package validator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// holder is a pod that holds all GPUs of the node.
var holder = e2e.Job{Name: "holds-all", Node: "n1", GPUs: 8, Command: []string{"vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"}}

// clusterSituations are faults outside the node's GPUs, and in our own image.
func clusterSituations() []situation {
	freeRun := func(*testing.T) {} // ends what fillRun did
	return []situation{
		{
			name: "pods hold all GPUs", reason: "AllAllocated",
			prepare:  func(t *testing.T, n *node) { n.occupy(t, holder) },
			breaks:   func(t *testing.T, n *node) { n.proveAgain(t) },
			reported: provenWithoutAPod("AllAllocated"),
			mends:    func(t *testing.T, n *node) { n.delete(t, "default", holder.Name) },
		},
		{
			name: "the node is full of other things", reason: "NodeFull",
			prepare:  func(t *testing.T, n *node) { n.fill(t) },
			breaks:   func(t *testing.T, n *node) { n.proveAgain(t) },
			reported: provenWithoutAPod("NodeFull", "Insufficient cpu"),
			mends:    func(t *testing.T, n *node) { n.delete(t, "default", "fills") },
		},
		{
			name: "a policy of the cluster refuses our pod", reason: "WorkloadForbidden",
			prepare:  func(t *testing.T, n *node) { n.forbid(t) },
			breaks:   func(t *testing.T, n *node) { n.proveAgain(t) },
			reported: provenWithoutAPod("WorkloadForbidden", "no pods without a cost centre"),
			mends:    func(t *testing.T, n *node) { n.allow(t) },
		},
		{
			name: "the image of our pod cannot be had", layer: readiness.Plugin, reason: "WorkloadImageMissing",
			words:  []string{"localhost:1/gpuready/validator:gone", "--workload-image"},
			breaks: func(t *testing.T, n *node) { n.image(t, "localhost:1/gpuready/validator:gone") },
			mends:  func(t *testing.T, n *node) { n.image(t, n.Image("validator")) },
		},
		{
			name: "the API server cannot be reached", reason: "(proofs stand)",
			breaks: func(t *testing.T, n *node) {
				n.cut(t, true)
				n.gpusim(t, "lose", "--gpu", "3") // a reason to write
			},
			reported: func(t *testing.T, n *node) error {
				for _, l := range readiness.Layers() {
					if s, err := n.layer(l); err != nil || s.Proof == nil {
						return fmt.Errorf("%s is not proven any more: %w", l, err)
					}
				}
				return n.logged(t, "the API server has not answered yet")
			},
			mends: func(t *testing.T, n *node) {
				n.cut(t, false)
				n.until(t, "the Node is told what happened meanwhile", func() error {
					return n.condition(corev1.ConditionTrue, "Degraded", "GPU 3 (", "XID 79 (the GPU no longer answers on PCIe)")
				})
				n.reset(t, "3")
			},
		},
		{
			name: "/run is full while a GPU breaks", reason: "StateNotWritable",
			prepare: func(t *testing.T, n *node) {
				// The container of a pod that is on its way cannot start any more: that is another fault.
				n.until(t, "no validation pod is on its way", func() error {
					for _, p := range n.World.Pods(e2e.Namespace, "") {
						if strings.Contains(p.Name, "-validation-") && (p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning) {
							return fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
						}
					}
					return nil
				})
				freeRun = n.fillRun(t)
			},
			breaks: func(t *testing.T, n *node) { n.gpusim(t, "lose", "--gpu", "2") },
			reported: func(_ *testing.T, n *node) error {
				c := n.World.Condition(n.name, "GPUReady")
				if c == nil || c.Reason != "StateNotWritable" || !strings.Contains(c.Message, "df -h") {
					return fmt.Errorf("the condition is %+v", c)
				}
				return nil
			},
			also: func(t *testing.T, n *node) {
				out, _ := n.run(t, "gpu-validator", "explain", "--node", n.name) // in a pod, nothing new can be run
				assert.Contains(t, out, "StateNotWritable")
			},
			mends: func(t *testing.T, n *node) {
				freeRun(t)
				n.until(t, "the broken GPU is reported", func() error {
					return n.condition(corev1.ConditionTrue, "Degraded", "GPU 2 (", "XID 79")
				})
				n.reset(t, "2")
			},
		},
		{
			name: "the proofs are of an earlier boot", reason: "(not believed)",
			prepare: func(t *testing.T, n *node) {
				n.label(t, validatorLabel, "false")
				n.gone(t, validator)
			},
			breaks: func(t *testing.T, n *node) {
				for _, l := range readiness.Layers() {
					path := filepath.Join(readiness.DefaultDir, string(l)+"-ready")
					n.write(t, path, n.ofAnEarlierBoot(t, path))
				}
			},
			reported: func(_ *testing.T, n *node) error {
				for _, l := range readiness.Layers() {
					if _, err := n.layer(l); err == nil {
						return fmt.Errorf("%s is believed", l)
					}
				}
				return nil
			},
			also: func(t *testing.T, n *node) {
				out, err := exec.CommandContext(t.Context(), program("gpu-validator"), "wait", "plugin", "--timeout", "100ms", "--host-root", n.path("/")).CombinedOutput()
				failed, is := errors.AsType[*exec.ExitError](err)
				if assert.Truef(t, is, "%v: %s", err, out) {
					assert.Equal(t, 20, failed.ExitCode(), string(out))
				}
				assert.Contains(t, string(out), "earlier boot")
			},
			mends: func(t *testing.T, n *node) { n.label(t, validatorLabel, "") },
		},
	}
}

// provenWithoutAPod returns a check that the plugin's layer is proven by the accounts, and that the
// validator has logged why no pod was the proof.
func provenWithoutAPod(why ...string) func(*testing.T, *node) error {
	return func(t *testing.T, n *node) error {
		s, err := n.layer(readiness.Plugin)
		if err != nil {
			return err
		}
		if s.Proof == nil || strings.Contains(s.Proof.Summary, "in a pod") {
			return fmt.Errorf("the plugin's layer: %s", summary(s))
		}
		if err := n.condition(corev1.ConditionTrue, "Ready"); err != nil {
			return err
		}
		return n.logged(t, append([]string{"layer=plugin", "not proven by a pod"}, why...)...)
	}
}

// logged returns an error unless a line of the validator's log has all these words.
func (n *node) logged(t *testing.T, words ...string) error {
	t.Helper()
	log := n.log(t)
	for line := range strings.Lines(log) {
		has := true
		for _, w := range words {
			has = has && strings.Contains(line, w)
		}
		if has {
			return nil
		}
	}
	return fmt.Errorf("no line of the validator's log has %q:\n%s", words, tail(log, 5))
}

// occupy runs a pod that holds GPUs.
func (n *node) occupy(t *testing.T, j e2e.Job) {
	t.Helper()
	n.Run(t, j)
	n.until(t, j.Name+" runs", func() error {
		if p := n.World.Pod("default", j.Name); p == nil || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it does not")
		}
		return nil
	})
}

// fill uses up all processors of the node.
func (n *node) fill(t *testing.T) {
	t.Helper()
	free := n.World.Node(n.name).Status.Allocatable[corev1.ResourceCPU]
	for _, p := range n.World.Pods("", "") {
		if p.Spec.NodeName != n.name || p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range p.Spec.Containers {
			free.Sub(c.Resources.Requests[corev1.ResourceCPU])
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "fills", Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: n.name},
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "main", Image: n.Image("device-plugin"), ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"wait"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(free.MilliValue(), resource.DecimalSI)}},
			}},
		},
	}
	_, err := n.World.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	n.until(t, "the node is full", func() error {
		if p := n.World.Pod("default", "fills"); p == nil || p.Spec.NodeName == "" {
			return fmt.Errorf("the pod is not scheduled: %+v", p)
		}
		return nil
	})
}

func (n *node) delete(t *testing.T, namespace, pod string) {
	t.Helper()
	require.NoError(t, n.World.Client.CoreV1().Pods(namespace).Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: cost-centre }
spec:
  matchConstraints:
    resourceRules:
      - { apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods] }
  validations:
    - { expression: "'cost-centre' in object.metadata.?labels.orValue({})", message: no pods without a cost centre }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: cost-centre }
spec: { policyName: cost-centre, validationActions: [Deny] }
`

// forbid makes the API server refuse pods such as ours.
func (n *node) forbid(t *testing.T) {
	t.Helper()
	n.ApplyText(t, policy)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tries"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	n.until(t, "the policy is in force", func() error {
		_, err := n.World.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("a pod is admitted")
		}
		return nil
	})
}

func (n *node) allow(t *testing.T) {
	t.Helper()
	n.Kubectl(t, "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "cost-centre")
}

const runFiller = "/run/filler"

// fillRun makes the node's /run small, and keeps it full until free is called: a container that ends would
// make room for the states of the agents, and not for what the runtime needs for a pod.
func (n *node) fillRun(t *testing.T) (free func(*testing.T)) {
	t.Helper()
	var run unix.Statfs_t
	require.NoError(t, unix.Statfs(n.path("/run"), &run))
	used := int64(run.Blocks-run.Bfree) * run.Bsize
	n.resizeRun(t, fmt.Sprint(used+1<<20))
	filler, err := os.Create(n.path(runFiller))
	require.NoError(t, err)
	require.ErrorIs(t, fillUp(filler), unix.ENOSPC)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		defer func() { _ = filler.Close() }()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			if err := fillUp(filler); !errors.Is(err, unix.ENOSPC) {
				ended <- err
				return
			}
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		stop()
		assert.NoError(t, <-ended)
		n.remove(t, runFiller)
		n.resizeRun(t, "50%")
	}
}

// fillUp writes to a file until there is no room for a byte more, and returns the last error.
func fillUp(file *os.File) (err error) {
	for size := 64 << 10; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return err
}

func (n *node) resizeRun(t *testing.T, size string) {
	t.Helper()
	out, err := n.Node(n.name).Exec(t.Context(), "mount", "-o", "remount,size="+size, "/run")
	require.NoErrorf(t, err, "%s", out)
}

// image changes the image of the validator's pods.
func (n *node) image(t *testing.T, image string) {
	t.Helper()
	n.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/"+validator, "--containers=validator", "VALIDATOR_IMAGE="+image)
}

// cut drops all traffic from the node's pods to the API server, or restores it.
func (n *node) cut(t *testing.T, off bool) {
	t.Helper()
	ns, err := netns.GetFromPath(strings.TrimSuffix(n.path("/"), "/root") + "/ns/net")
	require.NoError(t, err)
	defer func() { _ = ns.Close() }()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer handle.Close()
	nowhere := &netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(cluster.ServiceIP).To4(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
	if off {
		require.NoError(t, handle.RouteAdd(nowhere))
		return
	}
	require.NoError(t, handle.RouteDel(nowhere))
}
