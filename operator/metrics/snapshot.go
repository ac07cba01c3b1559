package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// maxPools bounds the pools with series of their own; the others share one.
const maxPools = 50

const otherPools = "other"

// Snapshot is the state of nodes and policy at one moment. It must not be changed after it was
// passed to SetSnapshot.
type Snapshot struct {
	Nodes      map[Place]int
	Since      map[Place]time.Time // earliest of the nodes that are not ready
	Upgrade    map[string]int      // nodes by the state of their driver upgrade
	Conditions map[string]bool     // of the policy in force, by type
	Problems   map[string]int      // pools that do not get the required driver, by reason
	Steps      []Histogram         // from a node's creation to each step
}

// Place groups nodes by pool, by the first state that they have not reached ("" if they have
// reached all), and by status.
type Place struct {
	Pool   string
	State  progress.State
	Status progress.Status
}

// Histogram counts the seconds from a node's creation until it reached a step.
type Histogram struct {
	Step    string
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64 // by upper bound; cumulative
}

// Steps returns the histograms stored in a policy's status.
func Steps(kept []v1.ProvisioningStatus) (all []Histogram) {
	bounds := v1.ProvisioningBounds()
	for _, k := range kept {
		h := Histogram{Step: k.Step, Sum: float64(k.SumSeconds), Buckets: map[float64]uint64{}}
		for i, n := range k.Buckets[:min(len(k.Buckets), len(bounds)+1)] {
			h.Count += uint64(max(n, 0))
			if i < len(bounds) {
				h.Buckets[bounds[i].Seconds()] = h.Count
			}
		}
		all = append(all, h)
	}
	return all
}

// Add adds nodes at a place. since is when the longest waiting of them started to wait; zero if
// none waits.
func (s *Snapshot) Add(at Place, nodes int, since time.Time) {
	if s.Nodes == nil {
		s.Nodes, s.Since = map[Place]int{}, map[Place]time.Time{}
	}
	s.Nodes[at] += nodes
	if before, is := s.Since[at]; !since.IsZero() && (!is || since.Before(before)) {
		s.Since[at] = since
	}
}

// mergePools merges the smallest pools if there are too many.
func (s Snapshot) mergePools() Snapshot {
	size := map[string]int{}
	for at, n := range s.Nodes {
		size[at.Pool] += n
	}
	if len(size) <= maxPools {
		return s
	}
	names := slices.SortedFunc(maps.Keys(size), func(a, b string) int {
		if size[a] != size[b] {
			return size[b] - size[a]
		}
		return strings.Compare(a, b)
	})
	few := s
	few.Nodes, few.Since = map[Place]int{}, map[Place]time.Time{}
	for at, n := range s.Nodes {
		since, is := s.Since[at]
		if slices.Contains(names[maxPools:], at.Pool) {
			at.Pool = otherPools
		}
		few.Nodes[at] += n
		if before, has := few.Since[at]; is && (!has || since.Before(before)) {
			few.Since[at] = since
		}
	}
	return few
}

// SetSnapshot replaces the exposed Snapshot.
func (m *Metrics) SetSnapshot(s Snapshot) {
	s = s.mergePools()
	m.snapshot.current.Store(&s)
}

// snapshots collects the latest Snapshot.
type snapshots struct{ current atomic.Pointer[Snapshot] }

var (
	nodesDesc      = prometheus.NewDesc(prefix+"nodes", "GPU nodes by pool, the first state that they have not reached (done: all are), and status (waiting, failed, ready, excluded, unknown).", []string{"pool", "state", "status"}, nil)
	sinceDesc      = prometheus.NewDesc(prefix+"nodes_since_timestamp_seconds", "Since when the first of the nodes there has been so, in seconds since 1970; not of ready and excluded ones.", []string{"pool", "state", "status"}, nil)
	upgradeDesc    = prometheus.NewDesc(prefix+"upgrade_nodes", "Nodes by the state of their driver upgrade.", []string{"state"}, nil)
	conditionDesc  = prometheus.NewDesc(prefix+"policy_condition", "Conditions of the policy in force: 1 where True.", []string{"type"}, nil)
	problemDesc    = prometheus.NewDesc(prefix+"driver_problem_pools", "Pools that do not get the driver that the policy asks for, by reason.", []string{"reason"}, nil)
	provisionsDesc = prometheus.NewDesc(prefix+"provisioning_seconds", "From a node's creation until it reached the step; kept in the policy's status over restarts.", []string{"step"}, nil)
)

// Describe implements prometheus.Collector.
func (s *snapshots) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodesDesc, sinceDesc, upgradeDesc, conditionDesc, problemDesc, provisionsDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *snapshots) Collect(to chan<- prometheus.Metric) {
	now := s.current.Load()
	if now == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for at, n := range now.Nodes {
		gauge(nodesDesc, float64(n), at.Pool, at.state(), string(at.Status))
	}
	for at, since := range now.Since {
		gauge(sinceDesc, float64(since.Unix()), at.Pool, at.state(), string(at.Status))
	}
	for state, n := range now.Upgrade {
		gauge(upgradeDesc, float64(n), state)
	}
	for kind, is := range now.Conditions {
		value := 0.0
		if is {
			value = 1
		}
		gauge(conditionDesc, value, kind)
	}
	for reason, n := range now.Problems {
		gauge(problemDesc, float64(n), reason)
	}
	for _, h := range now.Steps {
		to <- prometheus.MustNewConstHistogram(provisionsDesc, h.Count, h.Sum, h.Buckets, h.Step)
	}
}

func (p Place) state() string {
	if p.State == "" {
		return "done"
	}
	return string(p.State)
}
