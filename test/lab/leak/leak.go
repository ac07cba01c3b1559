// Package leak fails a program of tests that leave goroutines behind.
package leak

import (
	"time"

	"go.uber.org/goleak"
)

// patience bounds the end of goroutines: on a busy machine the kernel takes longer to close an inotify
// instance than the half second that goleak waits.
const patience = 10 * time.Second

// Main runs a program's tests, and fails if goroutines are left that the options do not ignore, as
// goleak.VerifyTestMain does.
func Main(m goleak.TestingM, options ...goleak.Option) {
	goleak.VerifyTestMain(&patient{m, options}, options...)
}

// patient waits after the tests until no goroutine is left.
type patient struct {
	tests   goleak.TestingM
	options []goleak.Option
}

// Run implements goleak.TestingM.
func (p *patient) Run() int {
	code, ended := p.tests.Run(), time.Now()
	for code == 0 && time.Since(ended) < patience {
		if goleak.Find(p.options...) == nil { // which waits for half a second
			break
		}
	}
	return code
}
