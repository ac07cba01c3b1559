package controller

import (
	"log/slog"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/gpuready/gpuready/operator/status"
)

// toolkit watches OpenShift's Driver Toolkit, ImageStream openshift/driver-toolkit, while
// the cluster serves ImageStreams.
type toolkit struct {
	*optionalWatch
	inbox *inbox
}

func newToolkit(open func(func(error)) (cache.Cache, error), in *inbox, log *slog.Logger) *toolkit {
	t := &toolkit{inbox: in}
	setImages := func(images map[string]string) {
		in.enqueue(func(m *model) { m.toolkit, m.changed = images, true })
	}
	t.optionalWatch = &optionalWatch{
		name: "the Driver Toolkit's ImageStream", object: untyped(imageStreamKind), open: open, log: log, queue: newServedQueue(), failed: t.reportReadError,
		handler: eventHandler(
			func(u *unstructured.Unstructured) { setImages(tags(u)) },
			func(*unstructured.Unstructured) { setImages(map[string]string{}) },
		),
		synced: func() { in.enqueue(func(m *model) { m.toolkitError, m.changed = "", true }) },
	}
	return t
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

// reportReadError records why the ImageStream cannot be read. Images that were read before
// stay valid.
func (t *toolkit) reportReadError(err error) {
	t.inbox.enqueue(func(m *model) {
		if m.toolkitError != "" {
			m.toolkitError, m.changed = status.ExplainError(err), true
		}
	})
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
