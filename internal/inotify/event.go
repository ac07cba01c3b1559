// Package inotify watches directories with one inotify instance for the whole
// process. Linux gives a user 128 instances by default, shared by everything that runs
// as root on a node. A process with one instance for each of its watchers would use a
// good part of them.
//
// If the kernel has no instance, watch or file descriptor left, a Watcher falls back to
// polling: every few seconds it reports that changes may have been Missed, and tries
// again. Its user need not handle that case.
package inotify

import "errors"

// EventKind is the kind of an Event.
type EventKind int

// The kinds of Event.
const (
	Changed EventKind = iota + 1 // an entry of the directory was created, written to, renamed or removed
	Gone                         // the directory itself was removed, renamed or unmounted: it is no longer watched
	Missed                       // events were lost: anything may have changed
)

// Event is one thing that happened in a directory.
type Event struct {
	Kind EventKind
	Dir  string // as given to Add; "" with Missed
	Name string // of the entry; "" unless Changed
}

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("inotify: closed")
