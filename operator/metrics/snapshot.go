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
	Since      map[Place]time.Time // when the longest-waiting node began to wait; none for ready and excluded nodes
	Upgrade    map[string]int      // nodes by the state of their driver upgrade
	Serve      map[string]int      // nodes by how pods get their GPUs; see serveDesc
	Conditions map[string]bool     // of the policy in force, by type
	Problems   map[string]int      // pools that do not get the required driver, by reason
	Steps      []Histogram         // from a node's creation to each step
}

// Place groups nodes by pool, state and status.
type Place struct {
	Pool   string
	State  progress.State // the first state not reached; "": all are
	Status progress.Status
}

// Histogram counts nodes by the seconds from their creation until they reached a step.
type Histogram struct {
	Step    string
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64 // by upper bound; cumulative
}

// Steps returns the histograms stored in a policy's status. The status has one count for each
// bucket, and for the nodes above the last bound; Prometheus wants cumulative counts.
func Steps(stored []v1.ProvisioningStatus) (all []Histogram) {
	bounds := v1.ProvisioningBounds()
	for _, s := range stored {
		h := Histogram{Step: s.Step, Sum: float64(s.SumSeconds), Buckets: map[float64]uint64{}}
		for i, n := range s.Buckets[:min(len(s.Buckets), len(bounds)+1)] {
			h.Count += uint64(max(n, 0))
			if i < len(bounds) {
				h.Buckets[bounds[i].Seconds()] = h.Count
			}
		}
		all = append(all, h)
	}
	return all
}

// Add adds nodes at a place. since is when the longest-waiting of them began to wait; zero if
// none waits.
func (s *Snapshot) Add(at Place, nodes int, since time.Time) {
	if s.Nodes == nil {
		s.Nodes, s.Since = map[Place]int{}, map[Place]time.Time{}
	}
	s.Nodes[at] += nodes
	if before, found := s.Since[at]; !since.IsZero() && (!found || since.Before(before)) {
		s.Since[at] = since
	}
}

// mergePools merges all but the maxPools largest pools into one named other.
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
	merged := s
	merged.Nodes, merged.Since = map[Place]int{}, map[Place]time.Time{}
	for at, n := range s.Nodes {
		since, waits := s.Since[at]
		if slices.Contains(names[maxPools:], at.Pool) {
			at.Pool = otherPools
		}
		merged.Nodes[at] += n
		if before, found := merged.Since[at]; waits && (!found || since.Before(before)) {
			merged.Since[at] = since
		}
	}
	return merged
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
	sinceDesc      = prometheus.NewDesc(prefix+"nodes_since_timestamp_seconds", "Unix time at which the longest-waiting node of the group began to wait; not for ready and excluded nodes.", []string{"pool", "state", "status"}, nil)
	upgradeDesc    = prometheus.NewDesc(prefix+"upgrade_nodes", "Nodes by the state of their driver upgrade.", []string{"state"}, nil)
	serveDesc      = prometheus.NewDesc(prefix+"serve_nodes", "Nodes by how pods get their GPUs: plugin, dra, changing from one to the other, or person, where a label of a person decides; none while no policy has the DRA driver.", []string{"state"}, nil)
	conditionDesc  = prometheus.NewDesc(prefix+"policy_condition", "Conditions of the policy in force: 1 where True.", []string{"type"}, nil)
	problemDesc    = prometheus.NewDesc(prefix+"driver_problem_pools", "Pools that do not get the driver that the policy asks for, by reason.", []string{"reason"}, nil)
	provisionsDesc = prometheus.NewDesc(prefix+"provisioning_seconds", "Seconds from a node's creation until it reached the step; stored in the policy's status, so it survives restarts of the operator.", []string{"step"}, nil)
)

// Describe implements prometheus.Collector.
func (s *snapshots) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodesDesc, sinceDesc, upgradeDesc, serveDesc, conditionDesc, problemDesc, provisionsDesc} {
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
	for state, n := range now.Serve {
		gauge(serveDesc, float64(n), state)
	}
	for kind, isTrue := range now.Conditions {
		value := 0.0
		if isTrue {
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
