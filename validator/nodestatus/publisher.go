// Package nodestatus publishes a node's state in the cluster: the devices that the kubelet can
// allocate, until the kubelet reports them; two conditions of the Node; labels about its
// GPUs; Events; and a startup taint, which is removed once the node can be used and put
// back if that is configured.
//
// The next request follows from the latest facts and from what was published: there is
// no queue. While the API server cannot be reached, newer facts replace older ones, and the
// latest are published when it is back. Nothing on the node waits for that.
package nodestatus

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

// heartbeat is the time after which unchanged conditions and labels are written again,
// since the Node may have been deleted and created anew.
const heartbeat = 5 * time.Minute

// The back-off after a failure: firstRetry, then twice as long each time, up to lastRetry.
// Half of it is random, so that the nodes of a cluster do not retry all at once.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// slowAnswer is the time after which a missing answer is logged; a request times out much
// later.
const slowAnswer = 3 * time.Second

// Events are limited by a token bucket: eventBurst at once, and one more each eventEvery.
const (
	eventBurst = 40
	eventEvery = 15 * time.Second
)

// FileName is the name of the memory's file, in the validator's own state directory.
const FileName = "said.json"

const maxMemory = 1 << 20

// Config configures a Publisher.
type Config struct {
	Client *kube.Client
	Node   string // its name
	BootID string
	Dir    string // of the memory
	Taint  Taint
	// Allocatable enables writing devices into the Node's status ahead of the kubelet.
	Allocatable bool
	Log         *slog.Logger
	Metrics     *Metrics

	// For tests; nil: those of package time.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
	Slow  time.Duration // 0: slowAnswer
}

// Publisher publishes a node's facts. Publish may be called from any goroutine.
type Publisher struct {
	Config
	retries map[topic]*retryState

	// Used by Run's goroutine only.
	memory        memory
	observed      map[subject]observation
	refused       map[subject]bool // Events of these subjects were refused
	written       nodeUpdate       // as written last
	writtenAt     time.Time
	unusableSince time.Time         // since when a layer has been refused; zero: none is, or the taint is not managed
	reported      map[string]int    // the kubelet's allocatable, as written last
	labelled      map[string]string // as written last
	labelledAt    time.Time
	unwritten     bool // the memory could not be written
	tokens        float64
	tokensAt      time.Time

	mu         sync.Mutex
	facts      *Facts
	generation int           // counts the facts
	settled    int           // the value of the counter up to which all is published
	change     chan struct{} // closed and replaced when one of the three changes
}

// A topic is a kind of request that is retried independently.
type topic string

const (
	topicCount  topic = "allocatable"
	topicNode   topic = "condition"
	topicLabels topic = "labels"
	topicEvents topic = "events"
)

// retryState is the back-off of a topic.
type retryState struct {
	failing error
	delay   time.Duration
	until   time.Time
}

// New returns a Publisher. If the memory of an earlier process cannot be read, New logs that
// and starts with an empty one.
func New(c Config) *Publisher {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
	c.Slow = cmp.Or(c.Slow, slowAnswer)
	v := &Publisher{
		Config: c, observed: map[subject]observation{}, refused: map[subject]bool{}, tokens: eventBurst, tokensAt: c.Now(), change: make(chan struct{}),
		retries: map[topic]*retryState{topicCount: {}, topicNode: {}, topicLabels: {}, topicEvents: {}},
	}
	v.memory = v.readMemory()
	return v
}

// Publish sets the facts to publish. They replace facts that were not published yet.
func (v *Publisher) Publish(f Facts) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.facts = &f
	v.generation++
	v.signalChange()
}

func (v *Publisher) signalChange() {
	close(v.change)
	v.change = make(chan struct{})
}

// Flush returns when all facts set so far have been published, or when ctx ends.
func (v *Publisher) Flush(ctx context.Context) error {
	v.mu.Lock()
	want := v.generation
	v.mu.Unlock()
	for {
		v.mu.Lock()
		settled, change := v.settled, v.change
		v.mu.Unlock()
		if settled >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		}
	}
}

// Run publishes the facts until ctx ends.
func (v *Publisher) Run(ctx context.Context) error {
	for {
		v.mu.Lock()
		facts, generation, change := v.facts, v.generation, v.change
		v.mu.Unlock()
		var next time.Time
		if facts != nil {
			var more, quiet bool
			more, quiet, next = v.step(ctx, *facts)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case more:
				continue // with the latest facts
			case quiet:
				v.markSettled(generation)
			}
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = v.After(next.Sub(v.Now()))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		case <-timer:
		}
	}
}

// markSettled records that the facts up to this count are published.
func (v *Publisher) markSettled(generation int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.settled < generation {
		v.settled = generation
		v.signalChange()
	}
}

// step makes one request, if one is due; then there may be more. Otherwise it returns the
// time of the next step, and reports whether all is published.
func (v *Publisher) step(ctx context.Context, f Facts) (more, quiet bool, next time.Time) {
	now := v.Now()
	wakeBy := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	quiet = true

	for _, r := range v.requests(f, now) {
		switch until := v.retries[r.topic].until; {
		case !r.due:
			wakeBy(r.next)
		case until.After(now):
			quiet = false
			wakeBy(until)
		default:
			v.attempt(ctx, r.topic, func() error { return r.write(ctx) })
			return true, false, next
		}
	}

	if f.updateMemory(&v.memory, v.observed, now) {
		v.writeMemory()
	}
	events, later := f.planEvents(v.memory, v.observed, now)
	wakeBy(later)
	if len(events) == 0 {
		return false, quiet, next
	}
	if until := v.retries[topicEvents].until; until.After(now) {
		wakeBy(until)
		return false, false, next
	}
	if at := v.nextToken(now); at.After(now) {
		wakeBy(at)
		return false, false, next
	}
	e := v.nextEvent(events)
	v.attempt(ctx, topicEvents, func() error {
		err := v.writeEvent(ctx, e)
		if err != nil {
			v.refused[e.about] = true
			return err
		}
		v.tokens--
		e.update(&v.memory)
		v.writeMemory()
		return nil
	})
	return true, false, next
}

// request is a write that is not an Event.
type request struct {
	topic topic
	due   bool
	next  time.Time // when it is due without other facts, unless it is due now; zero: never
	write func(context.Context) error
}

// requests returns the wanted requests, in their order. Pods wait for the devices, so these
// come first.
func (v *Publisher) requests(f Facts, now time.Time) []request {
	devices := f.allocatable()
	all := []request{{
		topic: topicCount, due: v.Allocatable && !maps.Equal(devices, v.reported),
		write: func(ctx context.Context) error { return v.writeAllocatable(ctx, devices) },
	}}
	taint, taintChange := v.wantedTaint(f, now)
	node := nodeUpdate{f.condition(), f.health(), taint}
	next := v.writtenAt.Add(heartbeat)
	due := node != v.written || !now.Before(next)
	if !taintChange.IsZero() && taintChange.Before(next) {
		next = taintChange
	}
	all = append(all, request{topicNode, due, next, func(ctx context.Context) error { return v.writeNode(ctx, node) }})
	if labels := f.labels(); labels != nil {
		next := v.labelledAt.Add(heartbeat)
		due := v.labelled == nil || !maps.Equal(labels, v.labelled) || !now.Before(next)
		all = append(all, request{topicLabels, due, next, func(ctx context.Context) error { return v.writeLabels(ctx, labels) }})
	}
	return all
}

// nextEvent returns the oldest event that was not refused; when all were, they are tried
// again. So a refused event delays no other.
func (v *Publisher) nextEvent(events []event) event {
	for _, e := range events {
		if !v.refused[e.about] && len(v.refused) < maxSubjects {
			return e
		}
	}
	clear(v.refused)
	return events[0]
}

// nextToken returns when the next Event may be written.
func (v *Publisher) nextToken(now time.Time) time.Time {
	v.tokens = min(eventBurst, v.tokens+float64(now.Sub(v.tokensAt))/float64(eventEvery))
	v.tokensAt = now
	if v.tokens >= 1 {
		return now
	}
	return now.Add(time.Duration((1 - v.tokens) * float64(eventEvery)))
}

// attempt makes a request, and logs a warning if the API server does not answer for long.
func (v *Publisher) attempt(ctx context.Context, t topic, ask func() error) {
	if v.retries[t].failing == nil {
		late := time.AfterFunc(v.Slow, func() {
			v.Log.Warn("the API server has not answered yet; the proofs on the node do not depend on it", "what", string(t), "after", v.Slow)
		})
		defer late.Stop()
	}
	v.recordResult(ctx, t, ask())
}

// recordResult sets the back-off of a topic, and logs the first failure and the first success
// after one.
func (v *Publisher) recordResult(ctx context.Context, t topic, err error) {
	m := v.retries[t]
	v.Metrics.observe(t, err)
	if ctx.Err() != nil {
		return // interrupted by our own end
	}
	if err == nil {
		if m.failing != nil {
			v.Log.Info("writes to the API server succeed again", "what", string(t))
		}
		*m = retryState{}
		return
	}
	if m.failing == nil || apierrors.ReasonForError(m.failing) != apierrors.ReasonForError(err) {
		v.Log.Warn("a write to the API server failed; the proofs on the node do not depend on it",
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

// readMemory reads the memory of an earlier process of this boot.
func (v *Publisher) readMemory() memory {
	fresh := memory{BootID: v.BootID, Reported: map[subject]reportedProblem{}}
	data, err := record.Read(v.memoryPath(), maxMemory)
	if err != nil {
		return fresh
	}
	var m memory
	if err := json.Unmarshal(data, &m); err != nil || len(m.Reported) > maxSubjects {
		v.Log.Warn("cannot read the record of earlier Events: Events may be repeated", "path", v.memoryPath(), "message", fmt.Sprint(err))
		return fresh
	}
	if m.BootID != v.BootID {
		return fresh
	}
	if m.Reported == nil {
		m.Reported = map[subject]reportedProblem{}
	}
	return m
}

// writeMemory writes the memory.
func (v *Publisher) writeMemory() {
	data, err := json.Marshal(v.memory)
	if err == nil {
		err = record.Write(v.memoryPath(), append(data, '\n'))
	}
	if err != nil && !v.unwritten {
		v.Log.Warn("cannot write the record of Events: they may be repeated after a restart", "message", err.Error())
	}
	v.unwritten = err != nil
}

func (v *Publisher) memoryPath() string { return filepath.Join(v.Dir, FileName) }
