package controller

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/fleet"
)

func TestSurveyHasTheHandlersOfEveryNode(t *testing.T) {
	node := func(i fleet.Injection, handlers ...string) *fleet.Node {
		return &fleet.Node{GPU: true, Injection: i, Handlers: handlers}
	}
	for _, c := range []struct {
		name  string
		nodes []*fleet.Node
		want  map[fleet.Injection][]string
	}{
		{"none", nil, map[fleet.Injection][]string{}},
		{"one", []*fleet.Node{node(fleet.NRI, "nvidia", "runc")}, map[fleet.Injection][]string{fleet.NRI: {"nvidia", "runc"}}},
		{"common ones", []*fleet.Node{node(fleet.NRI, "nvidia", "runc"), node(fleet.NRI, "crun", "runc"), node(fleet.CDI, "runc")}, map[fleet.Injection][]string{fleet.NRI: {"runc"}, fleet.CDI: {"runc"}}},
		{"no common one", []*fleet.Node{node(fleet.NRI, "runc"), node(fleet.NRI, "crun")}, map[fleet.Injection][]string{fleet.NRI: {}}},
		{"one reports none", []*fleet.Node{node(fleet.NRI, "runc"), node(fleet.NRI), node(fleet.NRI, "runc")}, map[fleet.Injection][]string{fleet.NRI: nil}},
		{"the first reports none", []*fleet.Node{node(fleet.NRI), node(fleet.NRI, "runc")}, map[fleet.Injection][]string{fleet.NRI: nil}},
		{"nodes without a GPU do not count", []*fleet.Node{node(fleet.NRI, "runc"), {Injection: fleet.NRI}}, map[fleet.Injection][]string{fleet.NRI: {"runc"}}},
	} {
		require.Equal(t, c.want, surveyNodes(slices.Values(c.nodes), false).handlers, c.name)
	}
}
