package compare

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func sortedKeys(names map[string]int) []string { return slices.Sorted(maps.Keys(names)) }

// Config configures a Shadow.
type Config struct {
	Query    func(context.Context) (Theirs, error) // such as Kubelet.Query
	Interval time.Duration                         // interval of queries to the kubelet, whose API has no watch
	Log      *slog.Logger
}

// Shadow repeatedly compares what this plugin would advertise with what the other plugin
// advertises, and reports the differences. Its methods may be called concurrently.
type Shadow struct {
	cfg         Config
	differences *prometheus.GaugeVec
	comparisons *prometheus.CounterVec
	oursKnown   chan struct{} // closed when ours is set

	mu       sync.Mutex
	ours     *Ours // nil: not set yet
	oursErr  error // why ours is not set; nil: it is
	idle     bool  // the node has no GPU, so that nothing is compared
	queryErr error // error of the last query; nil: it succeeded, or there was none
	compared bool  // at least one query succeeded
}

// New returns a Shadow with its metrics registered in reg.
func New(cfg Config, reg prometheus.Registerer) *Shadow {
	s := &Shadow{
		cfg: cfg, oursKnown: make(chan struct{}), oursErr: errors.New("the driver has not been read yet"),
		differences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpuready_shadow_differences", Help: "Differences from the device plugin that serves this node, by kind.",
		}, []string{"kind"}),
		comparisons: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuready_shadow_looks_total", Help: "Comparisons with the kubelet, ok, or failed where it could not be queried.",
		}, []string{"result"}),
	}
	for _, kind := range Kinds() {
		s.differences.WithLabelValues(string(kind))
	}
	for _, result := range []string{"ok", "failed"} {
		s.comparisons.WithLabelValues(result)
	}
	reg.MustRegister(s.differences, s.comparisons)
	return s
}

// SetOurs sets what this plugin would advertise now.
func (s *Shadow) SetOurs(o Ours) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		close(s.oursKnown)
	}
	s.ours, s.oursErr = &o, nil
}

// SetAbsent sets why there is no driver, and so nothing to compare. idle means that none
// is needed: the node has no GPU.
func (s *Shadow) SetAbsent(why error, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		s.oursErr, s.idle = why, idle
	}
}

// Ready returns nil if the last comparison succeeded or the node has no GPU, else what is missing.
func (s *Shadow) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.oursErr != nil && s.idle:
		return nil
	case s.oursErr != nil:
		return s.oursErr
	case s.queryErr != nil:
		return s.queryErr
	case !s.compared:
		return errors.New("the kubelet has not been queried yet")
	}
	return nil
}

// Watch compares until ctx ends and logs changes.
func (s *Shadow) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.oursKnown:
	}
	history := History{Settle: true}
	var before []Difference
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for comparisons := 0; ; {
		theirs, err := s.cfg.Query(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ours := s.recordQuery(err)
		if err == nil {
			comparisons++
			found := history.Compare(ours, theirs, time.Now())
			s.reportChanges(before, found)
			before = found
			if comparisons == 2 { // the first one left new differences out: see History.Settle
				s.cfg.Log.Info("compared with the device plugin that serves this node", "differences", len(found), "summary", summarize(found))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// recordQuery records whether a query of the kubelet failed, and logs a change of that. It returns
// what this plugin would advertise now.
func (s *Shadow) recordQuery(err error) Ours {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.comparisons.WithLabelValues("failed").Inc()
		if s.queryErr == nil || s.queryErr.Error() != err.Error() {
			s.cfg.Log.Warn("the kubelet cannot be queried; the differences stay as they were", "message", err.Error())
		}
	default:
		s.comparisons.WithLabelValues("ok").Inc()
		if s.queryErr != nil {
			s.cfg.Log.Info("the kubelet responds again")
		}
	}
	s.queryErr, s.compared = err, s.compared || err == nil
	return *s.ours
}

// reportChanges logs differences that began and ended, and updates the metrics.
func (s *Shadow) reportChanges(before, after []Difference) {
	began, ended := Changes(before, after)
	for _, d := range began {
		s.cfg.Log.Warn("differs", logAttributes(d)...)
	}
	for _, d := range ended {
		s.cfg.Log.Info("no longer differs", logAttributes(d)...)
	}
	for kind, n := range Counts(after) {
		s.differences.WithLabelValues(string(kind)).Set(float64(n))
	}
}

func logAttributes(d Difference) []any {
	all := []any{"kind", string(d.Kind), "resource", d.Resource}
	for _, a := range []struct{ name, value string }{
		{"gpu", string(d.Device)}, {"pod", d.Pod}, {"ours", d.Ours}, {"theirs", d.Theirs}, {"reason", string(d.Reason)}, {"message", d.Message},
	} {
		if a.value != "" {
			all = append(all, a.name, a.value)
		}
	}
	return append(all, "since", d.Since.UTC().Format(time.RFC3339Nano))
}

// summarize returns the number of differences of each kind.
func summarize(found []Difference) string {
	var parts []string
	counts := Counts(found)
	for _, kind := range Kinds() {
		if counts[kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}
