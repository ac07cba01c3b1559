package shadow

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

// Config is what Watch needs.
type Config struct {
	Ask   func(context.Context) (Theirs, error)
	Every time.Duration // between two questions to the kubelet, whose API has no watch
	Log   *slog.Logger
}

// Shadow follows both and says what differs. Its methods may be called
// concurrently.
type Shadow struct {
	cfg         Config
	differences *prometheus.GaugeVec
	looks       *prometheus.CounterVec
	read        chan struct{} // closed when ours is known

	mu     sync.Mutex
	ours   *Ours
	absent error // why ours is not
	idle   bool  // and that is as it should be
	failed error // why theirs is not; of the last look
	looked bool
}

// New makes a Shadow whose metrics are in reg.
func New(cfg Config, reg prometheus.Registerer) *Shadow {
	s := &Shadow{
		cfg: cfg, read: make(chan struct{}), absent: errors.New("the driver has not been read yet"),
		differences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpuready_shadow_differences", Help: "What would not be as it is with the device plugin that serves this node, by kind.",
		}, []string{"kind"}),
		looks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuready_shadow_looks_total", Help: "Comparisons with what the kubelet has, ok, or failed where it could not be asked.",
		}, []string{"result"}),
	}
	for _, kind := range Kinds() {
		s.differences.WithLabelValues(string(kind))
	}
	for _, result := range []string{"ok", "failed"} {
		s.looks.WithLabelValues(result)
	}
	reg.MustRegister(s.differences, s.looks)
	return s
}

// See takes what ours would advertise now.
func (s *Shadow) See(o Ours) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		close(s.read)
	}
	s.ours, s.absent = &o, nil
}

// Absent takes why there is no driver, and so nothing to compare. idle says that
// none is missed: the node has no GPU.
func (s *Shadow) Absent(why error, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours == nil {
		s.absent, s.idle = why, idle
	}
}

// Ready says why nothing is compared, nil where it is.
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
	case !s.looked:
		return errors.New("the kubelet has not been asked yet")
	}
	return nil
}

// Watch compares until ctx ends, and logs what changes.
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
		ours := s.look(err)
		if err == nil {
			looks++
			found := history.Look(ours, theirs, time.Now())
			s.tell(before, found)
			before = found
			if looks == 2 { // the first that tells all
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

// look notes how asking went, one line for each change of that, and returns ours.
func (s *Shadow) look(err error) Ours {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.looks.WithLabelValues("failed").Inc()
		if s.failed == nil || s.failed.Error() != err.Error() {
			s.cfg.Log.Warn("the kubelet cannot be asked; what differs is as it was", "message", err.Error())
		}
	default:
		s.looks.WithLabelValues("ok").Inc()
		if s.failed != nil {
			s.cfg.Log.Info("the kubelet answers again")
		}
	}
	s.failed, s.looked = err, s.looked || err == nil
	return *s.ours
}

// tell logs what began and ended to differ, and counts.
func (s *Shadow) tell(before, now []Difference) {
	began, ended := Changes(before, now)
	for _, d := range began {
		s.cfg.Log.Warn("differs", attributes(d)...)
	}
	for _, d := range ended {
		s.cfg.Log.Info("differs no more", attributes(d)...)
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

// summary is how many there are of each kind.
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
