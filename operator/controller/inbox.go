package controller

import "sync"

// inbox is where all that was seen waits for the goroutine that owns the model.
type inbox struct {
	mu   sync.Mutex
	news []func(*model)
	wake chan struct{} // has an item while there is news
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(news func(*model)) {
	b.mu.Lock()
	b.news = append(b.news, news)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []func(*model) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news := b.news
	b.news = nil
	return news
}
