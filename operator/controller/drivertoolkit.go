package controller

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/gpuready/gpuready/operator/rbac"
)

// toolkit watches OpenShift's Driver Toolkit, ImageStream openshift/driver-toolkit, while
// the cluster serves ImageStreams. Their API may appear after the operator has started, and
// a watch of a missing API would retry forever.
type toolkit struct {
	open  func(failed func(error)) (cache.Cache, error)
	inbox *inbox
	log   *slog.Logger
	queue workqueue.TypedRateLimitingInterface[bool] // whether ImageStreams are served now

	stop func() // ends the watch; nil if there is none
}

func newToolkit(open func(func(error)) (cache.Cache, error), in *inbox, log *slog.Logger) *toolkit {
	return &toolkit{open: open, inbox: in, log: log,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[bool](firstRetry, lastRetry))}
}

func (t *toolkit) onServed(m *model, _ *metav1.PartialObjectMetadata) {
	if !m.openShift {
		m.openShift, m.toolkitError, m.changed = true, "it is being read", true
		t.queue.Add(true)
	}
}

func (t *toolkit) onUnserved(m *model, _ *metav1.PartialObjectMetadata) {
	m.openShift, m.toolkit, m.changed = false, map[string]string{}, true
	t.queue.Add(false)
}

// run starts and stops the watch until ctx ends.
func (t *toolkit) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, t.queue.ShutDown)
	defer stop()
	for {
		served, ended := t.queue.Get()
		if ended {
			t.stopWatch()
			return nil
		}
		t.stopWatch()
		var err error
		if served {
			err = t.startWatch(ctx)
		}
		if err != nil && ctx.Err() == nil {
			t.log.Warn("cannot watch the Driver Toolkit's ImageStream; retrying", "error", err)
			t.queue.AddRateLimited(served)
		} else {
			t.queue.Forget(served)
		}
		t.queue.Done(served)
	}
}

func (t *toolkit) startWatch(ctx context.Context) error {
	streams, err := t.open(t.reportReadError)
	if err != nil {
		return err
	}
	informer, err := streams.GetInformer(ctx, untyped(imageStreamKind), cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	setImages := func(images map[string]string) {
		t.inbox.enqueue(func(m *model) { m.toolkit, m.changed = images, true })
	}
	if _, err := informer.AddEventHandler(eventHandler(
		func(u *unstructured.Unstructured) { setImages(tags(u)) },
		func(*unstructured.Unstructured) { setImages(map[string]string{}) },
	)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := streams.Start(ctx); err != nil {
			t.log.Error("the watch of the Driver Toolkit's ImageStream ended", "error", err)
		}
	})
	running.Go(func() {
		if streams.WaitForCacheSync(ctx) {
			t.inbox.enqueue(func(m *model) { m.toolkitError, m.changed = "", true })
		}
	})
	t.stop = func() { cancel(); running.Wait() }
	return nil
}

// reportReadError records why the ImageStream cannot be read. Images that were read before
// stay valid.
func (t *toolkit) reportReadError(err error) {
	t.inbox.enqueue(func(m *model) {
		if m.toolkitError != "" {
			m.toolkitError, m.changed = rbac.Explain(err), true
		}
	})
}

func (t *toolkit) stopWatch() {
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
}

// tags returns the images of an ImageStream by tag: as specified, or else as imported.
func tags(u *unstructured.Unstructured) map[string]string {
	images := map[string]string{}
	imported, _, _ := unstructured.NestedSlice(u.Object, "status", "tags")
	for _, tag := range imported {
		t, _ := tag.(map[string]any)
		name, _, _ := unstructured.NestedString(t, "tag")
		items, _, _ := unstructured.NestedSlice(t, "items")
		if len(items) == 0 {
			continue
		}
		first, _ := items[0].(map[string]any)
		if image, _, _ := unstructured.NestedString(first, "dockerImageReference"); name != "" && image != "" {
			images[name] = image
		}
	}
	specified, _, _ := unstructured.NestedSlice(u.Object, "spec", "tags")
	for _, tag := range specified {
		t, _ := tag.(map[string]any)
		name, _, _ := unstructured.NestedString(t, "name")
		kind, _, _ := unstructured.NestedString(t, "from", "kind")
		if image, _, _ := unstructured.NestedString(t, "from", "name"); kind == "DockerImage" && name != "" && image != "" {
			images[name] = image
		}
	}
	return images
}

// stripImageStream keeps only the fields that tags reads.
func stripImageStream(in any) (any, error) {
	u, is := in.(*unstructured.Unstructured)
	if !is {
		return in, nil
	}
	u.SetManagedFields(nil)
	u.SetAnnotations(nil)
	specified, _, _ := unstructured.NestedSlice(u.Object, "spec", "tags")
	for _, tag := range specified {
		if t, is := tag.(map[string]any); is {
			maps.DeleteFunc(t, func(key string, _ any) bool { return key != "name" && key != "from" })
		}
	}
	if specified != nil {
		_ = unstructured.SetNestedSlice(u.Object, specified, "spec", "tags")
	}
	return u, nil
}
