package kube

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Backoff is the pause after failed requests: First, then twice as long each time, up to
// Last. Half of it is random, so that the nodes of a cluster do not retry all at once.
type Backoff struct {
	First, Last time.Duration
	delay       time.Duration
}

// Next returns the pause after a request that failed with err. It is at least as long as the
// API server asks for, within Last.
func (b *Backoff) Next(err error) time.Duration {
	b.delay = min(max(b.First, 2*b.delay), b.Last)
	wait := b.delay/2 + rand.N(b.delay/2+1)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		wait = max(wait, min(time.Duration(seconds)*time.Second, b.Last))
	}
	return wait
}

// Reset makes the next pause First.
func (b *Backoff) Reset() { b.delay = 0 }
