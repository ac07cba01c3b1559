// Package leak fails a program of tests that leave goroutines behind.
package leak

import "go.uber.org/goleak"

// Main runs a program's tests, and fails if goroutines are left, as goleak.VerifyTestMain does. Those that end an
// inotify instance may be left: on a busy machine the kernel takes longer over that than goleak waits.
func Main(m goleak.TestingM, options ...goleak.Option) {
	goleak.VerifyTestMain(m, append(options,
		goleak.IgnoreAnyFunction("github.com/gpuready/gpuready/internal/inotify.leave.func1"),
		goleak.IgnoreAnyFunction("internal/poll.(*SysFile).destroy"),
	)...)
}
