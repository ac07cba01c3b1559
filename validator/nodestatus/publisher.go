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
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/kube"
)

// heartbeat is the time after which unchanged conditions and labels are written again,
// since the Node may have been deleted and created anew.
const heartbeat = 5 * time.Minute

// The bounds of the back-off of a topic.
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
	fault         nodestate.WriteFault // of the memory
	rewriteAt     time.Time            // when the memory is to be written again, if it has a fault
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

var topics = []topic{topicCount, topicNode, topicLabels, topicEvents}

// retryState is the back-off of a topic.
type retryState struct {
	failing error
	backoff kube.Backoff
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
	p := &Publisher{
		Config: c, observed: map[subject]observation{}, refused: map[subject]bool{}, tokens: eventBurst, tokensAt: c.Now(), change: make(chan struct{}),
		retries: map[topic]*retryState{},
	}
	for _, t := range topics {
		p.retries[t] = &retryState{backoff: kube.Backoff{First: firstRetry, Last: lastRetry}}
	}
	p.memory = p.readMemory()
	return p
}

// Publish sets the facts to publish. They replace facts that were not published yet.
func (p *Publisher) Publish(f Facts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts = &f
	p.generation++
	p.signalChange()
}

func (p *Publisher) signalChange() {
	close(p.change)
	p.change = make(chan struct{})
}

// Flush returns when all facts set so far have been published, or when ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	p.mu.Lock()
	want := p.generation
	p.mu.Unlock()
	for {
		p.mu.Lock()
		settled, change := p.settled, p.change
		p.mu.Unlock()
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
func (p *Publisher) Run(ctx context.Context) error {
	for {
		p.mu.Lock()
		facts, generation, change := p.facts, p.generation, p.change
		p.mu.Unlock()
		var next time.Time
		if facts != nil {
			var more, quiet bool
			more, quiet, next = p.step(ctx, *facts)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case more:
				continue // with the latest facts
			case quiet:
				p.markSettled(generation)
			}
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = p.After(next.Sub(p.Now()))
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
func (p *Publisher) markSettled(generation int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settled < generation {
		p.settled = generation
		p.signalChange()
	}
}

// step makes one request, if one is due; then there may be more. Otherwise it returns the
// time of the next step, and reports whether all is published.
func (p *Publisher) step(ctx context.Context, f Facts) (more, quiet bool, next time.Time) {
	now := p.Now()
	wakeBy := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	quiet = true

	for _, r := range p.requests(f, now) {
		switch until := p.retries[r.topic].until; {
		case !r.due:
			wakeBy(r.next)
		case until.After(now):
			quiet = false
			wakeBy(until)
		default:
			p.attempt(ctx, r.topic, func() error { return r.write(ctx) })
			return true, false, next
		}
	}

	if f.updateMemory(&p.memory, p.observed, now) || p.fault.Delay() > 0 && !now.Before(p.rewriteAt) {
		p.writeMemory()
	}
	if p.fault.Delay() > 0 {
		wakeBy(p.rewriteAt)
	}
	events, later := f.planEvents(p.memory, p.observed, now)
	wakeBy(later)
	if len(events) == 0 {
		return false, quiet, next
	}
	if until := p.retries[topicEvents].until; until.After(now) {
		wakeBy(until)
		return false, false, next
	}
	if at := p.nextToken(now); at.After(now) {
		wakeBy(at)
		return false, false, next
	}
	e := p.nextEvent(events)
	p.attempt(ctx, topicEvents, func() error {
		err := p.writeEvent(ctx, e)
		if err != nil {
			p.refused[e.about] = true
			return err
		}
		p.tokens--
		e.update(&p.memory)
		p.writeMemory()
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
func (p *Publisher) requests(f Facts, now time.Time) []request {
	devices := f.allocatable()
	all := []request{{
		topic: topicCount, due: p.Allocatable && !maps.Equal(devices, p.reported),
		write: func(ctx context.Context) error { return p.writeAllocatable(ctx, devices) },
	}}
	taint, taintChange := p.wantedTaint(f, now)
	node := nodeUpdate{f.condition(), f.health(), taint}
	next := p.writtenAt.Add(heartbeat)
	due := node != p.written || !now.Before(next)
	if !taintChange.IsZero() && taintChange.Before(next) {
		next = taintChange
	}
	all = append(all, request{topicNode, due, next, func(ctx context.Context) error { return p.writeNode(ctx, node) }})
	if labels := f.labels(); labels != nil {
		next := p.labelledAt.Add(heartbeat)
		due := p.labelled == nil || !maps.Equal(labels, p.labelled) || !now.Before(next)
		all = append(all, request{topicLabels, due, next, func(ctx context.Context) error { return p.writeLabels(ctx, labels) }})
	}
	return all
}

// nextEvent returns the oldest event that was not refused; when all were, they are tried
// again. So a refused event delays no other.
func (p *Publisher) nextEvent(events []event) event {
	for _, e := range events {
		if !p.refused[e.about] && len(p.refused) < maxSubjects {
			return e
		}
	}
	clear(p.refused)
	return events[0]
}

// nextToken returns when the next Event may be written.
func (p *Publisher) nextToken(now time.Time) time.Time {
	p.tokens = min(eventBurst, p.tokens+float64(now.Sub(p.tokensAt))/float64(eventEvery))
	p.tokensAt = now
	if p.tokens >= 1 {
		return now
	}
	return now.Add(time.Duration((1 - p.tokens) * float64(eventEvery)))
}

// attempt makes a request, and logs a warning if the API server does not answer for long.
func (p *Publisher) attempt(ctx context.Context, t topic, ask func() error) {
	if p.retries[t].failing == nil {
		late := time.AfterFunc(p.Slow, func() {
			p.Log.Warn("the API server has not answered yet; the proofs on the node do not depend on it", "what", string(t), "after", p.Slow)
		})
		defer late.Stop()
	}
	p.recordResult(ctx, t, ask())
}

// recordResult sets the back-off of a topic, and logs the first failure and the first success
// after one.
func (p *Publisher) recordResult(ctx context.Context, t topic, err error) {
	m := p.retries[t]
	p.Metrics.observe(t, err)
	if ctx.Err() != nil {
		return // interrupted by our own end
	}
	if err == nil {
		if m.failing != nil {
			p.Log.Info("writes to the API server succeed again", "what", string(t))
		}
		m.failing, m.until = nil, time.Time{}
		m.backoff.Reset()
		return
	}
	if m.failing == nil || apierrors.ReasonForError(m.failing) != apierrors.ReasonForError(err) {
		p.Log.Warn("a write to the API server failed; the proofs on the node do not depend on it",
			"what", string(t), "message", err.Error(), "action", kube.Advice(err))
	}
	m.failing = err
	m.until = p.Now().Add(m.backoff.Next(err))
}

// readMemory reads the memory of an earlier process of this boot.
func (p *Publisher) readMemory() memory {
	fresh := memory{BootID: p.BootID, Reported: map[subject]reportedProblem{}}
	data, err := record.Read(p.memoryPath(), maxMemory)
	if err != nil {
		return fresh
	}
	var m memory
	if err := json.Unmarshal(data, &m); err != nil || len(m.Reported) > maxSubjects {
		p.Log.Warn("cannot read the record of earlier Events: Events may be repeated", "path", p.memoryPath(), "message", fmt.Sprint(err))
		return fresh
	}
	if m.BootID != p.BootID {
		return fresh
	}
	if m.Reported == nil {
		m.Reported = map[subject]reportedProblem{}
	}
	return m
}

// writeMemory writes the memory.
func (p *Publisher) writeMemory() {
	data, err := json.Marshal(p.memory)
	if err == nil {
		err = record.Write(p.memoryPath(), append(data, '\n'))
	}
	switch changed := p.fault.Record(err); {
	case changed && err != nil:
		p.Log.Warn("cannot write the record of Events: they may be repeated after a restart", "message", err.Error())
	case changed:
		p.Log.Info("the record of Events is written again")
	}
	p.rewriteAt = p.Now().Add(p.fault.Delay())
}

func (p *Publisher) memoryPath() string { return filepath.Join(p.Dir, FileName) }
