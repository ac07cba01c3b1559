package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// NodeView is a Node with the pods on it, at one moment.
type NodeView struct {
	Node *corev1.Node // nil: there is none of that name
	Pods []corev1.Pod // of all namespaces
}

const (
	// watchSeconds is the time after which the API server ends a watch; the next one begins with
	// a list.
	watchSeconds = "300"
	// retryPause is the pause after a request that failed.
	retryPause = time.Second
)

// FollowNode calls evaluate with a Node and its pods: at once, and after every change, until
// evaluate returns true or an error. It returns ctx's cause when ctx ends. A request that fails is
// retried, unless the API server refuses it.
func (c *Client) FollowNode(ctx context.Context, name string, evaluate func(NodeView) (bool, error)) error {
	return c.followLists(ctx, func(ctx context.Context, f *follower) func() (bool, error) {
		nodes := followList[corev1.Node](ctx, f, "/api/v1/nodes", "metadata.name="+name)
		pods := followList[corev1.Pod](ctx, f, "/api/v1/pods", "spec.nodeName="+name)
		return func() (bool, error) {
			node, hasNode := nodes.objects()
			all, hasPods := pods.objects()
			if !hasNode || !hasPods {
				return false, nil
			}
			view := NodeView{Pods: all}
			if len(node) > 0 {
				view.Node = &node[0]
			}
			return evaluate(view)
		}
	})
}

// FollowPolicies calls show with all ClusterPolicies and, if there are none, with all Nodes: at once,
// and after every change, until show returns an error. It returns ctx's cause when ctx ends. Requests
// are retried as by FollowNode.
func (c *Client) FollowPolicies(ctx context.Context, show func([]v1.ClusterPolicy, []corev1.Node) error) error {
	return c.followLists(ctx, func(ctx context.Context, f *follower) func() (bool, error) {
		policies := followList[v1.ClusterPolicy](ctx, f, "/apis/"+v1.Group+"/"+v1.Version+"/"+v1.Resource, "")
		var nodes *mirror[corev1.Node] // nil: not needed so far
		return func() (bool, error) {
			all, listed := policies.objects()
			if !listed {
				return false, nil
			}
			if len(all) == 0 && nodes == nil {
				nodes = followList[corev1.Node](ctx, f, "/api/v1/nodes", "")
			}
			var without []corev1.Node
			if len(all) == 0 {
				if without, listed = nodes.objects(); !listed {
					return false, nil
				}
			}
			return false, show(all, without)
		}
	})
}

// follower follows up to two lists.
type follower struct {
	client  *Client
	changed chan struct{}
	failed  chan error
	wait    sync.WaitGroup
}

// followLists calls begin, which begins to follow lists, and its result after every change of these
// lists, until that returns true or an error. It returns ctx's cause when ctx ends.
func (c *Client) followLists(ctx context.Context, begin func(context.Context, *follower) (evaluate func() (bool, error))) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{client: c, changed: make(chan struct{}, 1), failed: make(chan error, 2)}
	defer f.wait.Wait()
	defer cancel()
	evaluate := begin(ctx, f)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-f.failed:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		case <-f.changed:
		}
		if done, err := evaluate(); done || err != nil {
			return err
		}
	}
}

// followList begins to follow a list.
func followList[T any](ctx context.Context, f *follower, path, selector string) *mirror[T] {
	m := &mirror[T]{changed: f.changed, byUID: map[string]T{}}
	f.wait.Go(func() { f.failed <- m.run(ctx, f.client, path, selector) })
	return m
}

// mirror is a copy of the objects of a list, kept up to date by a watch.
type mirror[T any] struct {
	changed chan<- struct{} // gets a value after each change
	mu      sync.Mutex
	listed  bool
	byUID   map[string]T
}

// objects returns the objects, and whether they were listed at all.
func (m *mirror[T]) objects() ([]T, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []T
	for _, uid := range slices.Sorted(maps.Keys(m.byUID)) {
		all = append(all, m.byUID[uid])
	}
	return all, m.listed
}

// isEmpty reports whether it is known that there are no objects.
func (m *mirror[T]) isEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listed && len(m.byUID) == 0
}

func (m *mirror[T]) update(change func()) {
	m.mu.Lock()
	change()
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default: // the reader has not read the last one
	}
}

// run lists and watches until ctx ends or the API server refuses.
func (m *mirror[T]) run(ctx context.Context, c *Client, path, selector string) error {
	for ctx.Err() == nil {
		began := time.Now()
		err := m.follow(ctx, c, path, selector)
		ended := err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return fmt.Errorf("watch %s: %w", path, err)
		case apierrors.IsNotFound(err): // without its definition there is no object of a kind; it may come
			if !m.isEmpty() {
				m.update(func() { m.byUID, m.listed = map[string]T{}, true })
			}
		case ended && time.Since(began) > retryPause:
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
	return ctx.Err()
}

// follow lists the objects and watches them until the watch ends.
func (m *mirror[T]) follow(ctx context.Context, c *Client, path, selector string) error {
	all := map[string]T{}
	query := params("fieldSelector", selector)
	var page listPage[json.RawMessage] // in one piece: policies are few, and Nodes at most some thousands
	if err := c.get(ctx, path, query, &page); err != nil {
		return err
	}
	for _, item := range page.Items {
		uid, object, err := decodeObject[T](item)
		if err != nil {
			return err
		}
		all[uid] = object
	}
	m.update(func() { m.byUID, m.listed = all, true })
	watch := c.rest.Get().AbsPath(path).MaxRetries(0)
	if selector != "" {
		watch = watch.Param("fieldSelector", selector)
	}
	stream, err := watch.Param("watch", "true").
		Param("resourceVersion", page.Metadata.ResourceVersion).Param("timeoutSeconds", watchSeconds).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return m.read(stream)
}

// read applies the events of a watch until it ends.
func (m *mirror[T]) read(stream io.Reader) error {
	decoder := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := decoder.Decode(&event); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.Type == "ERROR":
			var status metav1.Status
			if err := json.Unmarshal(event.Object, &status); err != nil {
				return err
			}
			return &apierrors.StatusError{ErrStatus: status}
		}
		uid, object, err := decodeObject[T](event.Object)
		if err != nil {
			return err
		}
		m.update(func() {
			if event.Type == "DELETED" {
				delete(m.byUID, uid)
			} else {
				m.byUID[uid] = object
			}
		})
	}
}

// decodeObject returns an object and what identifies it.
func decodeObject[T any](data []byte) (uid string, object T, err error) {
	var meta metav1.PartialObjectMetadata
	if err = json.Unmarshal(data, &meta); err == nil {
		err = json.Unmarshal(data, &object)
	}
	return strings.Join([]string{meta.Namespace, meta.Name, string(meta.UID)}, "/"), object, err
}

// fieldManager is this program's name in the API server's record of who wrote a field.
const fieldManager = "kubectl-gpu"

// LabelNode changes labels of a Node; "" removes one. The change is based on the Node's
// resourceVersion: if the Node was changed since, the error is a conflict, and nothing is written.
func (c *Client) LabelNode(ctx context.Context, node *corev1.Node, labels map[string]string) error {
	values := map[string]*string{}
	for key, value := range labels {
		values[key] = nil
		if value != "" {
			values[key] = &value
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "labels": values}})
	if err != nil {
		return err
	}
	_, err = c.PatchNode(ctx, node.Name, "", body)
	return err
}

// PatchNode applies a merge patch to a Node, or to its subresource status a strategic merge patch. It
// returns the Node after that.
func (c *Client) PatchNode(ctx context.Context, name, subresource string, body []byte) (*corev1.Node, error) {
	path, kind := "/api/v1/nodes/"+name, types.MergePatchType
	if subresource != "" {
		path, kind = path+"/"+subresource, types.StrategicMergePatchType
	}
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	r := c.rest.Verb(http.MethodPatch).AbsPath(path).Param("fieldManager", fieldManager).
		SetHeader("Content-Type", string(kind)).Body(body).MaxRetries(0)
	data, err := responseBody(ctx, r.Do(ctx))
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	return node, json.Unmarshal(data, node)
}
