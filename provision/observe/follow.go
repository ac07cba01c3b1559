package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/provision/step"
)

// Bounds of the back-off before a stream is listed again.
const (
	minWait = 100 * time.Millisecond
	maxWait = time.Second
)

// follower lists and watches one stream for an Observer.
type follower struct {
	*Observer
	stream
	known map[types.UID]object // existing objects
	// broken is the time at which the stream was last complete; 0 while it is complete.
	broken   time.Duration
	received time.Duration // when the watch last delivered something
}

// object is the last version of an object that was emitted. Of an Event only the version is kept.
type object struct {
	version string
	last    step.Change
}

// followStream lists a stream and watches it, until the context ends. When a watch breaks it lists
// again. It sets Late on all changes that the new list shows, since they may be that old.
func (o *Observer) followStream(ctx context.Context, s stream) error {
	f := follower{Observer: o, stream: s, known: map[types.UID]object{}}
	listed := false
	wait := minWait
	for ctx.Err() == nil {
		version, err := f.listAll(ctx)
		switch {
		case err == nil:
			listed = true
			o.markSynced()
			f.broken, wait = 0, minWait
			f.watchUntilBroken(ctx, version)
			f.broken = max(o.markUnsynced(), f.received)
		case ctx.Err() == nil && !listed:
			return fmt.Errorf("list %s: %w", s.name, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, maxWait)
	}
	return nil
}

// listAll reads all objects, and emits the changes since the last time.
func (f *follower) listAll(ctx context.Context) (version string, err error) {
	type arrival struct {
		uid     types.UID
		version string
		change  step.Change
	}
	listed, arrivals := map[types.UID]bool{}, []arrival(nil)
	version, err = f.client.List(ctx, f.path, f.params, func(raw json.RawMessage) error {
		c, uid, at, err := f.decodeObject(raw)
		if err != nil {
			return err
		}
		listed[uid] = true
		if f.known[uid].version != at {
			arrivals = append(arrivals, arrival{uid, at, c})
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	// Deletions come first: a new node may have the name of a deleted one.
	for uid, o := range f.known {
		if listed[uid] {
			continue
		}
		o.last.Gone = true
		if err := f.emitChange(ctx, uid, "", o.last); err != nil {
			return "", err
		}
	}
	for _, n := range arrivals {
		if err := f.emitChange(ctx, n.uid, n.version, n.change); err != nil {
			return "", err
		}
	}
	return version, nil
}

// watchUntilBroken watches from a resource version until a watch breaks. The API server ends each
// watch after the requested time; that is not a break.
func (f *follower) watchUntilBroken(ctx context.Context, version string) {
	for {
		lifetime := 5*time.Minute + rand.N(5*time.Minute)
		began := f.clock.Now()
		next, err := f.watchOnce(ctx, version, lifetime)
		if err != nil || next == "" || f.clock.Now()-began < lifetime-time.Second {
			return
		}
		version = next
	}
}

// event is one line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// errEnded is returned when the API server ends a watch and requires a new list.
var errEnded = errors.New("the watch has ended")

// watchOnce watches from a resource version for the lifetime of one watch. It returns the
// version from which to continue; an error or "" means that a new list is needed.
func (f *follower) watchOnce(ctx context.Context, version string, lifetime time.Duration) (string, error) {
	watching, cancel := context.WithTimeout(ctx, lifetime+heartbeat)
	defer cancel()
	f.setCancel(f.name, cancel)
	params := map[string]string{"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": strconv.Itoa(int(lifetime.Seconds()))}
	maps.Copy(params, f.params)
	body, err := f.client.Stream(watching, f.path, params)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	decoder := json.NewDecoder(body)
	for {
		var e event
		if err := decoder.Decode(&e); err != nil {
			return version, nil //nolint:nilerr // the time of the end shows whether it is a break
		}
		f.received = f.clock.Now()
		if e.Type == "ERROR" {
			return "", errEnded
		}
		c, uid, at, err := f.decodeObject(e.Object)
		if err != nil {
			return "", err
		}
		version = at
		if e.Type == "BOOKMARK" {
			continue
		}
		c.Gone = e.Type == "DELETED"
		if err := f.emitChange(ctx, uid, at, c); err != nil { // even if the watch has just ended
			return "", err
		}
	}
}

// decodeObject decodes an object, and returns its UID and resource version.
func (f *follower) decodeObject(raw json.RawMessage) (step.Change, types.UID, string, error) {
	var c step.Change
	var meta *metav1.ObjectMeta
	var err error
	switch f.path {
	case nodesPath:
		c.Node = &corev1.Node{}
		meta, err = &c.Node.ObjectMeta, json.Unmarshal(raw, c.Node)
	case podsPath:
		c.Pod = &corev1.Pod{}
		meta, err = &c.Pod.ObjectMeta, json.Unmarshal(raw, c.Pod)
	default:
		c.Event = &corev1.Event{}
		meta, err = &c.Event.ObjectMeta, json.Unmarshal(raw, c.Event)
	}
	if err != nil {
		return c, "", "", fmt.Errorf("%s: %w", f.name, err)
	}
	return c, meta.UID, meta.ResourceVersion, nil
}

// emitChange timestamps a change and sends it.
func (f *follower) emitChange(ctx context.Context, uid types.UID, version string, c step.Change) error {
	c.At = f.clock.Now()
	if f.broken > 0 {
		c.Late = c.At - f.broken
	}
	f.updateSnapshot(uid, c)
	if c.Node != nil || c.Pod != nil || c.Event != nil { // else an Event was deleted
		select {
		case f.changes <- c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case c.Gone:
		delete(f.known, uid)
	case c.Event != nil:
		f.known[uid] = object{version: version}
	default:
		f.known[uid] = object{version, c}
	}
	return nil
}

// updateSnapshot adds an object to the Observer's snapshot, or removes it.
func (f *follower) updateSnapshot(uid types.UID, c step.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.Gone:
		delete(f.nodes, uid)
		delete(f.pods, uid)
	case c.Node != nil:
		f.nodes[uid] = c.Node
	case c.Pod != nil:
		f.pods[uid] = c.Pod
	}
}
