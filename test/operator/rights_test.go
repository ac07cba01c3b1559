package operator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step is something that the operator, or one of the chart's Jobs, does when something
// happens, and what rights that takes. It can be played again and again.
type step struct {
	name  string
	needs []string // rights, as right.String has them
	// happens lets it happen; done objects until the program has done what it should, and
	// undo takes everything back.
	happens func(*testing.T, *bench)
	done    func(*testing.T, *bench) error
	undo    func(*testing.T, *bench) // nil: nothing is to be taken back
	told    place
}

// place is where is said that a right is missing.
type place int

const (
	inStatus place = iota // in the policy's conditions
	inLog                 // in what the program prints: it cannot write the status, or it is not worth it
	byExit                // as inLog, and the program ends with an error
)

// What the operator may do by its chart is what it needs: on a real API server nothing
// is refused, every right is used, and whichever is taken away is missed and named.
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
	for _, r := range given(t) {
		all = append(all, r.String())
	}
	require.ElementsMatch(t, all, needed, "the chart's files/rights.yaml, and what the steps need")
}

// allAreUsed plays all steps with all rights.
func (b *bench) allAreUsed(t *testing.T) {
	b.operate(t) // as the client does it with an API server of today
	b.objection(t, "the operator works", b.works)
	for _, s := range steps {
		began := time.Now()
		b.mark()
		s.happens(t, b)
		b.objection(t, s.name+" is done, with each right that it needs", func() error {
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
	for _, r := range given(t) {
		assert.True(t, b.trail.used[r.String()], "%s is given and never used: take it out of files/rights.yaml", r)
	}
}

// hasUsed objects until the API server has been asked for something by each of the rights.
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

// eachIsMissed takes away one right at a time.
func (b *bench) eachIsMissed(t *testing.T) {
	b.furnish(t) // what was uninstalled
	b.operate(t)
	b.objection(t, "the operator works", b.works)
	rights := given(t)
	for _, s := range steps {
		for _, r := range rights {
			if !slices.Contains(s.needs, r.String()) {
				continue
			}
			t.Run(strings.ReplaceAll(r.String(), " ", "_"), func(t *testing.T) { b.isMissed(t, s, r) })
			if t.Failed() {
				t.FailNow() // those after it would tell of the same
			}
		}
	}
}

func (b *bench) isMissed(t *testing.T, s step, r right) {
	began := time.Now()
	b.mark()
	give := b.take(t, r)
	s.happens(t, b)
	b.objection(t, "the right to "+r.String()+" is missed", func() error {
		if code, ended := b.program.exited(); s.told == byExit && ended && code == 0 {
			return errors.New("it has ended well, without that right")
		} else if s.told == byExit && !ended {
			return errors.New("it has not ended")
		}
		return b.says(t, r, s.told == inStatus)
	})
	missed := time.Since(began)
	give()
	b.objection(t, s.name+" is done once the right is given back", func() error { return s.done(t, b) })
	if s.undo != nil {
		s.undo(t, b)
	}
	t.Logf("%5.1f s  missed, %.1f s with all", missed.Seconds(), time.Since(began).Seconds())
}

// objection waits until there is none any more.
func (b *bench) objection(t *testing.T, what string, object func() error) {
	t.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = object(); last == nil {
			return
		}
	}
	t.Fatalf("waited %v until %s: %v\nit printed:\n%s", patience, what, last, b.printed())
}
