package probe

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// sharedMemory is the folder in which clients of MPS share memory with the server.
const sharedMemory = "/dev/shm"

// startWithShm starts a program that sees the host's folder shm as its /dev/shm, as the containers of MPS
// clients do, and returns a function to call once the program has ended. Without the right to mount, the
// program sees ours; the MPS control daemon then refuses it.
//
// The folder is mounted in a mount namespace, which belongs to a thread. That thread has to outlive the
// program, which the kernel kills with it (Pdeathsig).
func startWithShm(cmd *exec.Cmd, shm string, start func(*exec.Cmd) error) (end func(), err error) {
	started, ended := make(chan error, 1), make(chan struct{})
	go onDisposableThread(func() {
		if unix.Unshare(unix.CLONE_NEWNS) == nil && unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "") == nil {
			_ = unix.Mount(shm, sharedMemory, "", unix.MS_BIND|unix.MS_REC, "")
		}
		started <- start(cmd)
		<-ended
	})
	return func() { close(ended) }, <-started
}

// onDisposableThread runs fn on a thread that ends with it. The process's first thread is none: it lives
// as long as the process.
func onDisposableThread(fn func()) {
	runtime.LockOSThread() // for ever, so that the thread ends with its goroutine
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	other := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(other)
		fn()
	}()
	<-other
	runtime.UnlockOSThread()
}
