package mps

import (
	"runtime"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// first and apartFromFirst are the threads on which TestMain runs, and fn of apart
// when that is called there.
var first, apartFromFirst int

// Only here can code be sure to run on the process's first thread.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // as above

func TestMain(m *testing.M) {
	first = unix.Gettid()
	ran := make(chan int)
	apart(func() { go func(tid int) { ran <- tid }(unix.Gettid()) })
	apartFromFirst = <-ran
	goleak.VerifyTestMain(m)
}
