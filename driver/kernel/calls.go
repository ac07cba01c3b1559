package kernel

import "golang.org/x/sys/unix"

// Calls are the system calls by which a kernel is asked who it is, and gets and loses
// modules.
type Calls interface {
	Uname(u *unix.Utsname) error
	FinitModule(fd int, params string, flags int) error
	InitModule(data []byte, params string) error
	DeleteModule(name string, flags int) error
}

// Running has the calls of the kernel that runs.
type Running struct{}

// Uname is uname(2).
func (Running) Uname(u *unix.Utsname) error { return unix.Uname(u) }

// FinitModule is finit_module(2).
func (Running) FinitModule(fd int, params string, flags int) error {
	return unix.FinitModule(fd, params, flags)
}

// InitModule is init_module(2).
func (Running) InitModule(data []byte, params string) error { return unix.InitModule(data, params) }

// DeleteModule is delete_module(2).
func (Running) DeleteModule(name string, flags int) error { return unix.DeleteModule(name, flags) }
