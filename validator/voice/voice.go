// Package voice tells the cluster what is known of a node: how many devices the kubelet
// can give to pods, where the kubelet has not said so yet; two conditions of the
// Node, labels that say what its GPUs are, Events on it, and a startup taint that is
// taken away once the node can be used, and put back if that is asked for.
//
// What is to be said follows from the latest facts and from what has been said:
// nothing is queued. While the API server cannot be reached facts replace each
// other, and what is true when it is back is said then; nobody who works on the
// node waits for that.
package voice

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/kube"
)

// The condition is said again after this time although it is the same, for the
// Node may have been deleted and made anew.
const heartbeat = 5 * time.Minute

// After a failure the next try comes after firstRetry, then after twice as long
// each time, up to lastRetry; half of it is chance, so that the nodes of a
// cluster do not come all at once.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// slowAnswer is how long an answer takes before it is told that there is none yet;
// a request is given up much later.
const slowAnswer = 3 * time.Second

// Events come from a bucket: so many at once, and one more each eventEvery.
const (
	eventBurst = 40
	eventEvery = 15 * time.Second
)

// FileName is that of the memory, in the validator's own state directory.
const FileName = "said.json"

const maxMemory = 1 << 20

// Config is what a Voice needs.
type Config struct {
	Client *kube.Client
	Node   string // its name
	BootID string
	Dir    string // of the memory
	Taint  Taint
	// Allocatable reports whether the Node's status is told of devices ahead of the kubelet.
	Allocatable bool
	Log         *slog.Logger
	Metrics     *Metrics

	// Of use in tests; nil: the time package's.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
	Slow  time.Duration // 0: slowAnswer
}

// Voice says it. Say may be called from any goroutine.
type Voice struct {
	Config
	mouth map[topic]*patienceOf

	// Of Run's goroutine.
	memory     memory
	seen       map[subject]sighting
	refused    map[subject]bool // whose Events were not taken
	spoken     spoken           // as said last
	saidAt     time.Time
	unusable   time.Time         // since when a layer has been refused; zero: none is, or nobody asks
	reported   map[string]int    // what the kubelet can allocate, as said last
	labelled   map[string]string // as said last
	labelledAt time.Time
	unwritten  bool // the memory
	tokens     float64
	tokensAt   time.Time

	mu     sync.Mutex
	facts  *Facts
	news   int           // counts the facts
	told   int           // up to which of them all is said
	change chan struct{} // closed and made anew when one of the three changes
}

// A topic is what fails, and is tried again, by itself.
type topic string

const (
	topicCount  topic = "allocatable"
	topicNode   topic = "condition"
	topicLabels topic = "labels"
	topicEvents topic = "events"
)

// patienceOf is when a topic may be tried again.
type patienceOf struct {
	failing error
	delay   time.Duration
	until   time.Time
}

// New returns a Voice that has said nothing yet. Where the memory of an earlier
// process cannot be read that is logged and it begins with an empty one.
func New(c Config) *Voice {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
	c.Slow = cmp.Or(c.Slow, slowAnswer)
	v := &Voice{
		Config: c, seen: map[subject]sighting{}, refused: map[subject]bool{}, tokens: eventBurst, tokensAt: c.Now(), change: make(chan struct{}),
		mouth: map[topic]*patienceOf{topicCount: {}, topicNode: {}, topicLabels: {}, topicEvents: {}},
	}
	v.memory = v.recall()
	return v
}

// Say hands over what is known now. It replaces what was not said yet.
func (v *Voice) Say(f Facts) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.facts = &f
	v.news++
	v.changed()
}

func (v *Voice) changed() {
	close(v.change)
	v.change = make(chan struct{})
}

// Settled returns when all that was handed over has been said, or with ctx.
func (v *Voice) Settled(ctx context.Context) error {
	v.mu.Lock()
	want := v.news
	v.mu.Unlock()
	for {
		v.mu.Lock()
		told, change := v.told, v.change
		v.mu.Unlock()
		if told >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		}
	}
}

// Run speaks until ctx ends.
func (v *Voice) Run(ctx context.Context) error {
	for {
		v.mu.Lock()
		facts, news, change := v.facts, v.news, v.change
		v.mu.Unlock()
		var wake time.Time
		if facts != nil {
			var more, quiet bool
			more, quiet, wake = v.step(ctx, *facts)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case more:
				continue // with what may have become known meanwhile
			case quiet:
				v.tell(news)
			}
		}
		var timer <-chan time.Time
		if !wake.IsZero() {
			timer = v.After(wake.Sub(v.Now()))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		case <-timer:
		}
	}
}

// tell records that all is said up to those facts.
func (v *Voice) tell(news int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.told < news {
		v.told = news
		v.changed()
	}
}

// step says one thing, if there is one to say and it may be tried now: then
// there may be more. Else it returns when to look again, and whether all is said.
func (v *Voice) step(ctx context.Context, f Facts) (more, quiet bool, wake time.Time) {
	now := v.Now()
	sooner := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	quiet = true

	if want := f.allocatable(); v.Allocatable && !maps.Equal(want, v.reported) {
		if until := v.mouth[topicCount].until; until.After(now) {
			quiet = false
			sooner(until)
		} else {
			v.say(ctx, topicCount, func() error { return v.sayAllocatable(ctx, want) })
			return true, false, wake
		}
	}

	due := v.saidAt.Add(heartbeat)
	taint, taintLater := v.taintWish(f, now)
	if !taintLater.IsZero() {
		sooner(taintLater)
	}
	if want := (spoken{f.condition(), f.health(), taint}); want != v.spoken || !now.Before(due) {
		if until := v.mouth[topicNode].until; until.After(now) {
			quiet = false
			sooner(until)
		} else {
			v.say(ctx, topicNode, func() error { return v.sayNode(ctx, want) })
			return true, false, wake
		}
	} else {
		sooner(due)
	}

	due = v.labelledAt.Add(heartbeat)
	if want := f.labels(); want != nil {
		if until := v.mouth[topicLabels].until; v.labelled != nil && maps.Equal(want, v.labelled) && now.Before(due) {
			sooner(due)
		} else if until.After(now) {
			quiet = false
			sooner(until)
		} else {
			v.say(ctx, topicLabels, func() error { return v.sayLabels(ctx, want) })
			return true, false, wake
		}
	}

	if f.notice(&v.memory, v.seen, now) {
		v.remember()
	}
	events, later := f.plan(v.memory, v.seen, now)
	if !later.IsZero() {
		sooner(later)
	}
	if len(events) == 0 {
		return false, quiet, wake
	}
	if until := v.mouth[topicEvents].until; until.After(now) {
		sooner(until)
		return false, false, wake
	}
	if next := v.token(now); next.After(now) {
		sooner(next)
		return false, false, wake
	}
	e := v.next(events)
	v.say(ctx, topicEvents, func() error {
		err := v.sayEvent(ctx, e)
		if err != nil {
			v.refused[e.about] = true
			return err
		}
		v.tokens--
		e.remember(&v.memory)
		v.remember()
		return nil
	})
	return true, false, wake
}

// next returns the oldest event that was not refused; when all were, they are
// tried anew. One that is never taken holds up no other.
func (v *Voice) next(events []event) event {
	for _, e := range events {
		if !v.refused[e.about] && len(v.refused) < maxSubjects {
			return e
		}
	}
	clear(v.refused)
	return events[0]
}

// token returns when the next Event may be said.
func (v *Voice) token(now time.Time) time.Time {
	v.tokens = min(eventBurst, v.tokens+float64(now.Sub(v.tokensAt))/float64(eventEvery))
	v.tokensAt = now
	if v.tokens >= 1 {
		return now
	}
	return now.Add(time.Duration((1 - v.tokens) * float64(eventEvery)))
}

// say asks the API server, and tells it where that keeps silent for long.
func (v *Voice) say(ctx context.Context, t topic, ask func() error) {
	if v.mouth[t].failing == nil {
		late := time.AfterFunc(v.Slow, func() {
			v.Log.Warn("the API server has not answered yet; the proofs on the node do not depend on it", "what", string(t), "after", v.Slow)
		})
		defer late.Stop()
	}
	v.outcome(ctx, t, ask())
}

// outcome chooses when a topic is tried again, and logs the first failure and
// the first success after one.
func (v *Voice) outcome(ctx context.Context, t topic, err error) {
	m := v.mouth[t]
	v.Metrics.observe(t, err)
	if ctx.Err() != nil {
		return // cut off by our own end
	}
	if err == nil {
		if m.failing != nil {
			v.Log.Info("said again what the API server had not taken", "what", string(t))
		}
		*m = patienceOf{}
		return
	}
	if m.failing == nil || apierrors.ReasonForError(m.failing) != apierrors.ReasonForError(err) {
		v.Log.Warn("the API server does not take what this node has to say; the proofs on the node do not depend on it",
			"what", string(t), "message", err.Error(), "action", kube.Advice(err))
	}
	m.failing = err
	m.delay = min(max(firstRetry, 2*m.delay), lastRetry)
	wait := m.delay/2 + rand.N(m.delay/2+1)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		wait = max(wait, min(time.Duration(seconds)*time.Second, lastRetry))
	}
	m.until = v.Now().Add(wait)
}

// recall reads the memory of an earlier process of this boot.
func (v *Voice) recall() memory {
	fresh := memory{BootID: v.BootID, Said: map[subject]said{}}
	data, err := record.Read(v.path(), maxMemory)
	if err != nil {
		return fresh
	}
	var m memory
	if err := json.Unmarshal(data, &m); err != nil || len(m.Said) > maxSubjects {
		v.Log.Warn("what was said before cannot be read: Events may be repeated", "path", v.path(), "message", fmt.Sprint(err))
		return fresh
	}
	if m.BootID != v.BootID {
		return fresh
	}
	if m.Said == nil {
		m.Said = map[subject]said{}
	}
	return m
}

// remember writes the memory down.
func (v *Voice) remember() {
	data, err := json.Marshal(v.memory)
	if err == nil {
		err = record.Write(v.path(), append(data, '\n'))
	}
	if err != nil && !v.unwritten {
		v.Log.Warn("cannot write down what was said: Events may be repeated after a restart", "message", err.Error())
	}
	v.unwritten = err != nil
}

func (v *Voice) path() string { return filepath.Join(v.Dir, FileName) }
