package plugin

import (
	"maps"
	"sync"
	"time"
)

// repeatInterval is the time during which an event is not logged again: a faulty
// program can cause hundreds of XIDs in a second, and a ReplicaSet creates a new pod
// for each that is refused.
const repeatInterval = time.Minute

// maxKeys is the number of different events that are logged in one interval, and
// remembered.
const maxKeys = 64

// repeatFilter allows one event of a key per interval. Its methods may be called
// concurrently.
type repeatFilter[K comparable] struct {
	mu     sync.Mutex
	logged map[K]occurrence
	lost   int // events that were not logged and whose key is no longer remembered
}

type occurrence struct {
	at   time.Time // last logged
	more int       // similar events since, which were not logged
}

// allow reports whether to log an event. more is the number of events with this key that were not
// logged since the last that was.
func (r *repeatFilter[K]) allow(key K, now time.Time) (more int, allowed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.logged[key]
	if known && now.Sub(last.at) < repeatInterval {
		r.logged[key] = occurrence{last.at, last.more + 1}
		return 0, false
	}
	if !known && len(r.logged) >= maxKeys {
		maps.DeleteFunc(r.logged, func(_ K, old occurrence) bool {
			expired := now.Sub(old.at) >= repeatInterval
			if expired {
				r.lost += old.more
			}
			return expired
		})
		if len(r.logged) >= maxKeys {
			r.lost++
			return 0, false
		}
	}
	if r.logged == nil {
		r.logged = map[K]occurrence{}
	}
	r.logged[key] = occurrence{at: now}
	more, r.lost = last.more+r.lost, 0
	return more, true
}
