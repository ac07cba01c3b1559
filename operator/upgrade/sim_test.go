package upgrade

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// cluster is a simulated cluster with nodes, kubelets, validators, people, a DaemonSet
// controller, pods, and budgets that refuse evictions.
type cluster struct {
	t       *rapid.T
	now     time.Time
	policy  Policy
	nodes   map[string]*machine
	sets    map[string]Set
	version int  // of the driver that the policy requires
	byKern  bool // precompiled: one DaemonSet for each kernel
	held    bool // budgets refuse evictions
	broken  int  // a version that does not start
	serial  int
	sent    map[string]Patch // pending writes
	refused map[string]Refusal
	slow    bool // writes are delayed
}

// machine is a node and what runs on it.
type machine struct {
	fleet.Node
	people    bool // somebody cordoned it
	driver    *Driver
	pods      []*Pod
	mute      bool          // the validator repeats its last result
	locked    bool          // the Node cannot be written
	obstinate bool          // its pods do not end
	skew      time.Duration // of the node's clock
}

const kernels = "abc"

// operand is the label that places the simulated operand, which uses the driver.
const operand = label.Deploy + "device-plugin"

func (c *cluster) next() int { c.serial++; return c.serial }

func (c *cluster) add() {
	name := fmt.Sprintf("n%02d", c.next())
	m := &machine{
		Node: fleet.Node{Name: name, UID: name, Ready: true, GPU: true, Labels: map[string]string{operand: "true"}, Annotations: map[string]string{}},
		skew: time.Duration(rapid.IntRange(-30, 30).Draw(c.t, "minutes that its clock is ahead")) * time.Minute,
	}
	c.boot(m)
	c.nodes[name] = m
}

// boot boots a machine into some kernel.
func (c *cluster) boot(m *machine) {
	kernel := string(kernels[rapid.IntRange(0, len(kernels)-1).Draw(c.t, "kernel")])
	m.Pool = fleet.Pool{Kernel: kernel}
	m.Labels[label.Kernel] = kernel
	if m.driver != nil {
		m.driver.Ready = false
	}
	c.setCondition(m, "False")
	c.bumpVersion(m)
}

func (c *cluster) bumpVersion(m *machine) { m.Version = fmt.Sprint(c.next()) }

func (c *cluster) setCondition(m *machine, status string) {
	node := c.now.Add(m.skew)
	m.GPUReady.Renewed = node
	if string(m.GPUReady.Status) == status {
		return
	}
	m.GPUReady = fleet.Condition{Status: "False", Reason: "DriverMissing", Message: "driver: there is none", Since: node, Renewed: node}
	if status == "True" {
		m.GPUReady = fleet.Condition{Status: "True", Reason: "Ready", Since: node, Renewed: node}
	}
	c.bumpVersion(m)
}

func (c *cluster) target(kernel string) Target {
	t := Target{ID: "all", Digest: fmt.Sprintf("v%d", c.version)}
	if c.byKern {
		t.ID = "kernel-" + kernel
	}
	t.Name = "ds-" + t.ID
	return t
}

func (c *cluster) input() Input {
	in := Input{Policy: c.policy, Targets: map[fleet.Pool]Target{}, Sets: maps.Clone(c.sets), Drivers: map[string]*Driver{}, Pods: map[string][]*Pod{}, Now: c.now}
	for _, k := range kernels {
		in.Targets[fleet.Pool{Kernel: string(k)}] = c.target(string(k))
	}
	in.Writing, in.Refused = map[string]bool{}, map[string]Refusal{}
	for name, m := range c.nodes {
		p, ok := c.sent[name]
		if ok && p.Version == m.Version {
			in.Writing[name] = p.Begins()
		}
		if r := c.refused[name]; !r.Next.IsZero() {
			in.Refused[name] = r
		}
		n := m.Node
		n.Labels, n.Annotations = maps.Clone(m.Labels), maps.Clone(m.Annotations)
		in.Nodes = append(in.Nodes, &n)
		if m.driver != nil {
			d := *m.driver
			in.Drivers[name] = &d
		}
		if s := State(m.Labels[label.UpgradeState]); s.evicts() || s == PodRestart || s == Required && m.Annotations[label.UpgradeReason] != "" {
			in.Pods[name] = []*Pod{}
			for _, p := range m.pods {
				q := *p
				in.Pods[name] = append(in.Pods[name], &q)
			}
		}
	}
	return in
}

// runOperator makes a plan and carries it out, or only the first part of it.
func (c *cluster) runOperator(upTo int) (wrote bool) {
	c.apply()
	p := NewPlan(c.input())
	for name, id := range p.Assign {
		if upTo--; upTo < 0 {
			return true
		}
		set(c.nodes[name].Labels, label.Driver, id)
		c.bumpVersion(c.nodes[name])
		// Other parts of the plan for this node are refused: they were planned on another version.
		wrote = true
	}
	for _, q := range p.Patches {
		if upTo--; upTo < 0 {
			return true
		}
		if c.sent[q.Node].Version == q.Version || c.refused[q.Node].Next.After(c.now) {
			continue
		}
		if c.slow || c.nodes[q.Node].locked {
			c.sent[q.Node] = q
			c.refuse(q.Node)
			continue
		}
		wrote = c.write(q, false) || wrote
	}
	for _, r := range p.Evict {
		if upTo--; upTo < 0 {
			return true
		}
		if _, ok := c.sent[r.Node]; ok {
			continue
		}
		wrote = c.evict(r) || wrote
	}
	for _, r := range p.Delete {
		if upTo--; upTo < 0 {
			return true
		}
		if _, ok := c.sent[r.Node]; ok {
			continue
		}
		d := c.nodes[r.Node].driver
		if d != nil && d.UID == r.UID && !d.Deleting {
			require.Equal(c.t, PodRestart, c.state(r.Node), "a driver pod goes in its state only")
			m := c.nodes[r.Node]
			require.Equal(c.t, label.Paused, m.Labels[operand], "operands go before the driver")
			d.Deleting, d.End, wrote = true, c.now, true
		}
	}
	return wrote
}

func (c *cluster) state(node string) State { return State(c.nodes[node].Labels[label.UpgradeState]) }

// write plays the API server's part in a patch. Other nodes may have been cordoned between a
// plan and its late write.
func (c *cluster) write(p Patch, late bool) bool {
	m := c.nodes[p.Node]
	if m == nil || m.Version != p.Version {
		return false
	}
	body, err := p.JSON()
	require.NoError(c.t, err)
	var patch struct {
		Metadata struct{ Labels, Annotations map[string]*string }
		Spec     *struct{ Unschedulable bool }
	}
	require.NoError(c.t, json.Unmarshal(body, &patch))
	before := c.state(p.Node)
	for key, value := range patch.Metadata.Labels {
		set(m.Labels, key, deref(value))
	}
	for key, value := range patch.Metadata.Annotations {
		set(m.Annotations, key, deref(value))
	}
	wasCordoned := m.Cordoned
	if patch.Spec != nil {
		require.False(c.t, m.people && !patch.Spec.Unschedulable, "%s was cordoned by somebody, and stays so", m.Name)
		m.Cordoned = patch.Spec.Unschedulable
	}
	c.bumpVersion(m)
	begun := !before.InFlight() && before != Failed
	if after := c.state(p.Node); begun && after.InFlight() {
		c.checkLimits(wasCordoned || late)
	}
	return true
}

// refuse plays the API server's part in the write of a locked Node. It reports whether the
// write was refused. After a while the write is abandoned.
func (c *cluster) refuse(node string) bool {
	if m := c.nodes[node]; m == nil || !m.locked {
		return false
	}
	r, again := c.refused[node]
	if !again {
		r = Refusal{Why: node + " cannot be written", Since: c.now}
	}
	if c.now.Sub(r.Since) >= WriteDeadline {
		r.Next = c.now.Add(WriteRetry)
		delete(c.sent, node)
	}
	c.refused[node] = r
	return true
}

// checkLimits checks the policy's limits after a node has begun.
func (c *cluster) checkLimits(anyway bool) {
	var flying, away int
	for name, m := range c.nodes {
		if s := c.state(name); (s.InFlight() || s == Failed) && c.refused[name].Next.IsZero() && !c.neverEnds(m) {
			flying++
		}
		if m.Cordoned || !m.Ready {
			away++
		}
	}
	if c.policy.MaxParallel > 0 {
		require.LessOrEqual(c.t, flying, c.policy.MaxParallel, "nodes in flight")
	}
	if !anyway {
		require.LessOrEqual(c.t, away, c.policy.unavailable(len(c.nodes)), "nodes unavailable")
	}
}

// neverEnds reports whether a machine's driver pod should have ended.
func (c *cluster) neverEnds(m *machine) bool {
	return m.driver != nil && m.driver.Deleting && !c.now.Before(m.driver.End.Add(endTimeout))
}

// evict plays the parts of the API server and the kubelet in an eviction.
func (c *cluster) evict(r Removal) bool {
	m := c.nodes[r.Node]
	require.True(c.t, c.state(r.Node).evicts() && m.Cordoned, "pods are evicted from cordoned nodes only")
	for _, p := range m.pods {
		if p.UID == r.UID && !p.Deleting && !c.held {
			require.True(c.t, p.Controlled || p.Own || c.policy.Deletion.Force, "a pod that nothing makes anew")
			p.Deleting = true
			return true
		}
	}
	return false
}

// apply updates the DaemonSets as the policy requires.
func (c *cluster) apply() {
	wanted := map[string]bool{}
	for _, k := range kernels {
		t := c.target(string(k))
		wanted[t.ID] = true
		c.sets[t.ID] = Set{ID: t.ID, Digest: t.Digest}
		if c.byKern {
			c.sets[t.ID] = Set{ID: t.ID, Digest: t.Digest, Selector: map[string]string{label.Kernel: string(k)}}
		}
	}
	for _, m := range c.nodes {
		wanted[m.Labels[label.Driver]] = true
	}
	maps.DeleteFunc(c.sets, func(id string, _ Set) bool { return !wanted[id] })
}

// runOthers runs everything but the operator: DaemonSet controller, kubelets, validators.
func (c *cluster) runOthers() {
	c.now = c.now.Add(7 * time.Second)
	for _, name := range slices.Sorted(maps.Keys(c.sent)) {
		if c.refuse(name) {
			continue
		}
		if !c.slow || rapid.Bool().Draw(c.t, "arrives") {
			c.write(c.sent[name], true)
			delete(c.sent, name)
			delete(c.refused, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		m := c.nodes[name]
		c.runDaemonSet(m)
		if m.Ready {
			c.runKubelet(m)
		}
	}
}

func (c *cluster) runDaemonSet(m *machine) {
	s, ok := c.sets[m.Labels[label.Driver]]
	ok = ok && s.selects(m.Labels)
	i := slices.IndexFunc(m.pods, func(p *Pod) bool { return p.Agent })
	switch placed := m.Labels[operand] == "true"; {
	case placed && i < 0:
		m.pods = append(m.pods, &Pod{Namespace: "gpu", Name: fmt.Sprint("plugin-", c.next()), UID: fmt.Sprint(c.serial), Agent: true, Controlled: true, Own: true})
	case !placed && i >= 0:
		m.pods[i].Deleting = true
	}
	switch d := m.driver; {
	case d != nil && (!ok || d.DaemonSet != "ds-"+s.ID):
		if !d.Deleting {
			d.Deleting, d.End = true, c.now
		}
	case d == nil && ok:
		m.driver = &Driver{Name: fmt.Sprint("driver-", c.next()), UID: fmt.Sprint(c.serial), DaemonSet: "ds-" + s.ID, Digest: s.Digest, Started: c.now.Add(m.skew)}
	}
}

func (c *cluster) runKubelet(m *machine) {
	m.pods = slices.DeleteFunc(m.pods, func(p *Pod) bool { return p.Deleting && (!m.obstinate || p.Own) })
	d := m.driver
	switch {
	case d == nil:
	case d.Deleting:
		m.driver = nil // and its modules are unloaded
	case d.Digest == fmt.Sprintf("v%d", c.broken):
		d.Failing = "it crashes"
	default:
		d.Ready, d.Failing = true, ""
	}
	if m.mute {
		return
	}
	if m.driver.available() {
		c.setCondition(m, "True")
	} else {
		c.setCondition(m, "False")
	}
}

func set(m map[string]string, key, value string) {
	if value == "" {
		delete(m, key)
	} else {
		m[key] = value
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func newCluster(t *rapid.T) *cluster {
	limit := intstr.FromInt32(int32(rapid.IntRange(1, 3).Draw(t, "maxUnavailable")))
	if rapid.Bool().Draw(t, "percent") {
		limit = intstr.FromString(rapid.SampledFrom([]string{"1%", "25%", "50%", "100%"}).Draw(t, "maxUnavailablePercent"))
	}
	c := &cluster{
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), nodes: map[string]*machine{}, sent: map[string]Patch{}, refused: map[string]Refusal{}, sets: map[string]Set{}, version: 1,
		policy: Policy{
			Auto: true, MaxParallel: rapid.IntRange(0, 3).Draw(t, "maxParallel"), MaxUnavailable: &limit,
			Deletion: Eviction{Force: rapid.Bool().Draw(t, "force"), Timeout: 5 * time.Minute},
		},
	}
	if rapid.Bool().Draw(t, "drain") {
		c.policy.Drain = &Eviction{Force: c.policy.Deletion.Force, Timeout: 5 * time.Minute}
	}
	for range rapid.IntRange(1, 6).Draw(t, "nodes") {
		c.add()
	}
	return c
}
