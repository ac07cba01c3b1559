// Package kube is the few requests to the Kubernetes API that the validator
// makes: about its own Node, Events on it, and one Pod in its own namespace.
//
// It is a REST client with core/v1 types and nothing else: the typed clientset
// and informers would cost 40 MB of memory on each node. Every request has a
// deadline and is tried once; trying again is for the caller, who may by then
// have something newer to say.
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

// ServiceAccountDir is where the kubelet puts a pod's token and the CA of the
// API server.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// EventNamespace is that of Events on objects without a namespace, as Nodes are.
const EventNamespace = metav1.NamespaceDefault

// requestTimeout bounds one request. The API server's own bound is a minute;
// whoever has not heard in a quarter of it tries later.
const requestTimeout = 15 * time.Second

// WatchTimeout bounds a watch of the Node, which is then begun anew: a connection
// that died without a word is not waited for for ever.
const WatchTimeout = 10 * time.Minute

// Client makes the requests. Its methods may be called concurrently.
type Client struct {
	rest    *rest.RESTClient
	http    *http.Client
	timeout time.Duration
}

// Config finds the API server: server ("https://…") or, where that is empty, the
// one whose address pods are told. dir holds token and ca.crt; the token is read
// anew from time to time, since the kubelet rotates it, and when it is not taken.
func Config(server, dir string) (*rest.Config, error) {
	if server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("this process is in no pod (KUBERNETES_SERVICE_HOST is not set); name the API server with --api-server")
		}
		server = "https://" + net.JoinHostPort(host, port)
	}
	token := filepath.Join(dir, "token")
	// Not rest.Config's BearerTokenFile, which goes on with a token that is refused.
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

// New returns a Client; Close lets go of its connections.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.UserAgent = "gpu-validator/" + version.String()
	c.QPS = -1 // how often is for the callers, who say the latest and no more
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

// Close lets go of idle connections.
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

// WatchNode follows a Node from what n is on. Whoever asked stops the watch; it
// also ends with ctx, and by itself from time to time.
func (c *Client) WatchNode(ctx context.Context, n *corev1.Node) (watch.Interface, error) {
	seconds := int64(WatchTimeout / time.Second)
	return c.watch(ctx, c.rest.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{
		Watch: true, ResourceVersion: n.ResourceVersion, TimeoutSeconds: &seconds,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String(),
	}, metav1.ParameterCodec))
}

// watch begins a watch, within the deadline: it is the answer's head that is waited for.
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

// following is a watch whose context ends with it.
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

// PatchEvent merges patch (strategic) into an Event and returns what it is then.
func (c *Client) PatchEvent(ctx context.Context, namespace, name string, patch []byte) (*corev1.Event, error) {
	e := &corev1.Event{}
	return e, c.do(ctx, c.rest.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).Body(patch), e)
}

// CreatePod creates a Pod in its namespace and returns what became of it.
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

// WatchPod follows a Pod from what p is on. Whoever asked stops the watch; it
// also ends with ctx, and by itself from time to time.
func (c *Client) WatchPod(ctx context.Context, p *corev1.Pod) (watch.Interface, error) {
	return c.watch(ctx, c.rest.Get().Namespace(p.Namespace).Resource("pods").VersionedParams(&metav1.ListOptions{
		Watch: true, ResourceVersion: p.ResourceVersion,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String(),
	}, metav1.ParameterCodec))
}

// Advice is what somebody can do about an error of a request.
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
