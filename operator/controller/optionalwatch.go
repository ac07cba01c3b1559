package controller

import (
	"context"
	"log/slog"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// optionalWatch watches the objects of a kind while the cluster serves it. The kind's API may
// appear after the operator has started, and a watch of a missing API would retry forever.
type optionalWatch struct {
	name    string        // of the objects, for the log
	object  client.Object // of the kind
	open    func(failed func(error)) (cache.Cache, error)
	handler toolscache.ResourceEventHandler
	synced  func()      // is called when all objects have been handled
	failed  func(error) // is called when they cannot be listed or watched
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[bool] // whether the kind is served now

	stop func() // ends the watch; nil if there is none
}

func newServedQueue() workqueue.TypedRateLimitingInterface[bool] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[bool](firstRetry, lastRetry))
}

// run starts and stops the watch until ctx ends.
func (w *optionalWatch) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	for {
		served, ended := w.queue.Get()
		if ended {
			w.stopWatch()
			return nil
		}
		w.stopWatch()
		var err error
		if served {
			err = w.startWatch(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Warn("cannot watch "+w.name+"; retrying", "error", err)
			w.queue.AddRateLimited(served)
		} else {
			w.queue.Forget(served)
		}
		w.queue.Done(served)
	}
}

func (w *optionalWatch) startWatch(ctx context.Context) error {
	objects, err := w.open(w.failed)
	if err != nil {
		return err
	}
	informer, err := objects.GetInformer(ctx, w.object, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	handled, err := informer.AddEventHandler(w.handler)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := objects.Start(ctx); err != nil {
			w.log.Error("the watch of "+w.name+" ended", "error", err)
		}
	})
	running.Go(func() {
		if toolscache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
			w.synced()
		}
	})
	w.stop = func() { cancel(); running.Wait() }
	return nil
}

func (w *optionalWatch) stopWatch() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}
