package mps

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/leak"
)

// first and ownThread are the threads of TestMain, and of fn when runOnOwnThread
// is called there.
var first, ownThread int

// Only here can code be sure to run on the process's first thread.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // as above

func TestMain(m *testing.M) {
	first = unix.Gettid()
	ran := make(chan int)
	runOnOwnThread(func() { go func(tid int) { ran <- tid }(unix.Gettid()) })
	ownThread = <-ran
	leak.Main(m)
}
