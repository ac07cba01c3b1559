package upgrade

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The limits hold during any disturbance. After the last one, every node gets its driver, the
// upgrade uncordons what it cordoned and nothing else, and writes stop.
func TestUpgradeCompletesDespiteDisturbances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.runOthers()
			case 2:
				c.runOperator(1 << 20)
			case 3:
				c.runOperator(rapid.IntRange(0, 4).Draw(t, "killed after")) // and another process continues
			}
		}
		c.clearDisturbances()
		const most = 800 // an hour and a half: longer than PodsRetry
		for range most {
			c.runOthers()
			wrote := c.runOperator(1 << 20)
			// Timeouts may still expire meanwhile, and nodes fail.
			c.clearFailures()
			if !wrote && c.unsettled() == "" {
				break
			}
		}
		p := NewPlan(c.input())
		require.Empty(t, c.unsettled(), "%+v\n%+v", c.policy, p)
		require.Empty(t, p.Patches)
		require.Empty(t, p.Assign)
		require.Empty(t, p.Evict)
		require.Empty(t, p.Delete)
		require.Equal(t, Counts{Total: len(c.nodes), Done: len(c.nodes)}, p.Counts)
	})
}

// A plan does not depend on the order of the input, and does not write again what is written.
func TestPlanIsDeterministicAndIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.runOthers()
			case 2:
				c.runOperator(1 << 20)
			}
			in := c.input()
			p := NewPlan(in)
			slices.Reverse(in.Nodes)
			require.Equal(t, p, NewPlan(in))
		}
		// Nothing else changes: after a few writes there is nothing to write.
		c.held = true
		for i := 0; c.runOperator(1 << 20); i++ {
			require.Less(t, i, 12, "it writes and writes")
		}
	})
}

// A disabled upgrade releases all nodes except those that only wait for the new driver to
// start.
func TestDisabledUpgradeReleasesNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "turn") {
			case 0:
				c.disturb()
			case 1:
				c.runOthers()
			case 2:
				c.runOperator(1 << 20)
			}
		}
		c.clearDisturbances()
		c.policy.Auto = false
		for range 60 {
			c.runOthers()
			c.runOperator(1 << 20)
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

// Nodes that cannot be written delay no other: all others get their driver, and the
// unwritable ones are reported by name.
func TestNodesThatCannotBeWrittenHoldUpNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.policy.MaxUnavailable, c.policy.Deletion.Force = nil, true
		for range rapid.IntRange(1, 4).Draw(t, "more nodes") {
			c.add()
		}
		for range 20 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		c.version++
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		for _, m := range c.nodes {
			m.locked = rapid.Bool().Draw(t, "locked")
		}
		for range 200 {
			c.runOperator(1 << 20)
			c.runOthers()
		}
		p := NewPlan(c.input())
		told := map[string]bool{}
		for _, f := range p.Unwritten {
			told[f.Node] = true
		}
		for name, m := range c.nodes {
			goal := c.target(m.Pool.Kernel)
			if m.locked {
				finished := m.driver != nil && m.driver.matches(goal) && c.state(name) == Done
				require.True(t, finished || told[name], "%s is in %q and nobody says that it cannot be written", name, c.state(name))
				continue
			}
			require.True(t, m.driver.available() && m.driver.matches(goal) && !m.Cordoned, "%s has driver %+v in %q\n%+v", name, m.driver, c.state(name), p)
		}
		require.Empty(t, p.Failed)
	})
}
