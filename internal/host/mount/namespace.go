package mount

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace calls do on a thread with a mount namespace of its own. Both end with do, and so do
// the mounts that do makes. Processes that do starts are in that namespace.
func InNamespace(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread does not end, and /proc/self shows it.
			defer runtime.UnlockOSThread()
			done <- InNamespace(do)
			return
		}
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			done <- fmt.Errorf("make a mount namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}
