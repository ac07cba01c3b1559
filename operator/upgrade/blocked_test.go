package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// addPending adds a node "b" that waits for its turn.
func (s *oneNode) addPending() {
	b := newOneNode(Unknown, 0)
	b.node.Name, b.node.UID = "b", "2"
	b.driver.Name, b.driver.UID = "driver-b", "e"
	s.Nodes = append(s.Nodes, s.node, b.node)
	s.Drivers = map[string]*Driver{"a": s.driver, "b": b.driver}
}

// A pod on one node, which anybody may have created, blocks only that node's upgrade.
func TestAPodInTheWayStopsNoOtherNode(t *testing.T) {
	for name, pod := range map[string]*Pod{
		"nothing makes it anew": {GPU: true},
		"it has data":           {GPU: true, Controlled: true, EmptyDir: true},
		"it does not go":        {GPU: true, Controlled: true},
		"it is deleted":         {GPU: true, Controlled: true, Deleting: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod.Namespace, pod.Name, pod.UID, pod.Created = "team", "p", "p", noon.Add(-time.Hour)
			s := newOneNode(PodDeletion, 6*time.Minute)
			s.pods(pod)
			s.addPending()
			p := NewPlan(s.Input)
			require.Empty(t, p.Failed)
			require.Len(t, p.Blocked, 1)
			require.Contains(t, p.Blocked[0].Why, "pod team/p")
			require.Equal(t, []string{"a"}, p.Watch)
			event := p.Patches[0].Event
			require.True(t, event.Warning)
			require.Contains(t, event.Message, "the driver's upgrade is deferred, and other nodes go first: pod team/p")
			a, b := s.Nodes[0], s.Nodes[1]
			require.Equal(t, []string{"b"}, slices.DeleteFunc(continuing(s, p, 0), func(n string) bool { return n != "b" }))
			require.False(t, a.Cordoned, "its old driver serves it on")
			require.Equal(t, string(Required), a.Labels[label.UpgradeState])
			require.NotContains(t, a.Annotations, label.UpgradeCordoned)
			p = NewPlan(s.Input)
			require.Equal(t, 1, p.Counts.Failed)
			require.Contains(t, p.Waiting["a"], "pod team/p")
			require.True(t, State(b.Labels[label.UpgradeState]).InFlight())

			// Once the pod is gone, the node has the next turn.
			s.pods()
			b.Labels[label.UpgradeState], s.Drivers["b"].Digest = string(Done), "new"
			b.Cordoned = false
			clear(b.Annotations)
			s.Now = s.Now.Add(WriteRetry)
			require.Equal(t, []string{"a"}, continuing(s, NewPlan(s.Input), 0))
			require.True(t, a.Cordoned)
			require.NotContains(t, a.Annotations, label.UpgradeReason)
		})
	}
}

// continuing writes a plan's patches and those of further plans, and returns the nodes that
// are in flight then.
func continuing(s *oneNode, p *Plan, more int) (flying []string) {
	for i := range p.Patches {
		for _, n := range s.Nodes {
			if n.Name != p.Patches[i].Node {
				continue
			}
			for key, value := range p.Patches[i].Labels {
				set(n.Labels, key, deref(value))
			}
			for key, value := range p.Patches[i].Annotations {
				set(n.Annotations, key, deref(value))
			}
			if c := p.Patches[i].Unschedulable; c != nil {
				n.Cordoned = *c
			}
		}
	}
	if more == 0 {
		return continuing(s, NewPlan(s.Input), 1)
	}
	for _, n := range s.Nodes {
		if State(n.Labels[label.UpgradeState]).InFlight() {
			flying = append(flying, n.Name)
		}
	}
	return flying
}

func TestRetryOfANodeWithABlockingPod(t *testing.T) {
	pod := func(age time.Duration) *Pod {
		return &Pod{Namespace: "team", Name: "p", UID: "p", GPU: true, Controlled: true, Created: noon.Add(-age)}
	}
	bare, old := pod(0), pod(3*time.Hour)
	bare.Controlled = false
	agent := pod(3 * time.Hour)
	agent.Agent = true
	const ago = 30 * time.Minute // since it gave its turn back
	for name, c := range map[string]struct {
		ago   time.Duration
		given func(*oneNode)
		again bool
		wake  time.Duration
	}{
		"the pod has gone":                 {ago, func(s *oneNode) { s.pods() }, true, 0},
		"the pod has just gone":            {20 * time.Second, func(s *oneNode) { s.pods() }, false, 40 * time.Second},
		"others have come":                 {ago, func(s *oneNode) { s.pods(pod(time.Minute)) }, true, 0},
		"it is there":                      {ago, func(s *oneNode) { s.pods(old) }, false, 30 * time.Minute},
		"it is there, and may go by now":   {PodsRetry, func(s *oneNode) { s.pods(old) }, true, 0},
		"a DaemonSet's is there":           {ago, func(s *oneNode) { s.pods(agent) }, false, 30 * time.Minute},
		"one that is not to be evicted":    {5 * time.Hour, func(s *oneNode) { s.pods(bare) }, false, 0},
		"one that a drain may evict":       {5 * time.Hour, func(s *oneNode) { s.pods(bare); s.Policy.Drain = &Eviction{Force: true} }, true, 0},
		"one that has nothing of GPUs":     {ago, func(s *oneNode) { s.pods(&Pod{Name: "cpu"}) }, true, 0},
		"pods are not known":               {ago, func(s *oneNode) { s.Pods = nil }, false, 30 * time.Minute},
		"a driver has failed":              {ago, func(s *oneNode) { s.addFailed() }, false, 0},
		"a person clears the label":        {0, func(s *oneNode) { s.pods(old); delete(s.node.Labels, label.UpgradeState) }, true, 0},
		"a person skips the node":          {ago, func(s *oneNode) { s.node.Labels[label.UpgradeSkip] = "true" }, false, 0},
		"the policy asks for what it has":  {ago, func(s *oneNode) { s.driver.Digest = "new" }, false, 0},
		"no more nodes may be unavailable": {ago, func(s *oneNode) { s.Policy.MaxUnavailable = new(intstr.FromInt32(0)) }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(Required, 0)
			s.node.Annotations[label.UpgradeSince], s.node.Annotations[label.UpgradeReason] = noon.Add(-c.ago).Format(time.RFC3339), "pod team/p did not go"
			s.pods()
			c.given(s)
			s.Nodes = append(s.Nodes, s.node)
			s.Drivers = map[string]*Driver{"a": s.driver}
			p := NewPlan(s.Input)
			begins := false
			for _, q := range p.Patches {
				begins = begins || q.Node == "a" && q.Begins()
			}
			require.Equal(t, c.again, begins, describe(p))
			if !c.again && c.wake > 0 {
				require.Equal(t, c.wake, p.NextPlan.Sub(noon))
			}
			if !c.again {
				require.Empty(t, p.Evict)
			}
			if name == "one that is not to be evicted" {
				require.Empty(t, p.Patches, "nothing is tried in vain")
			}
		})
	}
}

// addFailed adds a node "z" on which the new driver has failed.
func (s *oneNode) addFailed() {
	z := newOneNode(Failed, time.Minute)
	z.node.Name = "z"
	s.Nodes = append(s.Nodes, z.node)
}

// The pods of nodes in flight are watched before those of waiting nodes: the number is limited.
func TestNodesInFlightAreWatchedFirst(t *testing.T) {
	s := newOneNode(PodDeletion, 0)
	s.node.Name = "z"
	for _, name := range []string{"a", "b"} {
		n := newOneNode(Required, 0).node
		n.Name, n.Annotations[label.UpgradeReason], n.Annotations[label.UpgradeSince] = name, "pod team/p did not go", noon.Format(time.RFC3339)
		s.Nodes = append(s.Nodes, n)
	}
	s.Nodes = append(s.Nodes, s.node)
	s.Drivers = map[string]*Driver{"a": s.driver, "b": s.driver, "z": s.driver}
	s.Pods = map[string][]*Pod{"b": {}}
	require.Equal(t, []string{"z", "b", "a"}, NewPlan(s.Input).Watch)
}

// A node that a person cordoned stays cordoned, and so does one whose old driver is unhealthy.
func TestOnlyServedNodesAreUncordoned(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*oneNode)
		want  bool
	}{
		"cordoned by the upgrade":    {func(*oneNode) {}, false},
		"cordoned by a person":       {func(s *oneNode) { delete(s.node.Annotations, label.UpgradeCordoned) }, true},
		"its old driver is not well": {func(s *oneNode) { s.driver.Ready = false }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneNode(PodDeletion, 0)
			s.pods(&Pod{Namespace: "team", Name: "bare", GPU: true})
			c.given(s)
			s.Nodes, s.Drivers = []*fleet.Node{s.node}, map[string]*Driver{"a": s.driver}
			continuing(s, NewPlan(s.Input), 0)
			require.Equal(t, c.want, s.node.Cordoned)
			s.driver.Ready = true
			continuing(s, NewPlan(s.Input), 0)
			require.Equal(t, name == "cordoned by a person", s.node.Cordoned)
			require.NotContains(t, s.node.Annotations, label.UpgradeCordoned)
		})
	}
}

// A driver pod that was deleted and does not end, as because of a finalizer, yields the turn.
// Its node stays cordoned.
func TestDriverPodThatDoesNotTerminate(t *testing.T) {
	ending := func(since time.Duration) *oneNode {
		s := newOneNode(PodRestart, 48*time.Hour)
		s.driver.Deleting, s.driver.End = true, noon.Add(-since)
		s.pods(&Pod{Namespace: "team", Name: "p", GPU: true, Controlled: true, Labels: map[string]string{label.DrainSkip: "true"}})
		s.addPending()
		return s
	}
	s := ending(endTimeout - time.Second)
	p := NewPlan(s.Input)
	require.Empty(t, p.Blocked)
	require.Equal(t, noon.Add(time.Second), p.NextPlan)
	require.NotContains(t, continuing(s, p, 0), "b")

	s = ending(endTimeout)
	p = NewPlan(s.Input)
	require.Equal(t, []Failure{{"a", "driver pod gpu/driver-a was deleted and is still there 5m0s after its grace period: see its finalizers, while pod team/p uses the GPUs", noon}}, p.Blocked)
	require.Equal(t, 1, p.Counts.Failed)
	require.Equal(t, []string{"a", "b"}, continuing(s, p, 0))
	require.True(t, s.node.Cordoned)

	s = ending(endTimeout)
	s.Policy.MaxUnavailable = new(intstr.FromInt32(1))
	require.Equal(t, []string{"a"}, continuing(s, NewPlan(s.Input), 0), "a node that stays cordoned is unavailable")

	s = ending(endTimeout)
	s.driver = nil
	delete(s.Drivers, "a")
	p = NewPlan(s.Input)
	require.Empty(t, p.Blocked, "it has ended: the node goes on")
	require.Equal(t, "the driver pod to be created", p.Waiting["a"])
}

// A refused node that yielded its turn and was uncordoned is cordoned again only if one more
// node may be unavailable.
func TestARetryCordonsNoMoreThanMaxUnavailable(t *testing.T) {
	for limit, want := range map[int32]bool{1: false, 2: true} {
		s := newOneNode(PodDeletion, time.Minute)
		s.Policy.MaxParallel, s.Policy.MaxUnavailable = 2, new(intstr.FromInt32(limit))
		s.node.Cordoned = false
		s.addPending()
		b := s.Nodes[1]
		b.Cordoned, b.Labels[label.UpgradeState] = true, string(PodDeletion)
		b.Annotations[label.UpgradeSince], b.Annotations[label.UpgradeCordoned] = noon.Format(time.RFC3339), "true"
		s.Pods["b"] = []*Pod{{Namespace: "x", Name: "y", UID: "z", GPU: true, Controlled: true}}
		s.Refused = map[string]Refusal{"a": {Why: "webhook", Since: noon.Add(-5 * time.Minute), Next: noon.Add(-time.Second)}}
		continuing(s, NewPlan(s.Input), 0)
		require.Equal(t, want, s.node.Cordoned, "maxUnavailable %d", limit)
	}
}

// The upgrade cordons no more than maxUnavailable nodes, even if writes are refused for a
// while and people uncordon nodes.
func TestRefusalsDoNotCordonMoreThanMaxUnavailable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.policy.MaxUnavailable, c.policy.MaxParallel, c.policy.Deletion.Force, c.policy.Deletion.Timeout = new(intstr.FromInt32(1)), 3, true, 0
		for range 3 {
			c.add()
		}
		for range 40 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		c.version++
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
				m := c.nodes[name]
				switch rapid.IntRange(0, 9).Draw(t, "what") {
				case 0:
					m.locked = true
				case 1:
					m.locked = false
				case 2:
					if m.Cordoned && m.locked {
						m.Cordoned = false
						c.bumpVersion(m)
					}
				}
			}
			before := c.cordoned()
			c.runOperator(1 << 20)
			if now := c.cordoned(); now > before {
				require.LessOrEqual(t, now, 1, "nodes that the upgrade has cordoned")
			}
			c.now = c.now.Add(30 * time.Second)
			c.runOthers()
		}
	})
}

// cordoned counts the nodes that the upgrade has cordoned.
func (c *cluster) cordoned() (n int) {
	for _, m := range c.nodes {
		if m.Cordoned && m.Annotations[label.UpgradeCordoned] == "true" {
			n++
		}
	}
	return n
}

// Whichever pods block whichever nodes, all other nodes get their driver. The blocked ones are
// reported and keep serving, and are upgraded when the pods are gone.
func TestBlockingPodsDelayNoOtherNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.policy.Deletion.Force, c.policy.Drain = false, nil
		for range rapid.IntRange(1, 4).Draw(t, "more nodes") {
			c.add()
		}
		c.policy.MaxUnavailable = new(intstr.FromInt32(int32(len(c.nodes))))
		for range 30 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		blocked := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
			if blocked[name] = rapid.Bool().Draw(t, "blocked"); blocked[name] {
				c.nodes[name].pods = append(c.nodes[name].pods, &Pod{
					Namespace: "team", Name: "p", UID: fmt.Sprint(c.next()), GPU: true, Created: c.now,
					EmptyDir: rapid.Bool().Draw(t, "data"), Controlled: rapid.Bool().Draw(t, "controlled"),
				})
				c.nodes[name].obstinate = true
			}
		}
		c.version++
		for range 500 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		p := NewPlan(c.input())
		require.Empty(t, p.Failed)
		for name, m := range c.nodes {
			switch {
			case !blocked[name]:
				require.True(t, m.driver.available() && m.driver.matches(c.target(m.Pool.Kernel)) && !m.Cordoned, "%s has driver %+v in %q\n%+v", name, m.driver, c.state(name), p)
			case !c.state(name).InFlight(): // it may have a turn again by now
				require.Contains(t, p.Waiting[name], "pod team/p")
				require.False(t, m.Cordoned)
			}
		}
		for _, m := range c.nodes {
			m.obstinate = false
			m.pods = slices.DeleteFunc(m.pods, func(p *Pod) bool { return p.Namespace == "team" })
		}
		for range 200 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		require.Empty(t, c.unsettled())
	})
}

func TestPodsAreObservedWithTheirTimes(t *testing.T) {
	created, end := metav1.NewTime(noon), metav1.NewTime(noon.Add(time.Minute))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: created, DeletionTimestamp: &end}}
	require.Equal(t, created.Time, ObservePod(pod).Created)
	require.Equal(t, end.Time, ObserveDriver(pod).End)
	require.Zero(t, ObserveDriver(&corev1.Pod{}).End)
}

// Anybody who may create a pod may also name a DaemonSet as its owner and set any label.
func TestPodCannotPretendToBelongToTheNode(t *testing.T) {
	observe := func(namespace, owners string, labels map[string]string) *Pod {
		return ObservePod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: "p", Labels: labels,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: owners, Kind: "DaemonSet", Name: "x", UID: "y", Controller: new(true)}}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}},
		}, "operator", "operands")
	}
	product := map[string]string{label.PartOf: label.Product}
	for _, namespace := range []string{"operator", "operands"} {
		p := observe(namespace, "apps/v1", product)
		require.True(t, p.Agent && p.Own, namespace)
	}
	require.False(t, observe("team", "apps/v1", product).Own)
	validation := map[string]string{"app": validations[0]}
	require.False(t, ObservePod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Labels: validation}}, "operands").Own)
	require.True(t, ObservePod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "operands", Labels: validation}}, "operands").Own)

	// It is evicted like any other, whatever its labels are, and the driver waits for it.
	for _, labels := range []map[string]string{nil, product, {label.DrainSkip: "true"}} {
		s := newOneNode(PodDeletion, time.Minute)
		s.pods(observe("team", "evil.example/v1", labels))
		require.Equal(t, "evict p; a waits for pod team/p to go; wake in 4m0s", describe(s.plan()), labels)
		s = newOneNode(PodRestart, 3*time.Minute)
		s.pods(observe("team", "evil.example/v1", labels))
		require.Equal(t, "a waits for pod team/p to let go of the driver; wake in 2m0s", describe(s.plan()), labels)
	}
}
