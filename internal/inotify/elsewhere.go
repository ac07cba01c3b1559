//go:build !linux

package inotify

import (
	"context"
	"errors"
	"log/slog"
)

// Watcher does not exist on systems other than Linux, where kubectl-gpu runs, too, which watches
// nothing.
type Watcher struct{}

var errElsewhere = errors.New("inotify: files are watched on Linux only")

// New fails.
func New() (*Watcher, error) { return nil, errElsewhere }

// NewWhole fails.
func NewWhole() (*Watcher, error) { return nil, errElsewhere }

// Add fails.
func (w *Watcher) Add(string) error { return errElsewhere }

// Remove does nothing.
func (w *Watcher) Remove(string) {}

// Next fails.
func (w *Watcher) Next(context.Context) (Event, error) { return Event{}, errElsewhere }

// Close does nothing.
func (w *Watcher) Close() error { return nil }

// SetLogger does nothing.
func SetLogger(*slog.Logger) {}
