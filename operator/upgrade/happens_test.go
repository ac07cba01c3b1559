package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/label"
)

// disturb makes one random change to the cluster.
func (c *cluster) disturb() {
	names := slices.Sorted(maps.Keys(c.nodes))
	m := c.nodes[rapid.SampledFrom(names).Draw(c.t, "node")]
	switch rapid.SampledFrom([]string{"pod", "pod", "job", "budget", "reboot", "kubelet", "driver", "edit", "edit", "kind", "break", "person", "clear", "set", "mute", "join", "leave", "wait", "slow", "slow", "lock"}).Draw(c.t, "what") {
	case "pod":
		if !m.Cordoned {
			m.pods = append(m.pods, &Pod{Namespace: "default", Name: fmt.Sprint("p", c.next()), UID: fmt.Sprint(c.serial), GPU: true, Controlled: true, Created: c.now})
		}
	case "job":
		if !m.Cordoned {
			m.pods = append(m.pods, &Pod{Namespace: "default", Name: fmt.Sprint("p", c.next()), UID: fmt.Sprint(c.serial), GPU: true, Own: rapid.Bool().Draw(c.t, "own"), Created: c.now})
		}
	case "budget":
		c.held = !c.held
	case "reboot":
		c.boot(m)
	case "kubelet":
		m.Ready = !m.Ready
		c.bumpVersion(m)
	case "driver":
		if m.driver != nil {
			m.driver.Deleting, m.driver.End = true, c.now
		}
	case "edit":
		c.version = rapid.IntRange(max(1, c.version-1), c.version+1).Draw(c.t, "version")
	case "kind":
		c.byKern = !c.byKern
	case "break":
		c.broken = c.version
	case "person":
		c.toggleCordon(m)
	case "clear":
		if c.state(m.Name) == Failed {
			delete(m.Labels, label.UpgradeState)
			c.bumpVersion(m)
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
	case "lock":
		m.locked = !m.locked
	case "slow":
		c.slow = !c.slow
	case "wait":
		c.now = c.now.Add(5 * time.Minute)
	}
}

// toggleCordon cordons a node that the upgrade does not use, or uncordons one, as people do.
func (c *cluster) toggleCordon(m *machine) {
	switch {
	case m.Cordoned:
		m.Cordoned, m.people = false, false
	case !c.state(m.Name).InFlight() && m.Annotations[label.UpgradeCordoned] == "":
		m.Cordoned, m.people = true, true
	}
	c.bumpVersion(m)
}

// clearDisturbances removes all obstacles, as people would.
func (c *cluster) clearDisturbances() {
	c.held, c.broken, c.slow = false, 0, false
	cordoned := 0
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		m := c.nodes[name]
		if m.people {
			cordoned++
		}
		// If people have cordoned as many nodes as may be unavailable, the rest waits for them.
		if m.people && cordoned >= c.policy.unavailable(len(c.nodes)) {
			m.people, m.Cordoned = false, false
		}
		m.Ready, m.mute, m.locked = true, false, false
		for _, p := range m.pods {
			p.Deleting = p.Deleting || !p.Controlled
		}
		c.bumpVersion(m)
	}
}

func (c *cluster) clearFailures() {
	for name, m := range c.nodes {
		if c.state(name) == Failed {
			delete(m.Labels, label.UpgradeState)
			c.bumpVersion(m)
		}
	}
}

// unsettled describes what is wrong in the final state, or returns "".
func (c *cluster) unsettled() string {
	for name, m := range c.nodes {
		t := c.target(m.Pool.Kernel)
		switch d := m.driver; {
		case d == nil || !d.available() || !d.matches(t):
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
