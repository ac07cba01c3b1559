package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// oneNode is a cluster with one node, "a", whose driver is outdated.
type oneNode struct {
	Input
	node   *fleet.Node
	driver *Driver
}

func newOneNode(state State, since time.Duration) *oneNode {
	s := &oneNode{
		Input: Input{
			Policy:  Policy{Auto: true, MaxParallel: 1, Deletion: Eviction{Timeout: 5 * time.Minute}},
			Targets: map[fleet.Pool]Target{{}: {ID: "jammy", Name: "ds-jammy", Digest: "new"}},
			Sets:    map[string]Set{"jammy": {ID: "jammy", Digest: "new"}},
			Pods:    map[string][]*Pod{"a": {}},
			Now:     noon,
		},
		node: &fleet.Node{
			Name: "a", UID: "1", Version: "7", Ready: true, Labels: map[string]string{label.Driver: "jammy"}, Annotations: map[string]string{},
			GPUReady: fleet.Condition{Status: "True", Since: noon.Add(-time.Hour), Renewed: noon},
		},
		driver: &Driver{Namespace: "gpu", Name: "driver-a", UID: "d", DaemonSet: "ds-jammy", Digest: "old", Ready: true, Started: noon.Add(-time.Hour)},
	}
	if state != Unknown {
		s.node.Labels[label.UpgradeState] = string(state)
	}
	if state.InFlight() || state == Failed {
		s.node.Cordoned = true
		s.node.Annotations[label.UpgradeSince] = noon.Add(-since).Format(time.RFC3339)
		s.node.Annotations[label.UpgradeTarget] = "jammy@new"
		s.node.Annotations[label.UpgradeCordoned] = "true"
	}
	return s
}

// deletePolicy removes the driver pod and its labels, as the deletion of a policy does.
func (s *oneNode) deletePolicy() {
	s.driver = nil
	clear(s.node.Labels)
}

// validatorEnded sets the condition that a validator leaves at its end, as when its own pod is
// replaced.
func (s *oneNode) validatorEnded() {
	s.node.GPUReady = fleet.Condition{Status: "Unknown", Reason: readiness.ReasonStopped, Message: "the validator has ended", Since: noon, Renewed: noon}
}

// upgraded replaces the driver pod by the new driver's.
func (s *oneNode) upgraded() { s.driver.Digest, s.driver.Started = "new", noon.Add(-time.Minute) }

// failNewDriver makes the new driver's pod run without becoming ready.
func (s *oneNode) failNewDriver() { s.upgraded(); s.driver.Ready = false }

func (s *oneNode) proven(ago time.Duration) {
	s.node.GPUReady = fleet.Condition{Status: "True", Since: noon.Add(-ago)}
}

func (s *oneNode) pods(pods ...*Pod) { s.Pods["a"] = pods }

func (s *oneNode) plan() *Plan {
	s.Nodes = append(s.Nodes, s.node)
	s.Drivers = map[string]*Driver{}
	if s.driver != nil {
		s.Drivers["a"] = s.driver
	}
	return NewPlan(s.Input)
}

// describe describes a plan in words.
func describe(p *Plan) string {
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	for _, q := range p.Patches {
		if s, ok := q.Labels[label.UpgradeState]; ok {
			say("%s: %s", q.Node, State(deref(s)))
		}
		for _, key := range slices.Sorted(maps.Keys(q.Labels)) {
			if operand, ok := strings.CutPrefix(key, label.Deploy); ok {
				say("%s: %s %s", q.Node, operand, deref(q.Labels[key]))
			}
		}
		if q.Unschedulable != nil {
			say("%s: unschedulable %v", q.Node, *q.Unschedulable)
		}
		if q.Annotations[label.InitiallyCordoned] != nil {
			say("%s: was cordoned", q.Node)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(p.Assign)) {
		say("%s: driver %q", node, p.Assign[node])
	}
	for _, r := range p.Evict {
		say("evict %s", r.Name)
	}
	for _, r := range p.Delete {
		say("delete %s", r.Name)
	}
	for _, f := range p.Failed {
		say("%s failed: %s", f.Node, f.Why)
	}
	if len(p.Failed) == 0 {
		for _, node := range slices.Sorted(maps.Keys(p.Waiting)) {
			say("%s waits for %s", node, p.Waiting[node])
		}
	}
	if !p.NextPlan.IsZero() {
		say("wake in %s", p.NextPlan.Sub(noon))
	}
	return strings.Join(words, "; ")
}

func selecting(t *testing.T, text string) labels.Selector {
	s, err := labels.Parse(text)
	require.NoError(t, err)
	return s
}

// wantDeferred is the first part of a plan that defers a node because of its pods: the old
// driver keeps serving it.
const wantDeferred = "a: upgrade-required; a: unschedulable false; a waits for "

func TestNextStepOfANode(t *testing.T) {
	gpu := func(name string) *Pod {
		return &Pod{Namespace: "x", Name: name, UID: name, GPU: true, Controlled: true, Labels: map[string]string{"app": name}}
	}
	agent := func(name string) *Pod {
		return &Pod{Namespace: "x", Name: name, UID: name, GPU: true, Controlled: true, Agent: true}
	}
	drain := &Eviction{Timeout: time.Minute}
	for name, c := range map[string]struct {
		state State
		since time.Duration
		given func(*oneNode)
		want  string
	}{
		// Turns.
		"it begins, and is cordoned": {Unknown, 0, func(s *oneNode) { s.Pods = nil },
			"a: pod-deletion-required; a: unschedulable true; a waits for its pods to be known"},
		"it begins, and was cordoned before": {Required, 0, func(s *oneNode) { s.node.Cordoned = true; s.Pods = nil },
			"a: pod-deletion-required; a: was cordoned; a waits for its pods to be known"},
		"its kubelet is silent": {Unknown, 0, func(s *oneNode) { s.node.Ready = false },
			"a: upgrade-required"},
		"a person skips it":            {Required, 0, func(s *oneNode) { s.node.Labels[label.UpgradeSkip] = "true" }, "a: "},
		"it is as it should be":        {Unknown, 0, func(s *oneNode) { s.upgraded() }, "a: upgrade-done"},
		"somebody was faster":          {Required, 0, func(s *oneNode) { s.upgraded() }, "a: upgrade-done"},
		"it is done":                   {Done, 0, func(s *oneNode) { s.upgraded() }, ""},
		"drivers are left as they are": {Required, 0, func(s *oneNode) { s.Policy.Auto = false }, "a: "},
		"its pool keeps what runs":     {Done, 0, func(s *oneNode) { s.Targets[fleet.Pool{}] = Target{ID: "other", Keep: true} }, ""},
		"its pool is not known":        {Done, 0, func(s *oneNode) { s.Targets = map[fleet.Pool]Target{} }, ""},
		"a person's label is no state": {"nonsense", 0, func(s *oneNode) { s.upgraded() }, "a: upgrade-done"},
		"it is new":                    {Unknown, 0, func(s *oneNode) { s.driver, s.node.GPUReady = nil, fleet.Condition{}; clear(s.node.Labels) }, `a: driver "jammy"`},
		"its driver pod was lost":      {Unknown, 0, func(s *oneNode) { s.driver = nil }, ""},
		"another machine has its name now": {Unknown, 0, func(s *oneNode) {
			s.node.GPUReady, s.node.Created = fleet.Condition{}, noon
			s.driver.Created = noon.Add(-time.Hour)
			clear(s.node.Labels)
		}, `a: driver "jammy"`},
		"a policy was deleted, and has come back":           {Done, 0, func(s *oneNode) { s.deletePolicy() }, `a: driver "jammy"`},
		"the same, and its pods are not known":              {Done, 0, func(s *oneNode) { s.deletePolicy(); s.Pods = nil }, "a waits for its pods to be known"},
		"the same, and a pod uses the driver that is there": {Done, 0, func(s *oneNode) { s.deletePolicy(); s.pods(gpu("p")) }, "a: pod-deletion-required; a: unschedulable true; evict p; a waits for pod x/p to go; wake in 5m0s"},
		"the same, and the validator has ended":             {Done, 0, func(s *oneNode) { s.deletePolicy(); s.pods(gpu("p")); s.validatorEnded() }, `a: driver "jammy"`},
		"the same, and the proof is of an earlier installation": {Done, 0, func(s *oneNode) {
			s.deletePolicy()
			s.pods(gpu("p"))
			s.node.Heartbeat = s.node.GPUReady.Renewed.Add(fleet.StaleAfter)
		}, `a: driver "jammy"`},
		"the validator is replaced":                  {Done, 0, func(s *oneNode) { s.upgraded(); s.validatorEnded() }, ""},
		"the validator is replaced, and a pod fails": {Done, 0, func(s *oneNode) { s.driver = nil; s.pods(gpu("p")); s.validatorEnded() }, ""},
		"the validator is replaced while nodes are upgraded": {PodDeletion, 0, func(s *oneNode) { s.pods(gpu("p")); s.validatorEnded() },
			"evict p; a waits for pod x/p to go; wake in 5m0s"},
		"the same, and it is to be skipped": {Done, 0, func(s *oneNode) { s.deletePolicy(); s.node.Labels[label.UpgradeSkip] = "true" }, ""},
		"another kernel was booted": {Done, 0, func(s *oneNode) {
			s.node.Labels[label.Driver], s.Sets["k1"] = "k1", Set{Selector: map[string]string{label.Kernel: "1"}}
		}, `a: driver "jammy"`},
		"the host has a driver":         {Done, 0, func(s *oneNode) { s.node.Labels[label.Driver] = label.PreInstalled }, "a: "},
		"a person keeps the driver off": {Done, 0, func(s *oneNode) { s.node.Labels[label.Deploy+"driver"] = "false" }, `a: ; a: driver ""`},
		"there is no policy any more":   {DrainRequired, 0, func(s *oneNode) { s.Targets = nil }, `a: ; a: unschedulable false; a: driver ""`},

		// Jobs.
		"a job runs": {WaitForJobs, time.Minute, func(s *oneNode) {
			s.Policy.Jobs, s.Policy.JobsTimeout = selecting(t, "app=job"), time.Hour
			s.pods(gpu("job"))
		}, "a waits for pod x/job to finish; wake in 59m0s"},
		"a job runs too long": {WaitForJobs, time.Hour, func(s *oneNode) {
			s.Policy.Jobs, s.Policy.JobsTimeout = selecting(t, "app=job"), time.Hour
			s.pods(gpu("job"))
		}, "a: pod-deletion-required; evict job; a waits for pod x/job to go; wake in 5m0s"},
		"a job has finished": {WaitForJobs, time.Minute, func(s *oneNode) {
			s.Policy.Jobs = selecting(t, "app=job")
			s.pods(&Pod{Finished: true, Labels: map[string]string{"app": "job"}})
		}, "a: pod-restart-required; delete driver-a; a waits for driver pod driver-a to end"},

		// Pods.
		"pods with GPUs are evicted": {PodDeletion, time.Minute, func(s *oneNode) {
			leaving := gpu("leaving")
			leaving.Deleting = true
			s.pods(gpu("p"), leaving, &Pod{Name: "cpu", Controlled: true}, &Pod{Name: "plugin", GPU: true, Agent: true, Controlled: true}, &Pod{Name: "done", GPU: true, Finished: true})
		}, "evict p; a waits for pod x/p, x/leaving to go; wake in 4m0s"},
		"the validator's job is evicted": {PodDeletion, time.Minute, func(s *oneNode) { s.pods(&Pod{Namespace: "x", Name: "v", Own: true}) },
			"evict v; a waits for pod x/v to go; wake in 4m0s"},
		"pods with a RuntimeClass of GPUs are evicted": {PodDeletion, time.Minute, func(s *oneNode) {
			s.Classes = map[string]bool{"gpu": true, "nvidia": false}
			class := func(name string) *Pod {
				return &Pod{Namespace: "x", Name: name, UID: name, Controlled: true, Class: name}
			}
			s.pods(class("gpu"), class("nvidia"), class("nvidia-cdi"), class("kata"))
		}, "evict gpu; evict nvidia-cdi; a waits for pod x/gpu, x/nvidia-cdi to go; wake in 4m0s"},
		"pods that the policy names are evicted": {PodDeletion, time.Minute, func(s *oneNode) {
			s.Policy.Deletion.Selector = selecting(t, "app=cpu")
			s.pods(&Pod{Namespace: "x", Name: "cpu", Controlled: true, Labels: map[string]string{"app": "cpu"}})
		}, "evict cpu; a waits for pod x/cpu to go; wake in 4m0s"},
		"nothing makes a pod anew": {PodDeletion, time.Minute, func(s *oneNode) { s.pods(gpu("p"), &Pod{Namespace: "x", Name: "bare", GPU: true}) },
			wantDeferred + "pod x/bare cannot be evicted: nothing would recreate it; delete it, or set force in spec.driver.upgradePolicy"},
		"nothing makes a pod anew, by force": {PodDeletion, 0, func(s *oneNode) {
			s.Policy.Deletion.Force = true
			s.pods(&Pod{Namespace: "x", Name: "bare", GPU: true})
		}, "evict bare; a waits for pod x/bare to go; wake in 5m0s"},
		"a pod has data": {PodDeletion, time.Minute, func(s *oneNode) {
			s.pods(&Pod{Namespace: "x", Name: "data", GPU: true, Controlled: true, EmptyDir: true})
		},
			wantDeferred + "pod x/data cannot be evicted: the data of its emptyDir would be lost; delete it, or set deleteEmptyDir in spec.driver.upgradePolicy"},
		"a pod does not go": {PodDeletion, 5 * time.Minute, func(s *oneNode) { s.pods(gpu("p")) },
			wantDeferred + "pod x/p did not go within 5m0s: see its PodDisruptionBudget, finalizers and terminationGracePeriodSeconds"},
		"a pod does not go, and may be drained": {PodDeletion, 5 * time.Minute, func(s *oneNode) { s.Policy.Drain = drain; s.pods(gpu("p")) },
			"a: drain-required; evict p; a waits for pod x/p to go; wake in 1m0s"},
		"all pods are drained": {DrainRequired, 0, func(s *oneNode) {
			s.Policy.Drain = drain
			s.pods(&Pod{Namespace: "x", Name: "cpu", Controlled: true}, &Pod{Name: "agent", Agent: true}, &Pod{Name: "operator", Own: true, Controlled: true},
				&Pod{Name: "stays", Controlled: true, Labels: map[string]string{label.DrainSkip: "true"}})
		}, "evict cpu; a waits for pod x/cpu to go; wake in 1m0s"},
		"the drain takes too long": {DrainRequired, time.Minute, func(s *oneNode) {
			s.Policy.Drain = drain
			s.pods(&Pod{Namespace: "x", Name: "cpu", Controlled: true})
		}, wantDeferred + "pod x/cpu did not go within 1m0s: see its PodDisruptionBudget, finalizers and terminationGracePeriodSeconds"},
		"somebody uncordons it": {PodDeletion, 0, func(s *oneNode) { s.node.Cordoned = false; s.pods(gpu("p")) },
			"a: unschedulable true; evict p; a waits for pod x/p to go; wake in 5m0s"},
		"the policy comes back": {PodDeletion, 0, func(s *oneNode) { s.upgraded(); s.pods(gpu("p")); s.proven(0) },
			"a: upgrade-done; a: unschedulable false"},
		"a person skips it before its driver has gone": {PodDeletion, 0, func(s *oneNode) { s.node.Labels[label.UpgradeSkip] = "true" },
			"a: ; a: unschedulable false"},

		// The driver.
		"the DaemonSet is not as it should be yet": {PodRestart, 0, func(s *oneNode) { s.Sets["jammy"] = Set{Digest: "old"} },
			"a waits for DaemonSet ds-jammy to be updated"},
		"the old driver pod goes":       {PodRestart, 0, func(*oneNode) {}, "delete driver-a; a waits for driver pod driver-a to end"},
		"the old driver pod is going":   {PodRestart, 0, func(s *oneNode) { s.driver.Deleting = true }, "a waits for driver pod driver-a to end"},
		"the new driver pod is to come": {PodRestart, 0, func(s *oneNode) { s.driver = nil }, "a waits for the driver pod to be created"},
		"the new driver pod is coming":  {PodRestart, 0, func(s *oneNode) { s.upgraded(); s.driver.Ready = false }, "a waits for driver pod driver-a to be ready"},
		"the new driver pod fails": {PodRestart, 0, func(s *oneNode) { s.upgraded(); s.driver.Ready, s.driver.Failing = false, "it crashes" },
			"a: upgrade-failed; a failed: driver pod driver-a: it crashes"},
		"another DaemonSet is to serve it": {PodRestart, 0, func(s *oneNode) { s.node.Labels[label.Driver] = "old"; s.driver.DaemonSet = "ds-old" },
			`a: driver ""; a waits for driver pod driver-a to end`},
		"another DaemonSet serves it": {PodRestart, 0, func(s *oneNode) { delete(s.node.Labels, label.Driver); s.driver = nil },
			`a: driver "jammy"; a waits for the driver pod to be created`},
		"nobody takes the old driver pod away": {PodRestart, 0, func(s *oneNode) { delete(s.node.Labels, label.Driver); s.driver.DaemonSet = "" },
			"delete driver-a; a waits for driver pod driver-a to end"},
		"switched off while there is no driver": {PodRestart, 0, func(s *oneNode) { s.Policy.Auto, s.driver = false, nil }, "a waits for the driver pod to be created"},

		"operands are to let go of the driver": {PodRestart, time.Minute, func(s *oneNode) {
			s.node.Labels[label.Deploy+"device-plugin"] = "true"
			s.pods(&Pod{Namespace: "gpu", Name: "plugin", UID: "p", Own: true, Agent: true}, &Pod{UID: "d", Own: true, Agent: true}, &Pod{UID: "c", Agent: true})
		}, "a: device-plugin paused-for-driver-upgrade; a waits for pod gpu/plugin to let go of the driver; wake in 1m0s"},
		"operands are paused": {PodRestart, time.Minute, func(s *oneNode) {
			s.node.Labels[label.Deploy+"device-plugin"] = label.Paused
			s.Pods = nil
		}, "a waits for the operands to leave; wake in 1m0s"},
		"operands have let go of the driver": {PodRestart, time.Minute, func(s *oneNode) { s.node.Labels[label.Deploy+"device-plugin"] = label.Paused },
			"delete driver-a; a waits for driver pod driver-a to end"},
		"an operand does not let go of the driver": {PodRestart, 2 * time.Minute, func(s *oneNode) {
			s.node.Labels[label.Deploy+"device-plugin"] = label.Paused
			s.pods(&Pod{Namespace: "gpu", Name: "plugin", UID: "p", Own: true, Agent: true})
		}, "delete driver-a; a waits for driver pod driver-a to end"},
		"operands come back": {PodRestart, time.Minute, func(s *oneNode) { s.node.Labels[label.Deploy+"device-plugin"] = label.Paused; s.driver = nil },
			"a: device-plugin true; a waits for the driver pod to be created"},
		"operands stay away while the driver is unloaded": {PodRestart, time.Minute, func(s *oneNode) { s.node.Labels[label.Deploy+"device-plugin"] = label.Paused; s.driver.Deleting = true },
			"a waits for driver pod driver-a to end"},
		"a DaemonSet's pod uses the GPUs": {PodRestart, time.Minute, func(s *oneNode) { s.pods(agent("monitor")) },
			"a waits for pod x/monitor to let go of the driver; wake in 4m0s"},
		"a DaemonSet's pod goes on using the GPUs": {PodRestart, 5 * time.Minute, func(s *oneNode) { s.pods(agent("monitor")) },
			wantDeferred + "pod x/monitor holds the driver and cannot be evicted: a DaemonSet's pod comes straight back. Keep it off the node (label it is selected by), " +
				"label the pod nvidia.com/gpu-driver-upgrade-drain.skip=true, or set podDeletion.force in spec.driver.upgradePolicy"},
		"a DaemonSet's pod goes on using the GPUs, by force": {PodRestart, 2 * time.Minute, func(s *oneNode) {
			s.Policy.Deletion.Force = true
			s.pods(agent("monitor"))
		}, "delete driver-a; a waits for driver pod driver-a to end, while pod x/monitor uses the GPUs"},
		"a DaemonSet's pod may stay": {PodRestart, time.Minute, func(s *oneNode) {
			stays := agent("monitor")
			stays.Labels = map[string]string{label.DrainSkip: "true"}
			s.pods(stays)
		}, "delete driver-a; a waits for driver pod driver-a to end, while pod x/monitor uses the GPUs"},
		"a DaemonSet's pod that may stay is named beside one that must go": {PodRestart, 5 * time.Minute, func(s *oneNode) {
			stays := agent("stays")
			stays.Labels = map[string]string{label.DrainSkip: "true"}
			s.pods(stays, agent("monitor"))
		}, wantDeferred + "pod x/monitor, x/stays holds the driver and cannot be evicted: a DaemonSet's pod comes straight back. Keep it off the node (label it is selected by), " +
			"label the pod nvidia.com/gpu-driver-upgrade-drain.skip=true, or set podDeletion.force in spec.driver.upgradePolicy"},
		"a DaemonSet's pod that may stay keeps the new driver from starting": {PodRestart, time.Minute, func(s *oneNode) {
			stays := agent("stays")
			stays.Labels = map[string]string{label.DrainSkip: "true"}
			s.pods(stays)
			s.upgraded()
			s.driver.Ready, s.driver.Failing = false, "it crashes"
		}, "a: upgrade-failed; a failed: driver pod driver-a: it crashes, while pod x/stays uses the GPUs"},
		"the pod that keeps the driver in use is named": {PodRestart, time.Minute, func(s *oneNode) { s.driver.Deleting = true; s.pods(agent("monitor")) },
			"a waits for driver pod driver-a to end, while pod x/monitor uses the GPUs"},
		"operands are NVIDIA's": {PodRestart, time.Minute, func(s *oneNode) {
			s.node.Labels[label.Deploy+"device-plugin"], s.node.Labels[label.HandOver] = "true", label.Product
		}, "delete driver-a; a waits for driver pod driver-a to end"},

		// Validation.
		"it is proven":     {PodRestart, 0, func(s *oneNode) { s.upgraded(); s.proven(time.Second) }, "a: upgrade-done; a: unschedulable false"},
		"nobody proves it": {PodRestart, 0, func(s *oneNode) { s.upgraded(); s.node.Labels[label.Deploy+"operator-validator"] = "false" }, "a: upgrade-done; a: unschedulable false"},
		"the proof is old": {ValidationRequired, 4 * time.Second, func(s *oneNode) { s.upgraded() }, "a waits for the proof of the driver: it is older than the driver pod; wake in 6s"},
		"nobody has said so since": {ValidationRequired, time.Minute, func(s *oneNode) { s.upgraded(); s.node.GPUReady.Renewed = noon.Add(-2 * time.Minute) },
			"a waits for the proof of the driver: it is older than the driver pod; wake in 9m0s"},
		"the old proof holds": {ValidationRequired, 10 * time.Second, func(s *oneNode) { s.upgraded() }, "a: upgrade-done; a: unschedulable false"},
		"there is no proof":   {ValidationRequired, time.Minute, func(s *oneNode) { s.upgraded(); s.node.GPUReady = fleet.Condition{} }, "a waits for the proof of the driver: the Node has no condition GPUReady; is the validator there?; wake in 9m0s"},
		"the node's clock is behind": {ValidationRequired, time.Minute, func(s *oneNode) {
			s.upgraded()
			s.driver.Started = s.driver.Started.Add(-8 * time.Minute)
			s.node.GPUReady.Since, s.node.GPUReady.Renewed = s.driver.Started.Add(time.Second), s.driver.Started.Add(time.Second)
		}, "a: upgrade-done; a: unschedulable false"},
		"the node's clock is ahead, and its proof is old": {ValidationRequired, time.Minute, func(s *oneNode) {
			s.upgraded()
			s.driver.Started = s.driver.Started.Add(8 * time.Minute)
			s.node.GPUReady.Since, s.node.GPUReady.Renewed = s.driver.Started.Add(-time.Second), s.driver.Started.Add(-time.Second)
		}, "a waits for the proof of the driver: it is older than the driver pod; wake in 9m0s"},
		"the kubelet has not said when the pod started": {ValidationRequired, time.Minute, func(s *oneNode) {
			s.upgraded()
			s.driver.Started = time.Time{}
		}, "a waits for the proof of the driver: it is older than the driver pod; wake in 9m0s"},
		"the proof is refused": {ValidationRequired, 10 * time.Minute, func(s *oneNode) {
			s.upgraded()
			s.node.GPUReady.Status, s.node.GPUReady.Message = "False", "cuda: wrong sum"
		}, "a: upgrade-failed; a failed: the new driver is not proven after 10m0s: cuda: wrong sum"},
		"the policy changed": {ValidationRequired, 0, func(*oneNode) {}, "a: pod-restart-required; delete driver-a; a waits for driver pod driver-a to end"},
		"it was cordoned before": {ValidationRequired, time.Minute, func(s *oneNode) {
			s.upgraded()
			delete(s.node.Annotations, label.UpgradeCordoned)
			s.node.Annotations[label.InitiallyCordoned] = "true"
		}, "a: upgrade-done"},

		// After a failure.
		"it has failed": {Failed, time.Hour, func(s *oneNode) { s.failNewDriver(); s.node.Annotations[label.UpgradeReason] = "so" }, "a failed: so"},
		"it has failed for its pods, as an older operator says": {Failed, time.Minute, func(s *oneNode) { s.pods(gpu("p")); s.node.Annotations[label.UpgradeReason] = "so" },
			wantDeferred + "so; wake in 59m0s"},
		"it recovers": {Failed, time.Hour, func(s *oneNode) { s.upgraded() }, "a: upgrade-done; a: unschedulable false"},
		"another driver is asked for": {Failed, time.Hour, func(s *oneNode) { s.node.Annotations[label.UpgradeTarget] = "jammy@bad" },
			"a: pod-restart-required; delete driver-a; a waits for driver pod driver-a to end"},
		"a person clears the label": {Unknown, 0, func(s *oneNode) {
			s.node.Cordoned = true
			s.node.Annotations[label.UpgradeCordoned] = "true"
			s.Pods = nil
		},
			"a: pod-deletion-required; a waits for its pods to be known"},
		"a person clears the label of an upgraded one": {Unknown, 0, func(s *oneNode) {
			s.node.Cordoned = true
			s.node.Annotations[label.UpgradeCordoned] = "true"
			s.upgraded()
			s.proven(0)
		}, "a: upgrade-done; a: unschedulable false"},

		// Upgrades that the reference began.
		"the reference cordoned it": {UncordonRequired, 0, func(s *oneNode) { s.upgraded(); clear(s.node.Annotations) }, "a: upgrade-done; a: unschedulable false"},
		"the reference was to cordon it": {CordonRequired, 0, func(s *oneNode) { clear(s.node.Annotations); s.node.Cordoned = false; s.pods(gpu("p")) },
			"a: pod-deletion-required; a: unschedulable true; evict p; a waits for pod x/p to go; wake in 5m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(c.state, c.since)
			c.given(s)
			got := strings.Split(describe(s.plan()), "; ")
			require.ElementsMatch(t, strings.Split(c.want, "; "), got)
		})
	}
}

func TestOrderOfUpgrades(t *testing.T) {
	percent := func(s string) *intstr.IntOrString { v := intstr.Parse(s); return &v }
	for name, c := range map[string]struct {
		parallel    int
		unavailable string
		nodes       string // by name: a letter each; upper case: cordoned; "!": not ready; "*": in flight; "#": failed
		want        string
	}{
		"one at a time":                       {1, "100%", "a b c", "a"},
		"the cordoned ones first":             {1, "100%", "a B c", "B"},
		"as many as may be away":              {0, "2", "a b c", "a b"},
		"a part is rounded up":                {0, "25%", "a b c d e", "a b"},
		"one that is away counts":             {0, "2", "a! b c", "b"},
		"a cordoned one is away anyway":       {0, "1", "a B c", "B"},
		"one in flight counts":                {2, "100%", "a* b c", "b"},
		"none while one in flight is the one": {1, "100%", "a* b c", ""},
		"none after a failure":                {0, "100%", "a# b C", ""},
		"none may be away":                    {1, "0", "a b", ""},
		"no limit":                            {0, "100%", "a b C", "C a b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(Required, 0)
			s.Policy.MaxParallel, s.Policy.MaxUnavailable, s.Pods, s.Drivers = c.parallel, percent(c.unavailable), nil, map[string]*Driver{}
			for word := range strings.FieldsSeq(c.nodes) {
				state := Required
				switch {
				case strings.HasSuffix(word, "*"):
					state = PodDeletion
				case strings.HasSuffix(word, "#"):
					state = Failed
				}
				n := newOneNode(state, 0).node
				n.Name = strings.TrimRight(word, "!*#")
				n.Cordoned = n.Cordoned || n.Name != strings.ToLower(n.Name)
				n.Ready = !strings.HasSuffix(word, "!")
				s.Nodes = append(s.Nodes, n)
				s.Drivers[n.Name] = s.driver
				if state == Failed {
					failed := newOneNode(Failed, 0)
					failed.failNewDriver()
					s.Drivers[n.Name] = failed.driver
				}
			}
			var begun []string
			for _, p := range NewPlan(s.Input).Patches {
				if p.Labels[label.UpgradeState] != nil {
					begun = append(begun, p.Node)
				}
			}
			require.Equal(t, c.want, strings.Join(begun, " "))
		})
	}
}

// As docs/upgrade.md says.
func TestAtMostFiveOfAHundredNodes(t *testing.T) {
	limit := func(s string) *intstr.IntOrString { v := intstr.Parse(s); return &v }
	for name, c := range map[string]struct {
		parallel                int
		unavailable             string
		nodes, broken, cordoned int
		begun                   int
	}{
		"both limits":                  {5, "5", 100, 0, 0, 5},
		"as a percentage":              {5, "5%", 100, 0, 0, 5},
		"a percentage is rounded up":   {0, "5%", 101, 0, 0, 6},
		"maxUnavailable alone":         {1, "5", 100, 0, 0, 1},
		"maxParallelUpgrades alone":    {5, "25%", 100, 20, 0, 5},
		"two are broken":               {5, "5", 100, 2, 0, 3},
		"five are broken":              {5, "5", 100, 5, 0, 0},
		"cordoned ones take no room":   {5, "5", 100, 0, 3, 5},
		"cordoned ones within the two": {2, "5", 100, 0, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(Required, 0)
			s.Policy.MaxParallel, s.Policy.MaxUnavailable, s.Pods, s.Drivers = c.parallel, limit(c.unavailable), nil, map[string]*Driver{}
			for i := range c.nodes {
				n := newOneNode(Required, 0).node
				n.Name, n.Ready, n.Cordoned = fmt.Sprintf("n%03d", i), i >= c.broken, i >= c.nodes-c.cordoned
				s.Nodes = append(s.Nodes, n)
				s.Drivers[n.Name] = s.driver
			}
			plan := NewPlan(s.Input)
			require.Equal(t, c.begun, plan.Counts.InProgress)
			require.Equal(t, c.nodes-c.begun, plan.Counts.Pending)
		})
	}
}

func TestUnwritableNode(t *testing.T) {
	refused := Refusal{Why: "the Node cannot be written: a webhook says no", Since: noon.Add(-3 * time.Minute), Next: noon.Add(30 * time.Second)}
	pending := func(name string) *fleet.Node {
		n := newOneNode(Required, 0).node
		n.Name = name
		return n
	}
	for name, c := range map[string]struct {
		state State
		given func(*oneNode)
		want  string
		fails int // nodes that count as failed
	}{
		"it waits for its turn, and another goes": {Required, func(*oneNode) {},
			"b: pod-restart-required; b: unschedulable true; a waits for the Node cannot be written: a webhook says no; wake in 30s", 1},
		"it is on its way, and another goes": {PodDeletion, func(s *oneNode) { s.pods(&Pod{Name: "p", GPU: true, Controlled: true}) },
			"b: pod-restart-required; b: unschedulable true; a waits for the Node cannot be written: a webhook says no; wake in 30s", 1},
		"as many as may be away are": {PodDeletion, func(s *oneNode) { s.Policy.MaxUnavailable = new(intstr.FromInt32(1)) },
			"a waits for the Node cannot be written: a webhook says no; wake in 30s", 1},
		"it is tried again while a turn is free": {PodDeletion, func(s *oneNode) { s.Refused["a"] = Refusal{Why: "no", Since: refused.Since, Next: noon} },
			"a: pod-restart-required; delete driver-a; a waits for no", 1},
		"the others go first": {Required, func(s *oneNode) { s.Refused["a"] = Refusal{Why: "no", Since: refused.Since, Next: noon} },
			"b: pod-restart-required; b: unschedulable true; a waits for no", 1},
		"its new driver fails": {PodRestart, func(s *oneNode) { s.upgraded(); s.driver.Ready, s.driver.Failing = false, "it crashes" },
			"a failed: driver pod driver-a: it crashes", 1},
		"its new driver is not proven": {ValidationRequired, func(s *oneNode) {
			s.upgraded()
			s.node.GPUReady.Status, s.node.GPUReady.Message = "False", "cuda: wrong sum"
			s.Refused["a"] = Refusal{Why: "no", Since: noon.Add(-10 * time.Minute), Next: noon.Add(30 * time.Second)}
		}, "a failed: the new driver is not proven after 10m0s: cuda: wrong sum", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(c.state, 0)
			s.Refused = map[string]Refusal{"a": refused}
			other := pending("b")
			s.Nodes, s.Pods["b"] = append(s.Nodes, other), []*Pod{}
			c.given(s)
			s.Nodes = append(s.Nodes, s.node)
			d := *s.driver
			d.Digest, d.Name = "old", "driver-b"
			s.Drivers = map[string]*Driver{"a": s.driver, "b": &d}
			p := NewPlan(s.Input)
			got := describe(p)
			got = strings.ReplaceAll(got, "; delete driver-b; b waits for driver pod driver-b to end", "")
			got = strings.ReplaceAll(strings.ReplaceAll(got, "delete driver-b; ", ""), "; b waits for driver pod driver-b to end", "")
			require.ElementsMatch(t, strings.Split(c.want, "; "), slices.DeleteFunc(strings.Split(got, "; "), func(w string) bool { return w == "" || w == "b: upgrade-required" }))
			require.Equal(t, c.fails, p.Counts.Failed)
			require.Equal(t, p.Counts.Total, p.Counts.Done+p.Counts.InProgress+p.Counts.Pending+p.Counts.Failed)
		})
	}
}

func TestPodsThatUseGPUs(t *testing.T) {
	limits := func(name corev1.ResourceName) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}}
	}
	container := func(c corev1.Container) corev1.PodSpec { return corev1.PodSpec{Containers: []corev1.Container{c}} }
	env := func(value string) corev1.PodSpec {
		return container(corev1.Container{Env: []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: value}}})
	}
	host := func(path string) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}}
	}
	cdi := func(device string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"cdi.k8s.io/a": device}}}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"renamed GPU":     {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("nvidia.com/a100-small")})}, true},
		"NIC":             {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("nvidia.com/hostdev")})}, false},
		"debugged":        {&corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: env("all").Containers[0].Env}}}}}, true},
		"GPU":             {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("nvidia.com/gpu")})}, true},
		"share":           {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("nvidia.com/gpu.shared")})}, true},
		"MIG device":      {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("nvidia.com/mig-1g.10gb")})}, true},
		"environment":     {&corev1.Pod{Spec: env("all")}, true},
		"void":            {&corev1.Pod{Spec: env("void")}, false},
		"none":            {&corev1.Pod{Spec: env("none")}, false},
		"device nodes":    {&corev1.Pod{Spec: host("/dev/nvidia0")}, true},
		"other devices":   {&corev1.Pod{Spec: host("/dev/fuse")}, false},
		"CDI":             {cdi("nvidia.com/gpu=0"), true},
		"CDI of another":  {cdi("vendor.example/nic=0"), false},
		"nothing of GPUs": {&corev1.Pod{Spec: container(corev1.Container{Resources: limits("cpu")})}, false},
	} {
		require.Equal(t, c.want, ObservePod(c.pod).GPU, name)
	}
	require.Equal(t, "gpu", ObservePod(&corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: new("gpu")}}).Class)
}

func TestLeavingNodesAreReleased(t *testing.T) {
	s := newOneNode(DrainRequired, 0)
	nvidias := newOneNode(DrainRequired, 0).node
	nvidias.Name, nvidias.Annotations = "b", nil
	clear(nvidias.Labels)
	nvidias.Labels[label.UpgradeState] = string(DrainRequired)
	s.Leaving = []*fleet.Node{s.node, nvidias}
	p := NewPlan(s.Input)
	require.Equal(t, "a: ; a: unschedulable false", describe(p))
	require.Zero(t, p.Counts)
}

func TestEachNodeGetsOnePatch(t *testing.T) {
	s := newOneNode(Required, 0)
	p := s.plan()
	one, ok := p.Patch(s.node, fleet.Patch{Labels: map[string]*string{"x": new("y")}})
	require.True(t, ok)
	body, err := one.JSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata": {"uid": "1", "resourceVersion": "7",
		"labels": {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required", "x": "y"},
		"annotations": {"gpuready.io/driver-upgrade.cordoned": "true", "gpuready.io/driver-upgrade.since": "2026-01-01T12:00:00Z", "gpuready.io/driver-upgrade.target": "jammy@new"}},
		"spec": {"unschedulable": true}}`, string(body))
	_, ok = (&Plan{}).Patch(s.node, fleet.Patch{})
	require.False(t, ok)
}

func TestFailingDriverPod(t *testing.T) {
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "no such tag"}}
	}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   string
	}{
		"starts":       {corev1.ContainerStatus{Name: "driver"}, ""},
		"is pulled":    {corev1.ContainerStatus{State: waiting("ErrImagePull")}, ""},
		"has no image": {corev1.ContainerStatus{State: waiting("ImagePullBackOff")}, "its image cannot be pulled: no such tag"},
		"crashes":      {corev1.ContainerStatus{RestartCount: 2, State: waiting("CrashLoopBackOff")}, ""},
		"crashes for ever": {corev1.ContainerStatus{Name: "driver", RestartCount: 5, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: "modprobe: no such device\nmore"}}}, "container driver does not stay up: modprobe: no such device"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c.status}}}
			require.Equal(t, c.want, ObserveDriver(pod).Failing)
		})
	}
}

// BenchmarkSteady measures a plan in which nothing is to be done, as made on every Node event.
func BenchmarkSteady(b *testing.B) {
	s := newOneNode(Done, 0)
	s.upgraded()
	s.Drivers = map[string]*Driver{}
	for i := range 5000 {
		n := *s.node
		n.Name = fmt.Sprint("node-", i)
		s.Nodes = append(s.Nodes, &n)
		s.Drivers[n.Name] = s.driver
	}
	b.ReportAllocs()
	for b.Loop() {
		NewPlan(s.Input)
	}
}

// An NVIDIADriver takes over the driver of a DaemonSet that is not its own.
func TestSameDriverOfAnotherDaemonSetIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		digest  string // of the DaemonSet that the node has
		own     bool   // it is the target's kind of DaemonSet, for another kernel
		upgrade bool
	}{
		"the same driver":    {digest: "new"},
		"another driver":     {digest: "old", upgrade: true},
		"of the same source": {digest: "new", own: true, upgrade: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(Unknown, 0)
			s.Sets["policy"] = Set{ID: "policy", Name: "ds-policy", Digest: c.digest}
			s.node.Labels[label.Driver] = "policy"
			s.driver.DaemonSet, s.driver.Digest = "ds-policy", c.digest
			s.Serves = func(string, fleet.Pool) bool { return true }
			s.IsOf = func(id string, _ fleet.Pool) bool { return id == "jammy" || c.own }
			p := s.plan()
			if c.upgrade {
				require.Equal(t, Counts{Total: 1, InProgress: 1}, p.Counts)
				return
			}
			require.Equal(t, Counts{Total: 1, Done: 1}, p.Counts)
			require.Empty(t, p.Assign)
			require.Empty(t, p.Delete)
		})
	}
}

// A node that was given back to NVIDIA's operator still has the condition of the time before, and pods
// use its driver. When it is handed over again, a person has decided about them.
func TestANodeThatIsHandedOverAgainGetsItsDriverAtOnce(t *testing.T) {
	for _, state := range []State{Unknown, Done, Required} {
		for _, handOver := range []bool{true, false} {
			s := newOneNode(state, 0)
			delete(s.node.Labels, label.Driver)
			s.node.GPUReady.Status = "True"
			s.driver, s.HandOver = nil, handOver
			s.Pods = nil // not known yet
			p := s.plan()
			if handOver {
				require.Equal(t, "jammy", p.Assign[s.node.Name], state)
			} else {
				require.Empty(t, p.Assign, state)
			}
		}
	}
}

func TestJoinedPlanIsAboutAllNodes(t *testing.T) {
	one := &Plan{Patches: []Patch{{Node: "b"}}, Assign: map[string]string{"b": "x"}, Failed: []Failure{{Node: "b"}}, NextPlan: noon.Add(time.Hour), Counts: Counts{Total: 1, Failed: 1}, Waiting: map[string]string{"b": "y"}}
	two := &Plan{Patches: []Patch{{Node: "a"}}, NextPlan: noon, Counts: Counts{Total: 2, Done: 1, Pending: 1, Skipped: 1}, Watch: []string{"a"}}
	all := Join(one, two)
	require.Equal(t, []Patch{{Node: "a"}, {Node: "b"}}, all.Patches, "Plan.Patch searches them")
	require.Equal(t, Counts{Total: 3, Done: 1, Pending: 1, Skipped: 1, Failed: 1}, all.Counts)
	require.Equal(t, noon, all.NextPlan)
	require.Equal(t, one.Assign, all.Assign)
	require.Equal(t, one.Failed, all.Failed)
	require.Equal(t, one.Waiting, all.Waiting)
	require.Equal(t, two.Watch, all.Watch)
}
