package controller

import "sync"

// inbox queues updates for the goroutine that owns the model.
type inbox struct {
	mu      sync.Mutex
	updates []func(*model)
	ready   chan struct{} // holds an item while updates are queued
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (b *inbox) enqueue(update func(*model)) {
	b.mu.Lock()
	b.updates = append(b.updates, update)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *inbox) drain() []func(*model) {
	b.mu.Lock()
	defer b.mu.Unlock()
	updates := b.updates
	b.updates = nil
	return updates
}
