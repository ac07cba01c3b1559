package controller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/gpuready/gpuready/operator/driver"
)

// How soon a registry is asked again: it tells nobody when an image appears.
const (
	againAbsent  = 30 * time.Second
	againUnknown = 10 * time.Second
	lastAgain    = 5 * time.Minute
	againPresent = time.Hour
)

// asker asks registries for images, one at a time, so that nothing else waits for them.
type asker struct {
	look  func(ctx context.Context, image string, pullSecrets []string) driver.Presence
	inbox *inbox
	queue workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	wanted  map[string]bool
	secrets []string
}

func newAsker(look func(context.Context, string, []string) driver.Presence, in *inbox) *asker {
	return &asker{look: look, inbox: in, wanted: map[string]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](againUnknown, lastAgain))}
}

// want has images asked for, and no others any more.
func (a *asker) want(images map[string]bool, secrets []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := !slices.Equal(a.secrets, secrets)
	for image := range images {
		if changed || !a.wanted[image] {
			a.queue.Add(image)
		}
	}
	a.wanted, a.secrets = maps.Clone(images), secrets
}

func (a *asker) asked(image string) ([]string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secrets, a.wanted[image]
}

// run asks until ctx ends.
func (a *asker) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, a.queue.ShutDown)
	defer stop()
	for {
		image, ended := a.queue.Get()
		if ended {
			return nil
		}
		a.ask(ctx, image)
		a.queue.Done(image)
	}
}

func (a *asker) ask(ctx context.Context, image string) {
	secrets, wanted := a.asked(image)
	if !wanted {
		a.queue.Forget(image)
		return
	}
	presence := a.look(ctx, image, secrets)
	if ctx.Err() != nil {
		return
	}
	switch presence.State {
	case driver.Unknown:
		a.queue.AddRateLimited(image)
	case driver.Present:
		a.queue.Forget(image)
		a.queue.AddAfter(image, againPresent)
	default:
		a.queue.Forget(image)
		a.queue.AddAfter(image, againAbsent)
	}
	a.inbox.put(func(m *model) { m.presence[image] = presence })
}
