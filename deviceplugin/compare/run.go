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

func sorted(names map[string]int) []string { return slices.Sorted(maps.Keys(names)) }

// Config configures a Shadow.
type Config struct {
	Ask   func(context.Context) (Theirs, error)
	Every time.Duration // interval of queries to the kubelet, whose API has no watch
	Log   *slog.Logger
}

// Shadow follows both plugins and reports their differences. Its methods may be called
// concurrently.
type Shadow struct {
	cfg         Config
	differences *prometheus.GaugeVec
	comparisons *prometheus.CounterVec
	read        chan struct{} // closed when ours is known

	mu       sync.Mutex
	ours     *Ours
	absent   error // why ours is not known
	idle     bool  // the node needs no driver
	failed   error // error of the last query
	compared bool
}

// New returns a Shadow with its metrics registered in reg.
func New(cfg Config, reg prometheus.Registerer) *Shadow {
	s := &Shadow{
		cfg: cfg, read: make(chan struct{}), absent: errors.New("the driver has not been read yet"),
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

// SetOurs sets what ours would advertise now.
func (s *Shadow) SetOurs(o Ours) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		close(s.read)
	}
	s.ours, s.absent = &o, nil
}

// SetAbsent sets why there is no driver, and so nothing to compare. idle means that none
// is needed: the node has no GPU.
func (s *Shadow) SetAbsent(why error, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		s.absent, s.idle = why, idle
	}
}

// Ready returns why nothing is compared, or nil if it is.
func (s *Shadow) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.absent != nil && s.idle:
		return nil
	case s.absent != nil:
		return s.absent
	case s.failed != nil:
		return s.failed
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
	case <-s.read:
	}
	history := History{Settle: true}
	var before []Difference
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for looks := 0; ; {
		theirs, err := s.cfg.Ask(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ours := s.recordQuery(err)
		if err == nil {
			looks++
			found := history.Compare(ours, theirs, time.Now())
			s.report(before, found)
			before = found
			if looks == 2 { // the first complete one
				s.cfg.Log.Info("compared with the device plugin that serves this node", "differences", len(found), "summary", summary(found))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// recordQuery records the result of a query, logs a change of it, and returns ours.
func (s *Shadow) recordQuery(err error) Ours {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.comparisons.WithLabelValues("failed").Inc()
		if s.failed == nil || s.failed.Error() != err.Error() {
			s.cfg.Log.Warn("the kubelet cannot be queried; the differences stay as they were", "message", err.Error())
		}
	default:
		s.comparisons.WithLabelValues("ok").Inc()
		if s.failed != nil {
			s.cfg.Log.Info("the kubelet responds again")
		}
	}
	s.failed, s.compared = err, s.compared || err == nil
	return *s.ours
}

// report logs differences that began and ended, and updates the metrics.
func (s *Shadow) report(before, now []Difference) {
	began, ended := Changes(before, now)
	for _, d := range began {
		s.cfg.Log.Warn("differs", attributes(d)...)
	}
	for _, d := range ended {
		s.cfg.Log.Info("no longer differs", attributes(d)...)
	}
	for kind, n := range Counts(now) {
		s.differences.WithLabelValues(string(kind)).Set(float64(n))
	}
}

func attributes(d Difference) []any {
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

// summary returns the number of differences of each kind.
func summary(found []Difference) string {
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
