package upgrade

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

var jammy = fleet.Pool{OS: "ubuntu22.04", Kernel: "5.15.0-2-aws"}

// booted returns a cluster with one node that has a precompiled driver.
func booted() *oneNode {
	s := newOneNode(Done, 0)
	s.Serves = driver.Serves
	s.node.Pool, s.node.Labels[label.Driver] = jammy, "5.15.0-1-aws-ubuntu22.04"
	s.Sets = map[string]Set{"5.15.0-1-aws-ubuntu22.04": {}}
	s.Targets = map[fleet.Pool]Target{jammy: {ID: "5.15.0-2-aws-ubuntu22.04", Name: "ds-2"}}
	return s
}

func TestNodeWithAnotherKernelIsUpgradedAtOnce(t *testing.T) {
	s := booted()
	require.Equal(t, `a: driver "5.15.0-2-aws-ubuntu22.04"`, describe(s.plan()))

	s = booted()
	s.node.Labels[label.Driver], s.Sets = "ubuntu22.04", map[string]Set{"ubuntu22.04": {}}
	require.Contains(t, describe(s.plan()), "a: unschedulable true", "what it has serves it: it is upgraded in its turn")
}

func TestNewNodeOfAKeptPoolGetsItsDriver(t *testing.T) {
	fresh := func(keep Target, sets ...string) *oneNode {
		s := booted()
		s.driver, s.node.GPUReady = nil, fleet.Condition{}
		clear(s.node.Labels)
		s.Sets = map[string]Set{}
		for _, id := range sets {
			s.Sets[id] = Set{}
		}
		keep.Keep = true
		s.Targets = map[fleet.Pool]Target{jammy: keep}
		return s
	}
	target := Target{ID: "5.15.0-2-aws-ubuntu22.04"}
	for name, c := range map[string]struct {
		s    *oneNode
		want string
	}{
		"the same, as it was applied": {fresh(target, target.ID, "ubuntu22.04"), `a: driver "5.15.0-2-aws-ubuntu22.04"`},
		"another variant":             {fresh(target, "ubuntu24.04", "ubuntu22.04"), `a: driver "ubuntu22.04"`},
		"there is none":               {fresh(target, "5.15.0-1-aws-ubuntu22.04"), ""},
		"nothing is known":            {fresh(Target{}), ""},
	} {
		require.Equal(t, c.want, describe(c.s.plan()), name)
	}
	s := booted()
	s.Targets = map[fleet.Pool]Target{jammy: {Keep: true}}
	require.Empty(t, describe(s.plan()), "and nothing is taken from a node that has something")
}

func TestOperandsThatUseTheDriverArePaused(t *testing.T) {
	for key, want := range map[string]bool{
		label.Deploy + "device-plugin": true, label.Deploy + "dcgm": true, label.Deploy + label.DriverOperand: false,
		label.Deploy + label.DRAOperand: false, label.Operands: false, label.Serve: false,
	} {
		require.Equal(t, want, pausable(key), key)
	}
}
