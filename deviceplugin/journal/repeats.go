package journal

import (
	"maps"
	"sync"
	"time"
)

// pause is how long the same thing is not logged again: a program that is wrong can
// make hundreds of XIDs in a second, and a ReplicaSet a new pod for each that is
// refused.
const pause = time.Minute

// most is how many different things are told in one pause, and remembered.
const most = 64

// repeats lets one of the same things through in a while. Its methods may be called
// concurrently.
type repeats[K comparable] struct {
	mu   sync.Mutex
	told map[K]repeated
	lost int // things that were not told, and are not remembered either
}

type repeated struct {
	at   time.Time // told
	more int       // since
}

// tell says whether to tell of a thing, and how many there were since something
// like it was told last.
func (r *repeats[K]) tell(thing K, now time.Time) (more int, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.told[thing]
	if known && now.Sub(last.at) < pause {
		r.told[thing] = repeated{last.at, last.more + 1}
		return 0, false
	}
	if !known && len(r.told) >= most {
		maps.DeleteFunc(r.told, func(_ K, old repeated) bool {
			gone := now.Sub(old.at) >= pause
			if gone {
				r.lost += old.more
			}
			return gone
		})
		if len(r.told) >= most {
			r.lost++
			return 0, false
		}
	}
	if r.told == nil {
		r.told = map[K]repeated{}
	}
	r.told[thing] = repeated{at: now}
	more, r.lost = last.more+r.lost, 0
	return more, true
}
