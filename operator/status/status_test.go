package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var (
	jammy = fleet.Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-105-generic"}
	core  = fleet.Pool{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", RHCOS: "412.86.202303241612-0"}
)

func node(name string, status progress.Status, reason string) Node {
	p := progress.Progress{Status: status, Reason: reason, Message: "because", Since: now.Add(-time.Minute)}
	if status != progress.Ready {
		p.State = progress.Driver
	}
	return Node{&fleet.Node{Name: name, UID: name, Pool: jammy, Created: now.Add(-time.Hour)}, p}
}

func input(nodes ...Node) Input {
	return Input{Policy: &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 3}}, Now: now, Namespace: "gpus", Described: true, Tally: Count(nodes)}
}

// summary formats the state and the conditions as "type=status reason".
func summary(s v1.ClusterPolicyStatus) string {
	var all []string
	for _, c := range s.Conditions {
		all = append(all, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return string(s.State) + ": " + strings.Join(all[:3], ", ")
}

const denied = `apply DaemonSet n/x: daemonsets.apps "x" is forbidden: User "u" cannot patch resource "daemonsets" in API group "apps" in the namespace "n"`

func TestConditions(t *testing.T) {
	ready, waits, fails, unknown := node("a", progress.Ready, "Ready"), node("b", progress.Waiting, progress.ReasonStarting), node("c", progress.Failed, progress.ReasonImagePull), node("d", progress.Unknown, progress.ReasonStale)
	with := func(change func(*Input), nodes ...Node) Input {
		in := input(nodes...)
		change(&in)
		return in
	}
	missing := func(reason driver.Reason) func(*Input) {
		return func(in *Input) {
			in.Choices = []driver.Choice{{Pool: jammy, Problem: &driver.Problem{Reason: reason, Message: "r/driver:580-5.15.0-105-generic-ubuntu22.04 is missing", Keep: true}}}
		}
	}
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"all ready":         {input(ready), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=False NothingFailed"},
		"one on its way":    {input(ready, waits), "notReady: Ready=False NodesNotReady, Progressing=True NodesProgressing, Degraded=False NothingFailed"},
		"one failed":        {input(ready, fails), "notReady: Ready=False NodesNotReady, Progressing=False Settled, Degraded=True NodesFailed"},
		"one unknown":       {input(ready, unknown), "notReady: Ready=Unknown NodesUnknown, Progressing=False Settled, Degraded=False NothingFailed"},
		"one kept away":     {input(ready, node("e", progress.Excluded, "x")), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=False NothingFailed"},
		"all kept away":     {input(node("e", progress.Excluded, "x")), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=False NothingFailed"},
		"no GPU":            {input(), "ready: Ready=True NoGPUNodes, Progressing=False Settled, Degraded=False NothingFailed"},
		"no NFD":            {with(func(in *Input) { in.Described = false }), "notReady: Ready=False NoNodeFeatureLabels, Progressing=False Settled, Degraded=False NothingFailed"},
		"no NFD, by hand":   {with(func(in *Input) { in.Described = false }, ready), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=False NothingFailed"},
		"may not apply":     {with(func(in *Input) { in.Err = errors.New(denied) }, ready), "notReady: Ready=False RightsMissing, Progressing=False Settled, Degraded=True RightsMissing"},
		"cannot apply":      {with(func(in *Input) { in.Err = errors.New("apply DaemonSet x: forbidden") }, ready), "notReady: Ready=False ReconcileFailed, Progressing=False Settled, Degraded=True ReconcileFailed"},
		"image missing":     {with(missing(driver.PrecompiledImageMissing), ready), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=True PrecompiledImageMissing"},
		"registry is asked": {with(missing(driver.RegistryPending), ready), "ready: Ready=True AllNodesReady, Progressing=True RegistryPending, Degraded=False NothingFailed"},
		"upgrading":         {with(func(in *Input) { in.Upgrade = &v1.UpgradeStatus{Total: 2, Done: 1, InProgress: 1} }, ready), "ready: Ready=True AllNodesReady, Progressing=True DriverUpgrade, Degraded=False NothingFailed"},
		"upgrade stopped": {with(func(in *Input) {
			in.Upgrade, in.UpgradeError = &v1.UpgradeStatus{Total: 2, Pending: 1, Failed: 1}, "node a: pods do not go"
		}, ready), "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=True DriverUpgradeFailed"},
		"pods are replaced": {with(func(in *Input) { in.Rolling = []string{"x"} }, ready), "ready: Ready=True AllNodesReady, Progressing=True OperandsRolling, Degraded=False NothingFailed"},
		"ignored":           {with(func(in *Input) { in.Verdict = Ignored("older") }, ready), "ignored: Ready=False Ignored, Progressing=False Ignored, Degraded=False Ignored"},
		"NVIDIA's runs":     {with(func(in *Input) { in.Verdict = OtherOperator("Deployment gpu-operator/gpu-operator", "x=y") }, ready), "disabled: Ready=False OtherOperatorRuns, Progressing=False OtherOperatorRuns, Degraded=False OtherOperatorRuns"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Compute(c.in)
			require.Equal(t, c.want, summary(s))
			require.Equal(t, int64(3), s.ObservedGeneration)
			for _, c := range s.Conditions {
				require.NotEmpty(t, c.Message)
			}
			require.Equal(t, c.in.Verdict != nil, meta.IsStatusConditionTrue(s.Conditions, v1.ConditionStalled), "who waits for it is told whether waiting helps")
		})
	}
	exporter := ready
	exporter.Others = []progress.PodProblem{{State: progress.DCGMExporter, Problem: progress.Problem{Reason: progress.ReasonImagePull}}}
	s := Compute(input(exporter))
	require.Equal(t, "ready: Ready=True AllNodesReady, Progressing=False Settled, Degraded=True OperandsFailed", summary(s))
	require.Contains(t, meta.FindStatusCondition(s.Conditions, v1.ConditionDegraded).Message, "dcgm-exporter on a (ImagePullBackOff)")
}

func TestMissingPermissionIsReportedWithItsRemedy(t *testing.T) {
	in := input()
	in.Err = errors.New(denied)
	for _, kind := range []string{v1.ConditionReady, v1.ConditionDegraded} {
		message := meta.FindStatusCondition(Compute(in).Conditions, kind).Message
		require.Equal(t, "the operator may not patch daemonsets.apps in namespace n: "+RightsRemedy, message)
	}
}

func TestExactImageTagIsReported(t *testing.T) {
	in := input(node("a", progress.Ready, "Ready"))
	tag := "registry/driver:535-5.15.0-105-generic-ubuntu22.04"
	in.Choices = []driver.Choice{{Pool: jammy, Variant: driver.Precompiled, Name: "nvidia-driver-daemonset-x", Image: tag, Problem: &driver.Problem{Reason: driver.PrecompiledImageMissing, Message: tag + " is missing"}}}
	s := Compute(in)
	require.Contains(t, meta.FindStatusCondition(s.Conditions, v1.ConditionDegraded).Message, tag)
	require.Equal(t, []v1.PoolStatus{{Name: "amd64/ubuntu22.04/5.15.0-105-generic", OS: jammy.OS, Kernel: jammy.Kernel, Arch: "amd64", Nodes: 1, Ready: 1, Variant: "precompiled", DaemonSet: "nvidia-driver-daemonset-x", Image: tag, Reason: "PrecompiledImageMissing", Message: tag + " is missing"}}, s.Pools)
}

func TestUnservedFieldsAreReported(t *testing.T) {
	in := input()
	in.Unserved = []string{"kataManager: not served: remove it", "gds: not served"}
	s := Compute(in)
	require.Equal(t, []string{"gds: not served", "kataManager: not served: remove it"}, s.Unserved)
	c := meta.FindStatusCondition(s.Conditions, v1.ConditionUnserved)
	require.Equal(t, metav1.ConditionTrue, c.Status)
	require.Contains(t, c.Message, "these settings have no effect, and status.unserved tells why: gds, kataManager")
}

func TestStatusIsDeterministic(t *testing.T) {
	a, b := node("a", progress.Ready, "Ready"), node("b", progress.Failed, progress.ReasonCrashLoop)
	in := input(a, b)
	in.Choices = []driver.Choice{{Pool: core}, {Pool: jammy}}
	before := Compute(in)
	in.Policy.Status, in.Now = before, now.Add(time.Hour)
	in.Tally = Count([]Node{b, a})
	require.Equal(t, before, Compute(in))
	// Writing and reading it changes nothing.
	data, err := json.Marshal(before)
	require.NoError(t, err)
	var read v1.ClusterPolicyStatus
	require.NoError(t, json.Unmarshal(data, &read))
	in.Policy.Status = read
	again, err := json.Marshal(Compute(in))
	require.NoError(t, err)
	require.JSONEq(t, string(data), string(again))

	in.Tally = Count([]Node{a})
	s := Compute(in)
	require.Equal(t, now.Add(time.Hour), meta.FindStatusCondition(s.Conditions, v1.ConditionReady).LastTransitionTime.UTC())
	require.Equal(t, now, meta.FindStatusCondition(s.Conditions, v1.ConditionProgressing).LastTransitionTime.UTC(), "its status is the same")
}

func TestBlockedNodesAreReportedFirst(t *testing.T) {
	waiting := map[string]string{"a": "pod x/y to go", "b": "the driver pod to be created", "z": "pod team/trainer to go"}
	in := input(node("a", progress.Ready, "Ready"))
	in.Upgrade = &v1.UpgradeStatus{Total: 3, InProgress: 3, Waiting: Waiting(waiting, map[string]string{"z": "pod team/trainer cannot be evicted: a budget"})}
	require.Equal(t, []v1.UpgradeWait{{Node: "z", Message: "pod team/trainer cannot be evicted: a budget"}, {Node: "a", Message: "pod x/y to go"}, {Node: "b", Message: "the driver pod to be created"}}, in.Upgrade.Waiting)
	c := meta.FindStatusCondition(Compute(in).Conditions, v1.ConditionProgressing)
	require.Equal(t, "0 of 3 nodes have the new driver, 3 are on their way; z: pod team/trainer cannot be evicted: a budget; a: pod x/y to go; b: the driver pod to be created", c.Message)
	require.Empty(t, Waiting(nil, nil))
}

func TestStatusSizeIsBounded(t *testing.T) {
	var nodes []Node
	var choices []driver.Choice
	for i := range 5000 {
		n := node(fmt.Sprintf("node-%04d-%s", 5000-i, strings.Repeat("n", 200)), progress.Waiting, progress.ReasonStarting)
		if i%100 == 0 {
			n.Status = progress.Failed
		}
		n.Message = strings.Repeat("m", 4000)
		n.Pool.Kernel = fmt.Sprintf("%d-%s", i, strings.Repeat("k", 60))
		nodes = append(nodes, n)
		choices = append(choices, driver.Choice{Pool: n.Pool, Image: strings.Repeat("i", 250), Problem: &driver.Problem{Reason: driver.OSUnknown, Message: strings.Repeat("p", 4000)}})
	}
	in := input(nodes...)
	in.Choices = choices
	for i := range 500 {
		in.Unserved = append(in.Unserved, fmt.Sprintf("spec.%d.%s", i, strings.Repeat("f", 1000)))
	}
	waits := map[string]string{}
	for _, n := range nodes {
		waits[n.Name] = n.Message
	}
	in.Upgrade = &v1.UpgradeStatus{InProgress: 5000, Waiting: Waiting(waits, nil)}
	s := Compute(in)
	require.Len(t, s.Upgrade.Waiting, v1.MaxWaiting)
	require.Len(t, s.NotReady, v1.MaxNotReady)
	require.Len(t, s.Pools, v1.MaxPools)
	require.Len(t, s.Unserved, v1.MaxUnserved)
	require.Equal(t, nodes[4900].Name, s.NotReady[0].Node, "those that failed come first, by name")
	require.Equal(t, nodes[5000-100*v1.MaxNotReady].Name, s.NotReady[v1.MaxNotReady-1].Node)
	require.Equal(t, v1.NodesStatus{Total: 5000, Progressing: 4950, Failed: 50}, *s.Nodes)
	data, err := json.Marshal(s)
	require.NoError(t, err)
	require.Less(t, len(data), 150<<10)
}

func TestEvents(t *testing.T) {
	conditions := func(nodes ...Node) []metav1.Condition { return Compute(input(nodes...)).Conditions }
	// from returns the Events of nodes that have changed.
	from := func(before, now []Node) (told []string) {
		var changes []Change
		for i := range before {
			changes = append(changes, Change{before[i].Name, before[i].Progress, now[i].Progress})
		}
		for _, e := range Events(conditions(before...), conditions(now...), changes) {
			told = append(told, strings.TrimSpace(e.Node+" "+e.Reason))
		}
		return told
	}
	one := func(status progress.Status, reason string) []Node { return []Node{node("a", status, reason)} }
	starts, fails, ready := one(progress.Waiting, progress.ReasonStarting), one(progress.Failed, progress.ReasonImagePull), one(progress.Ready, "Ready")
	first := Events(nil, conditions(starts...), nil)
	require.Len(t, first, 1)
	require.Equal(t, "NodesNotReady", first[0].Reason)
	require.Equal(t, []string{"NodesFailed", "a ImagePullBackOff"}, from(starts, fails))
	require.Empty(t, from(fails, fails))
	require.Empty(t, Events(conditions(fails...), conditions(fails...), nil), "an operator that was started again repeats nothing")
	require.Equal(t, []string{"AllNodesReady", "NothingFailed", "a GPUNodeReady"}, from(fails, ready))
	wrong := one(progress.Failed, "WrongResult")
	wrong[0].State = progress.PluginValidation
	require.Equal(t, []string{"NodesFailed"}, from(starts, wrong), "what the validator found it tells itself")
	require.Equal(t, []string{"NodesFailed", "a BuildFailed"}, from(starts, one(progress.Failed, "BuildFailed")), "the driver's container has ended")

	var many, none []Node
	for i := range 500 {
		many = append(many, node(fmt.Sprint(i), progress.Failed, progress.ReasonImagePull))
		none = append(none, node(fmt.Sprint(i), progress.Waiting, progress.ReasonStarting))
	}
	require.Len(t, from(none, many), 26)
}

func TestProvisioning(t *testing.T) {
	policy := now.Add(-time.Minute)
	at := func(name string, created time.Time, steps int) Node {
		n := node(name, progress.Waiting, "x")
		n.Created, n.Steps = created, progress.Sequence()[:steps]
		return n
	}
	p := NewProvisioning(nil)
	old := now.Add(-time.Hour)
	observe := func(after time.Duration, nodes ...Node) {
		p.Observe(nodes, policy, now.Add(after))
	}
	observe(time.Second, at("new", now, 0), at("old", old, 0), at("half", now, 3))
	observe(12*time.Second, at("new", now, 2), at("old", old, 8), at("half", now, 4))
	observe(20*time.Second, at("new", now, 0), at("old", old, 0))
	observe(40*time.Second, at("new", now, 8), at("old", old, 8))
	got := map[string]int64{}
	for _, s := range p.Status() {
		got[s.Step] = s.Count*1000 + s.SumSeconds
	}
	require.Equal(t, map[string]int64{"prerequisites": 1012, "driver": 1012, "driver-validation": 1040, "toolkit": 2052, "toolkit-validation": 1040, "device-plugin": 1040, "plugin-validation": 1040, "feature-labels": 1040}, got)

	again := NewProvisioning(p.Status())
	again.Observe([]Node{at("new", now, 8)}, policy, now.Add(50*time.Second))
	require.Equal(t, p.Status(), again.Status(), "a restart counts nothing twice")
	require.Equal(t, int64(1), p.Status()[0].Buckets[2], "10 s to 15 s")
}

func TestAGroupWaitsSinceItsFirstNode(t *testing.T) {
	a, b, ready := node("a", progress.Waiting, "x"), node("b", progress.Waiting, "x"), node("c", progress.Ready, "Ready")
	b.Since = a.Since.Add(-time.Minute)
	require.ElementsMatch(t, []Group{
		{Place: Place{jammy, progress.Driver, progress.Waiting}, Nodes: 2, Since: b.Since},
		{Place: Place{jammy, "", progress.Ready}, Nodes: 1},
	}, Count([]Node{a, b, ready}).Groups)
}
