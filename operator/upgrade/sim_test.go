package upgrade

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// cluster is a simulated one: nodes with kubelets, validators and people, a DaemonSet
// controller, pods, and budgets that refuse their eviction.
type cluster struct {
	t       *rapid.T
	now     time.Time
	policy  Policy
	nodes   map[string]*machine
	sets    map[string]Set
	version int  // of the driver that the policy asks for
	byKern  bool // precompiled: one DaemonSet by kernel
	held    bool // budgets refuse evictions
	broken  int  // a version that does not start
	serial  int
	sent    map[string]Patch // writes that are on their way
	slow    bool             // writes take their time
}

// machine is a node with what runs on it.
type machine struct {
	fleet.Node
	people bool // somebody cordoned it
	driver *Driver
	pods   []*Pod
	mute   bool // the validator says what it said before
}

const kernels = "abc"

// operand places the one that is simulated: it uses the driver.
const operand = label.Deploy + "device-plugin"

func (c *cluster) next() int { c.serial++; return c.serial }

func (c *cluster) add() {
	name := fmt.Sprintf("n%02d", c.next())
	m := &machine{Node: fleet.Node{Name: name, UID: name, Ready: true, GPU: true, Labels: map[string]string{operand: "true"}, Annotations: map[string]string{}}}
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
	c.say(m, "False")
	c.touched(m)
}

func (c *cluster) touched(m *machine) { m.Version = fmt.Sprint(c.next()) }

func (c *cluster) say(m *machine, status string) {
	m.GPUReady.Said = c.now
	if string(m.GPUReady.Status) == status {
		return
	}
	m.GPUReady = fleet.Condition{Status: "False", Reason: "DriverMissing", Message: "driver: there is none", Since: c.now, Said: c.now}
	if status == "True" {
		m.GPUReady = fleet.Condition{Status: "True", Reason: "Ready", Since: c.now, Said: c.now}
	}
	c.touched(m)
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
	in.Writing = map[string]bool{}
	for name, m := range c.nodes {
		p, ok := c.sent[name]
		in.Writing[name] = ok && p.Version == m.Version
		n := m.Node
		n.Labels, n.Annotations = maps.Clone(m.Labels), maps.Clone(m.Annotations)
		in.Nodes = append(in.Nodes, &n)
		if m.driver != nil {
			d := *m.driver
			in.Drivers[name] = &d
		}
		if s := State(m.Labels[label.UpgradeState]); s.evicts() || s == PodRestart {
			in.Pods[name] = []*Pod{}
			for _, p := range m.pods {
				q := *p
				in.Pods[name] = append(in.Pods[name], &q)
			}
		}
	}
	return in
}

// operate plans and carries the plan out, or the first part of it.
func (c *cluster) operate(upTo int) (wrote bool) {
	c.apply()
	p := Make(c.input())
	for name, id := range p.Assign {
		if upTo--; upTo < 0 {
			return true
		}
		set(c.nodes[name].Labels, label.Driver, id)
		c.touched(c.nodes[name])
		// What else was planned of this node is refused now: it was planned on another version.
		wrote = true
	}
	for _, q := range p.Patches {
		if upTo--; upTo < 0 {
			return true
		}
		if c.sent[q.Node].Version == q.Version {
			continue
		}
		if c.slow {
			c.sent[q.Node] = q
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
			d.Deleting, wrote = true, true
		}
	}
	return wrote
}

func (c *cluster) state(node string) State { return State(c.nodes[node].Labels[label.UpgradeState]) }

// write is the API server's part in a patch. Where it comes late, other nodes may have
// been cordoned since it was planned.
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
	c.touched(m)
	begun := !before.InFlight() && before != Failed
	if after := c.state(p.Node); begun && after.InFlight() {
		c.checkLimits(wasCordoned || late)
	}
	return true
}

// checkLimits runs when a node has just begun.
func (c *cluster) checkLimits(anyway bool) {
	var flying, away int
	for name, m := range c.nodes {
		if s := c.state(name); s.InFlight() || s == Failed {
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

// evict is the API server's and the kubelet's part in an eviction.
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

// apply brings the DaemonSets to what the policy asks for.
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

// live lets everybody else do what they do: DaemonSet controller, kubelets, validators.
func (c *cluster) live() {
	c.now = c.now.Add(7 * time.Second)
	for _, name := range slices.Sorted(maps.Keys(c.sent)) {
		if !c.slow || rapid.Bool().Draw(c.t, "arrives") {
			c.write(c.sent[name], true)
			delete(c.sent, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		m := c.nodes[name]
		c.daemon(m)
		if m.Ready {
			c.kubelet(m)
		}
	}
}

func (c *cluster) daemon(m *machine) {
	s, ok := c.sets[m.Labels[label.Driver]]
	ok = ok && s.serves(m.Labels)
	i := slices.IndexFunc(m.pods, func(p *Pod) bool { return p.Agent })
	switch placed := m.Labels[operand] == "true"; {
	case placed && i < 0:
		m.pods = append(m.pods, &Pod{Namespace: "gpu", Name: fmt.Sprint("plugin-", c.next()), UID: fmt.Sprint(c.serial), Agent: true, Controlled: true, Own: true})
	case !placed && i >= 0:
		m.pods[i].Deleting = true
	}
	switch d := m.driver; {
	case d != nil && (!ok || d.DaemonSet != "ds-"+s.ID):
		d.Deleting = true
	case d == nil && ok:
		m.driver = &Driver{Name: fmt.Sprint("driver-", c.next()), UID: fmt.Sprint(c.serial), DaemonSet: "ds-" + s.ID, Digest: s.Digest, Created: c.now}
	}
}

func (c *cluster) kubelet(m *machine) {
	m.pods = slices.DeleteFunc(m.pods, func(p *Pod) bool { return p.Deleting })
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
	if m.driver.up() {
		c.say(m, "True")
	} else {
		c.say(m, "False")
	}
}

// disturb does one of the things that happen to a cluster.
func (c *cluster) disturb() {
	names := slices.Sorted(maps.Keys(c.nodes))
	m := c.nodes[rapid.SampledFrom(names).Draw(c.t, "node")]
	switch rapid.SampledFrom([]string{"pod", "pod", "job", "budget", "reboot", "kubelet", "driver", "edit", "edit", "kind", "break", "person", "clear", "set", "mute", "join", "leave", "wait", "slow", "slow"}).Draw(c.t, "what") {
	case "pod":
		if !m.Cordoned {
			m.pods = append(m.pods, &Pod{Namespace: "default", Name: fmt.Sprint("p", c.next()), UID: fmt.Sprint(c.serial), GPU: true, Controlled: true})
		}
	case "job":
		if !m.Cordoned {
			m.pods = append(m.pods, &Pod{Namespace: "default", Name: fmt.Sprint("p", c.next()), UID: fmt.Sprint(c.serial), GPU: true, Own: rapid.Bool().Draw(c.t, "own")})
		}
	case "budget":
		c.held = !c.held
	case "reboot":
		c.boot(m)
	case "kubelet":
		m.Ready = !m.Ready
		c.touched(m)
	case "driver":
		if m.driver != nil {
			m.driver.Deleting = true
		}
	case "edit":
		c.version = rapid.IntRange(max(1, c.version-1), c.version+1).Draw(c.t, "version")
	case "kind":
		c.byKern = !c.byKern
	case "break":
		c.broken = c.version
	case "person":
		c.person(m)
	case "clear":
		if c.state(m.Name) == Failed {
			delete(m.Labels, label.UpgradeState)
			c.touched(m)
		}
	case "set":
		clear(c.sets)
	case "mute":
		m.mute = !m.mute
	case "join":
		c.add()
	case "leave":
		if len(c.nodes) > 1 {
			delete(c.nodes, m.Name)
		}
	case "slow":
		c.slow = !c.slow
	case "wait":
		c.now = c.now.Add(5 * time.Minute)
	}
}

// person cordons a node that is nobody's, or uncordons one.
func (c *cluster) person(m *machine) {
	switch {
	case m.Cordoned:
		m.Cordoned, m.people = false, false
	case !c.state(m.Name).InFlight() && m.Annotations[label.UpgradeCordoned] == "":
		m.Cordoned, m.people = true, true
	}
	c.touched(m)
}

// heal ends what is in the way, as people would.
func (c *cluster) heal() {
	c.held, c.broken, c.slow = false, 0, false
	cordoned := 0
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		m := c.nodes[name]
		if m.people {
			cordoned++
		}
		// Where people have taken as many nodes away as may be, the rest waits for them.
		if m.people && cordoned >= c.policy.unavailable(len(c.nodes)) {
			m.people, m.Cordoned = false, false
		}
		m.Ready, m.mute = true, false
		for _, p := range m.pods {
			p.Deleting = p.Deleting || !p.Controlled
		}
		c.touched(m)
	}
}

func (c *cluster) clearFailures() {
	for name, m := range c.nodes {
		if c.state(name) == Failed {
			delete(m.Labels, label.UpgradeState)
			c.touched(m)
		}
	}
}

// settled says what is not as it should be in the end; "": nothing.
func (c *cluster) unsettled() string {
	for name, m := range c.nodes {
		t := c.target(m.Pool.Kernel)
		switch d := m.driver; {
		case d == nil || !d.up() || !d.of(t):
			return fmt.Sprintf("%s has driver pod %+v, and should have one of %v", name, d, t)
		case m.Labels[label.Driver] != t.ID:
			return name + " is another DaemonSet's"
		case m.Cordoned != m.people:
			return fmt.Sprintf("%s is cordoned: %v, by somebody: %v", name, m.Cordoned, m.people)
		case m.Labels[operand] != "true":
			return name + " has no operands"
		case c.state(name) != Done:
			return fmt.Sprintf("%s is in %q", name, c.state(name))
		case len(m.Annotations) > 0:
			return fmt.Sprintf("%s has annotations %v", name, m.Annotations)
		}
	}
	return ""
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
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), nodes: map[string]*machine{}, sent: map[string]Patch{}, sets: map[string]Set{}, version: 1,
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

// Whatever happens meanwhile, the limits hold; when it has stopped happening, every node
// has the driver that it should have, what the upgrade cordoned is uncordoned, what
// somebody cordoned is not, and nothing is written any more.
func TestARollEndsWellWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.live()
			case 2:
				c.operate(1 << 20)
			case 3:
				c.operate(rapid.IntRange(0, 4).Draw(t, "killed after")) // and another process goes on
			}
		}
		c.heal()
		const most = 400
		for range most {
			c.live()
			wrote := c.operate(1 << 20)
			// Timeouts may still run out meanwhile, and nodes fail.
			c.clearFailures()
			if !wrote && c.unsettled() == "" {
				break
			}
		}
		p := Make(c.input())
		require.Empty(t, c.unsettled(), "%+v\n%+v", c.policy, p)
		require.Empty(t, p.Patches)
		require.Empty(t, p.Assign)
		require.Empty(t, p.Evict)
		require.Empty(t, p.Delete)
		require.Equal(t, Counts{Total: len(c.nodes), Done: len(c.nodes)}, p.Counts)
	})
}

// Planning is a function: the order of the input does not matter, and what was written
// is not written again.
func TestAPlanIsTheSameTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.live()
			case 2:
				c.operate(1 << 20)
			}
			in := c.input()
			p := Make(in)
			slices.Reverse(in.Nodes)
			require.Equal(t, p, Make(in))
		}
		// Nobody else does anything: after a few writes there is nothing to write.
		c.held = true
		for i := 0; c.operate(1 << 20); i++ {
			require.Less(t, i, 12, "it writes and writes")
		}
	})
}

// Switched off, the upgrade lets go of all nodes but those that have only the new
// driver's start before them.
func TestSwitchedOffItLetsGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.live()
			case 2:
				c.operate(1 << 20)
			}
		}
		c.heal()
		c.policy.Auto = false
		for range 60 {
			c.live()
			c.operate(1 << 20)
		}
		for name, m := range c.nodes {
			require.Equal(t, m.people, m.Cordoned, "%s is cordoned by somebody, or not at all", name)
			require.Empty(t, c.state(name))
			require.Equal(t, "true", m.Labels[operand])
			for key := range m.Annotations {
				require.False(t, strings.Contains(key, "upgrade"), key)
			}
		}
	})
}
