package compare

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestDeviceSeenBeforeCountsAsUnhealthy(t *testing.T) {
	s := gputest.Node("h100-sxm", 2)
	o, theirs := oursWith(t, whole, s), kubeletOf(oursWith(t, whole, s))
	var h History
	require.Empty(t, h.Compare(o, theirs, now))
	less := Theirs{Devices: map[string][]Device{"nvidia.com/gpu": theirs.Devices["nvidia.com/gpu"][:1]}}
	require.Equal(t, []string{"health nvidia.com/gpu 1: Healthy / Unhealthy"}, summaries(h.Compare(o, less, now)))
	require.Equal(t, []string{"resource nvidia.com/gpu: 2 devices / none"}, summaries(h.Compare(o, Theirs{}, now)), "a plugin that is gone is one thing")
}

func TestMissingReplicasCountAsUnhealthy(t *testing.T) {
	o := oursWith(t, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}", gputest.Node("h100-sxm", 1))
	theirs := kubeletOf(o)
	var h History
	require.Empty(t, h.Compare(o, theirs, now))
	theirs.Devices["nvidia.com/gpu"] = theirs.Devices["nvidia.com/gpu"][1:]
	require.Equal(t, []string{"health nvidia.com/gpu 0: Healthy / 9 of 10 given away"}, summaries(h.Compare(o, theirs, now)))
}

func TestSettleIgnoresMomentaryDifferences(t *testing.T) {
	s := gputest.Node("h100-sxm", 2)
	o, theirs := oursWith(t, whole, s, gputest.XID(gputest.GPU(1), 79)), kubeletOf(oursWith(t, whole, s))
	h := History{Settle: true}
	require.Empty(t, h.Compare(o, theirs, now))
	first := h.Compare(o, theirs, now.Add(time.Second))
	require.Len(t, first, 1)
	require.Empty(t, h.Compare(o, kubeletOf(o), now.Add(2*time.Second)))
	require.Empty(t, h.Compare(o, theirs, now.Add(3*time.Second)), "and begins anew")

	began, ended := Changes(nil, first)
	require.Equal(t, first, began)
	require.Empty(t, ended)
	later := slices.Clone(first)
	later[0].Message, later[0].Since = "another pod has it", now.Add(time.Hour)
	began, ended = Changes(first, later)
	require.Empty(t, began)
	require.Empty(t, ended)
	_, ended = Changes(first, nil)
	require.Equal(t, first, ended)
}

// linkedPairs is eight GPUs of which 0 and 1, 2 and 3, … are linked by NVLink.
func linkedPairs() gpu.Snapshot {
	s := gputest.Node("l40s", 8)
	for i, l := range s.Links {
		for n := range 4 {
			if l.A == gputest.GPU(2*n) && l.B == gputest.GPU(2*n+1) {
				s.Links[i].Kind, s.Links[i].Lanes = gpu.LinkNVLink, 4
			}
		}
	}
	return s
}

func holding(name string, indexes ...int) Allocation {
	h := Allocation{Namespace: "default", Pod: name, Container: "main", Resource: "nvidia.com/gpu"}
	for _, i := range indexes {
		h.IDs = append(h.IDs, string(gputest.GPU(i)))
	}
	return h
}

func TestDistantGPUsOfAContainerAreReported(t *testing.T) {
	o := oursWith(t, whole, linkedPairs())
	theirs := kubeletOf(o)
	look := func(h *History, holdings ...Allocation) []Difference {
		theirs.Allocations = holdings
		return h.Compare(o, theirs, now)
	}
	t.Run("is told", func(t *testing.T) {
		h := History{Settle: true}
		require.Empty(t, look(&h))
		found := look(&h, holding("a", 1, 2))
		require.Len(t, found, 1, "at once: it is a fact")
		require.Equal(t, KindPlacement, found[0].Kind)
		require.Equal(t, "default/a/main", found[0].Pod)
		require.Contains(t, found[0].Ours, "GPUs 0, 1")
		require.Contains(t, found[0].Theirs, "GPUs 1, 2")
		require.Contains(t, found[0].Message, "of what was free then")
		require.Equal(t, found, look(&h, holding("a", 1, 2), holding("b", 4, 5)), "for as long as it is there, and of others nothing")
		require.Empty(t, look(&h, holding("b", 4, 5)))
	})
	t.Run("by what was free then, not now", func(t *testing.T) {
		var h History
		require.Empty(t, look(&h, holding("x", 0), holding("y", 3), holding("z", 4), holding("v", 7)))
		all := []Allocation{holding("x", 0), holding("y", 3), holding("z", 4), holding("v", 7), holding("a", 1, 2)}
		require.Empty(t, look(&h, all...), "no pair was whole")
		require.Empty(t, look(&h, all[4]), "and that others are free since does not matter")
	})
	t.Run("with others that came meanwhile", func(t *testing.T) {
		var h History
		require.Empty(t, look(&h, holding("x", 4, 5, 6, 7)))
		require.Empty(t, look(&h, holding("x", 4, 5, 6, 7), holding("a", 0, 2), holding("b", 1), holding("c", 3)), "they may have been first")
	})
	t.Run("that was there before", func(t *testing.T) {
		var h History
		found := look(&h, holding("a", 1, 2), holding("b", 4))
		require.Len(t, found, 1)
		require.Contains(t, found[0].Message, "of what is free now")
	})
	t.Run("that was restarted with others", func(t *testing.T) {
		var h History
		require.Len(t, look(&h, holding("a", 1, 2)), 1)
		require.Empty(t, look(&h, holding("a", 2, 3)))
	})
}

func TestUnhealthyGPUIsNotPreferred(t *testing.T) {
	o := oursWith(t, whole, linkedPairs(), gputest.XID(gputest.GPU(0), 79), gputest.XID(gputest.GPU(3), 79))
	theirs := kubeletOf(oursWith(t, whole, linkedPairs()))
	theirs.Allocations = []Allocation{holding("x", 4, 5, 6, 7), holding("a", 1, 2)}
	var p placements
	require.Empty(t, p.assessContainers(o, theirs, now), "nearer ones were free, and broken")
}

// MIG devices come and go for as long as a node runs.
func TestUnlistedPartsAreForgotten(t *testing.T) {
	var h History
	for i := range 3 * maxRemembered {
		h.Compare(Ours{}, Theirs{Devices: map[string][]Device{"nvidia.com/mig-1g.10gb": {{ID: fmt.Sprint("MIG-", i)}}}}, now)
		require.LessOrEqual(t, len(h.maxSeen), maxRemembered+1)
	}
}

func TestReplicasHaveNoPlacementDifference(t *testing.T) {
	o := oursWith(t, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", linkedPairs())
	theirs := kubeletOf(o)
	theirs.Allocations = []Allocation{{"default", "a", "main", "nvidia.com/gpu", []string{string(gputest.GPU(0)) + "::0", string(gputest.GPU(5)) + "::0"}}}
	var h History
	require.Empty(t, h.Compare(o, theirs, now))
}
