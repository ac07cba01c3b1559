package validator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
)

// situation is a way in which a node breaks, or seems to.
type situation struct {
	name    string
	prepare func(*testing.T, *node) // sets up the state before; may be nil
	breaks  func(*testing.T, *node)

	// A layer is refused for this reason. The message or the next action has these words, and so has the
	// Node's condition.
	layer  readiness.Layer
	reason string
	words  []string

	// reported is used instead of a refused layer: it returns an error until the report is complete. The
	// layers stay proven.
	reported func(*testing.T, *node) error

	also  func(*testing.T, *node) // further checks; may be nil
	mends func(*testing.T, *node)
	// ready returns an error until all is well again; nil: as before.
	ready func(*testing.T, *node) error
}

// lap holds the times of one situation.
type lap struct {
	name, reason    string
	reasoned, ready time.Duration
}

// play breaks the node, waits until that is reported, repairs it, and waits until all is well again. It
// repairs the node even after a failure.
func (s situation) play(t *testing.T, n *node) lap {
	t.Helper()
	n.until(t, "all is well", n.ready)
	mended := false
	t.Cleanup(func() {
		if !mended {
			t.Logf("it was not mended any more; the validator's log:\n%s", tail(n.log(t), 40))
			s.mends(t, n)
		}
	})
	if s.prepare != nil {
		s.prepare(t, n)
	}
	began := time.Now()
	s.breaks(t, n)
	n.until(t, "it is said what is wrong", func() error { return s.checkReported(t, n) })
	l := lap{name: s.name, reason: s.reason, reasoned: time.Since(began)}
	if s.layer != "" {
		status, err := n.layer(s.layer)
		if assert.NoError(t, err) && assert.NotNil(t, status.NotReady) {
			assert.NotEmpty(t, status.NotReady.Action, "the next action")
			t.Logf("%s: %s", s.layer, summary(status))
			n.reportedEverywhere(t, s.layer, *status.NotReady)
		}
	}
	if s.also != nil {
		s.also(t, n)
	}
	mended = true
	began = time.Now()
	s.mends(t, n)
	n.until(t, "all is well again", func() error {
		if s.ready != nil {
			return s.ready(t, n)
		}
		return n.ready()
	})
	l.ready = time.Since(began)
	return l
}

// checkReported returns an error until the node reports the fault, in the file and in the condition.
func (s situation) checkReported(t *testing.T, n *node) error {
	if s.reported != nil {
		return s.reported(t, n)
	}
	if err := n.refused(s.layer, s.reason); err != nil {
		return err
	}
	status, err := n.layer(s.layer)
	if err != nil {
		return err
	}
	for _, w := range s.words {
		if !strings.Contains(summary(status), w) {
			return fmt.Errorf("there is no %q in: %s", w, summary(status))
		}
	}
	return n.condition(corev1.ConditionFalse, s.reason, s.words...)
}

// table formats the times, one line each.
func table(laps []lap) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-64s %-28s %12s %12s\n", "situation", "reason", "to reason", "to ready")
	for _, l := range laps {
		fmt.Fprintf(&b, "%-64s %-28s %10.1f s %10.1f s\n", l.name, l.reason, l.reasoned.Seconds(), l.ready.Seconds())
	}
	return b.String()
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
