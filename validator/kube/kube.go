// Package kube makes the validator's few requests to the Kubernetes API: about its own
// Node, Events on it, and Pods in its own namespace.
//
// It is a REST client with core/v1 types and nothing else: the typed clientset
// and informers would cost 40 MB of memory on each node. Every request has a
// deadline and is tried once; trying again is for the caller, who may by then
// have something newer to say.
//
// A NodeReader watches the Node: its labels select a configuration for components without a
// token, and its status describes kubelet and runtime.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/gpuready/gpuready/internal/version"
)

// ServiceAccountDir is the folder where the kubelet puts a pod's token and the CA of the
// API server.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// EventNamespace is the namespace of Events on objects without one, such as Nodes.
const EventNamespace = metav1.NamespaceDefault

// requestTimeout bounds one request, at a quarter of the API server's own bound of a
// minute.
const requestTimeout = 15 * time.Second

// watchTimeout bounds a watch of the Node, which is then restarted: a dead connection
// gives no error.
const watchTimeout = 10 * time.Minute

// Client makes the requests. Its methods may be called concurrently.
type Client struct {
	rest    *rest.RESTClient
	http    *http.Client
	timeout time.Duration
}

// Config returns the configuration for the API server: server ("https://…") or, if that
// is empty, the address in the pod's environment. dir holds token and ca.crt. The token is
// read again from time to time, since the kubelet rotates it, and when it is refused.
func Config(server, dir string) (*rest.Config, error) {
	if server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("this process is in no pod (KUBERNETES_SERVICE_HOST is not set); name the API server with --api-server")
		}
		server = "https://" + net.JoinHostPort(host, port)
	}
	token := filepath.Join(dir, "token")
	// Not rest.Config's BearerTokenFile, which keeps using a token that is refused.
	c := &rest.Config{Host: server, WrapTransport: transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(token))}
	if _, err := os.Stat(token); err != nil {
		return nil, fmt.Errorf("%w; let the pod have its service account's token (automountServiceAccountToken)", err)
	}
	if ca := filepath.Join(dir, "ca.crt"); fileExists(ca) {
		c.CAFile = ca
	}
	return c, nil
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// New returns a Client; Close closes its connections.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.UserAgent = "gpu-validator/" + version.String()
	c.QPS = -1 // the callers limit their rate
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	r, err := rest.RESTClientForConfigAndClient(c, client)
	if err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	return &Client{rest: r, http: client, timeout: requestTimeout}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do makes one request, within the deadline.
func (c *Client) do(ctx context.Context, r *rest.Request, into runtime.Object) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the API server has not answered within %v", c.timeout))
	defer cancel()
	err := r.MaxRetries(0).Do(ctx).Into(into)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// Node reads a Node.
func (c *Client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	return n, c.do(ctx, c.rest.Get().Resource("nodes").Name(name), n)
}

// WatchNode watches a Node from the resource version of n on. The caller stops the watch;
// it also ends with ctx, and by itself from time to time.
func (c *Client) WatchNode(ctx context.Context, n *corev1.Node) (watch.Interface, error) {
	seconds := int64(watchTimeout / time.Second)
	return c.watch(ctx, c.rest.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{
		Watch: true, ResourceVersion: n.ResourceVersion, TimeoutSeconds: &seconds,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String(),
	}, metav1.ParameterCodec))
}

// watch starts a watch. The deadline holds for the response header only.
func (c *Client) watch(ctx context.Context, r *rest.Request) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := fmt.Errorf("the API server has not begun the watch within %v", c.timeout)
	timer := time.AfterFunc(c.timeout, func() { cancel(late) })
	w, err := r.MaxRetries(0).Watch(ctx)
	if !timer.Stop() && err == nil {
		w.Stop()
		err = late
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), late) && !errors.Is(err, late) {
			err = fmt.Errorf("%w: %w", late, err)
		}
		cancel(nil)
		return nil, err
	}
	return &following{w, func() { cancel(nil) }}, nil
}

// following is a watch that cancels its context when it is stopped.
type following struct {
	watch.Interface
	end func()
}

// Stop stops it.
func (f *following) Stop() {
	f.Interface.Stop()
	f.end()
}

// PatchNodeStatus merges patch (strategic) into a Node's status.
func (c *Client) PatchNodeStatus(ctx context.Context, name string, patch []byte) error {
	return c.do(ctx, c.rest.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status").Body(patch), &corev1.Node{})
}

// MergeNode merges patch (RFC 7386) into a Node.
func (c *Client) MergeNode(ctx context.Context, name string, patch []byte) error {
	return c.do(ctx, c.rest.Patch(types.MergePatchType).Resource("nodes").Name(name).Body(patch), &corev1.Node{})
}

// PatchNode applies a JSON patch (RFC 6902) to a Node.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte) error {
	return c.do(ctx, c.rest.Patch(types.JSONPatchType).Resource("nodes").Name(name).Body(patch), &corev1.Node{})
}

// CreateEvent creates an Event in its namespace.
func (c *Client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.do(ctx, c.rest.Post().Namespace(e.Namespace).Resource("events").Body(e), &corev1.Event{})
}

// PatchEvent merges patch (strategic) into an Event and returns the patched Event.
func (c *Client) PatchEvent(ctx context.Context, namespace, name string, patch []byte) (*corev1.Event, error) {
	e := &corev1.Event{}
	return e, c.do(ctx, c.rest.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).Body(patch), e)
}

// CreatePod creates a Pod in its namespace and returns the created Pod.
func (c *Client) CreatePod(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	out := &corev1.Pod{}
	return out, c.do(ctx, c.rest.Post().Namespace(p.Namespace).Resource("pods").Body(p), out)
}

// Pod reads a Pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	return p, c.do(ctx, c.rest.Get().Namespace(namespace).Resource("pods").Name(name), p)
}

// DeletePod deletes a Pod, if it is still the one with that UID.
func (c *Client) DeletePod(ctx context.Context, p *corev1.Pod) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
	return c.do(ctx, c.rest.Delete().Namespace(p.Namespace).Resource("pods").Name(p.Name).Body(options), &corev1.Pod{})
}

// WatchPod watches a Pod from the resource version of p on. The caller stops the watch;
// it also ends with ctx, and by itself from time to time.
func (c *Client) WatchPod(ctx context.Context, p *corev1.Pod) (watch.Interface, error) {
	return c.watch(ctx, c.rest.Get().Namespace(p.Namespace).Resource("pods").VersionedParams(&metav1.ListOptions{
		Watch: true, ResourceVersion: p.ResourceVersion,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String(),
	}, metav1.ParameterCodec))
}

// Advice returns what a person can do about an error of a request.
func Advice(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "give the service account the rights of deployments/static/gpuready.yaml; if it has them, see which admission policy refuses"
	case apierrors.IsUnauthorized(err):
		return "see that the pod's token is the one of this cluster"
	case apierrors.IsNotFound(err):
		return "see that --node-name is the name of this Node"
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return "nothing: somebody else changed the Node at the same time"
	}
	return "nothing, if the API server is away for a while; else see that this node reaches it"
}
