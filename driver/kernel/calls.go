package kernel

import "golang.org/x/sys/unix"

// Calls are the system calls that identify the kernel, and load and unload modules.
type Calls interface {
	Uname(u *unix.Utsname) error
	FinitModule(fd int, params string, flags int) error
	InitModule(data []byte, params string) error
	DeleteModule(name string, flags int) error
}

// Running implements Calls with the running kernel.
type Running struct{}

// Uname calls uname(2).
func (Running) Uname(u *unix.Utsname) error { return unix.Uname(u) }

// FinitModule calls finit_module(2).
func (Running) FinitModule(fd int, params string, flags int) error {
	return unix.FinitModule(fd, params, flags)
}

// InitModule calls init_module(2).
func (Running) InitModule(data []byte, params string) error { return unix.InitModule(data, params) }

// DeleteModule calls delete_module(2).
func (Running) DeleteModule(name string, flags int) error { return unix.DeleteModule(name, flags) }
