package nodestate

import (
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ReasonNotWritable is the reason of a component that cannot write its state or another file for
// others, for example because the file system is full.
const ReasonNotWritable gpu.Reason = "StateNotWritable"

// The delays before a failed write is tried again, doubled each time. No event signals that a file
// system has room again.
const (
	firstRewrite = time.Second
	lastRewrite  = 5 * time.Second
)

// WriteFault tracks failed attempts to write a file, and the delay before the next attempt. The zero
// value has no fault.
type WriteFault struct {
	delay time.Duration // before the next try; 0: there is no fault
}

// Record records the result of an attempt. It reports whether a fault began or ended with it, so that
// the caller logs each fault once when it begins and once when it ends.
func (f *WriteFault) Record(err error) (changed bool) {
	before := f.delay
	switch {
	case err == nil:
		f.delay = 0
	case before == 0:
		f.delay = firstRewrite
	default:
		f.delay = min(2*before, lastRewrite)
	}
	return (before == 0) != (f.delay == 0)
}

// Delay returns the delay before the next try; 0: there is no fault.
func (f *WriteFault) Delay() time.Duration { return f.delay }
