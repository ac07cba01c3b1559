package operator

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step is an action of the operator or of one of the chart's Jobs, the event that triggers it,
// and the rights that it needs. It can be repeated.
type step struct {
	name  string
	needs []string // in the form of right.String
	// happens triggers the action, done returns an error until the program has done it, and
	// undo restores the previous state.
	happens    func(*testing.T, *bench)
	done       func(*testing.T, *bench) error
	undo       func(*testing.T, *bench) // nil: there is nothing to undo
	reportedIn place
	slow       bool // takes 7 s for each right
}

// place names the object on which a missing right is reported.
type place int

const (
	inStatus place = iota // in the policy's conditions
	inLog                 // in the program's output: it cannot write the status, or that is not worthwhile
	byExit                // as inLog, and the program ends with an error
)

// TestRights checks on a real API server that the chart grants exactly the rights the operator
// needs. Nothing is refused, every right is used, and any that is revoked is reported by name.
func TestRights(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.play(t,
		scenario{"EachBelongsToAStep", func(t *testing.T, _ *suite) { eachBelongsToAStep(t) }},
		scenario{"NothingIsRefusedAndAllAreUsed", func(t *testing.T, _ *suite) { b.allAreUsed(t) }},
		scenario{"EachIsMissedAndNamed", func(t *testing.T, _ *suite) { b.eachIsMissed(t) }},
	)
}

func eachBelongsToAStep(t *testing.T) {
	var needed, all []string
	for _, s := range steps {
		needed = append(needed, s.needs...)
	}
	for _, r := range chartRights(t) {
		all = append(all, r.String())
	}
	require.ElementsMatch(t, all, needed, "the chart's files/rights.yaml, and what the steps need")
}

// allAreUsed runs all steps with all rights.
func (b *bench) allAreUsed(t *testing.T) {
	b.operate(t) // with the client's defaults for a current API server
	b.waitNoError(t, "the operator works", b.works)
	for _, s := range steps {
		began := time.Now()
		b.mark()
		s.happens(t, b)
		b.waitNoError(t, s.name+" is done, with each right that it needs", func() error {
			if err := s.done(t, b); err != nil {
				return err
			}
			return b.hasUsed(s.needs)
		})
		if s.undo != nil {
			s.undo(t, b)
		}
		t.Logf("%5.1f s  %s", time.Since(began).Seconds(), s.name)
	}
	b.stop()
	require.NoError(t, b.trail.follow())
	assert.Empty(t, b.trail.refused, "what the API server has refused: a right is missing")
	assert.Empty(t, b.trail.strange, "what others than the chart's roles allow")
	for _, r := range chartRights(t) {
		assert.True(t, b.trail.used[r.String()], "%s is given and never used: take it out of files/rights.yaml", r)
	}
}

// hasUsed returns an error until each of the rights has been used in a request.
func (b *bench) hasUsed(rights []string) error {
	if err := b.trail.follow(); err != nil {
		return err
	}
	for _, r := range rights {
		if !b.trail.used[r] {
			return fmt.Errorf("the right to %s has not been used", r)
		}
	}
	return nil
}

// eachIsMissed revokes one right at a time. Of a slow step's rights it takes every fifth, unless
// GPUREADY_E2E_RIGHTS is "all", as in `make e2e-operator-rights`.
func (b *bench) eachIsMissed(t *testing.T) {
	b.furnish(t) // restores what was uninstalled
	b.operate(t)
	b.waitNoError(t, "the operator works", b.works)
	rights := chartRights(t)
	whole := os.Getenv("GPUREADY_E2E_RIGHTS") == "all"
	for _, s := range steps {
		needed := slices.DeleteFunc(slices.Clone(rights), func(r right) bool { return !slices.Contains(s.needs, r.String()) })
		for i, r := range needed {
			if s.slow && !whole && i%5 != 0 {
				continue
			}
			t.Run(strings.ReplaceAll(r.String(), " ", "_"), func(t *testing.T) { b.isMissed(t, s, r) })
			if t.Failed() {
				t.FailNow() // the following ones would fail for the same reason
			}
		}
	}
}

func (b *bench) isMissed(t *testing.T, s step, r right) {
	began := time.Now()
	b.mark()
	restore := b.revoke(t, r)
	s.happens(t, b)
	b.waitNoError(t, "the right to "+r.String()+" is missed", func() error {
		if code, ended := b.program.exited(); s.reportedIn == byExit && ended && code == 0 {
			return errors.New("it has ended well, without that right")
		} else if s.reportedIn == byExit && !ended {
			return errors.New("it has not ended")
		}
		return b.reportsMissing(t, r, s.reportedIn == inStatus)
	})
	missed := time.Since(began)
	restore()
	b.waitNoError(t, s.name+" is done once the right is given back", func() error { return s.done(t, b) })
	if s.undo != nil {
		s.undo(t, b)
	}
	t.Logf("%5.1f s  missed, %.1f s with all", missed.Seconds(), time.Since(began).Seconds())
}

// waitNoError waits until check returns no error.
func (b *bench) waitNoError(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = check(); last == nil {
			return
		}
	}
	t.Fatalf("waited %v until %s: %v\nit printed:\n%s", patience, what, last, b.printed())
}
