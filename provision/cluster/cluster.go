// Package cluster sends the requests of gpu-provision to the Kubernetes API. Each request
// except a stream has a deadline and is tried once.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuready/gpuready/internal/version"
)

// Options names a cluster as kubectl does.
type Options struct {
	Kubeconfig string        // path; "": as kubectl finds it
	Context    string        // "": the current one of the kubeconfig
	Timeout    time.Duration // of one request
}

// Client sends requests to the API server. Its methods may be called concurrently.
type Client struct {
	rest     *rest.RESTClient
	http     *http.Client
	timeout  time.Duration
	requests atomic.Int64
	// Namespace is the namespace of the kubeconfig's context.
	Namespace string
}

// New finds the cluster as kubectl does. In a pod without a kubeconfig it is the pod's own.
func New(w Options) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = w.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: w.Context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is known: name a kubeconfig with --kubeconfig or $KUBECONFIG")
	}
	if err != nil {
		return nil, err
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	c, err := ForConfig(config, w.Timeout)
	if err != nil {
		return nil, err
	}
	c.Namespace = namespace
	return c, nil
}

// ForConfig returns a Client. Close closes its idle connections.
func ForConfig(config *rest.Config, timeout time.Duration) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.UserAgent = "gpu-provision/" + version.String()
	c.AcceptContentTypes, c.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.QPS = -1 // the requests of Observer and tests are few
	client := &Client{timeout: timeout}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			client.requests.Add(1)
			return next.RoundTrip(r)
		})
	})
	var err error
	if client.http, err = rest.HTTPClientFor(c); err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	if client.rest, err = rest.RESTClientForConfigAndClient(c, client.http); err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	return client, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Requests returns how many requests were sent so far, watches included.
func (c *Client) Requests() int64 { return c.requests.Load() }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// sendRequest sends one request and decodes the response into an object; nil discards it.
func (c *Client) sendRequest(ctx context.Context, r *rest.Request, into any) error {
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the API server has not answered within %v", c.timeout))
	defer cancel()
	response := r.MaxRetries(0).Do(limited)
	if err := response.Error(); err != nil { // unlike Raw, Error decodes the reason of a refusal
		if ctx.Err() == nil && limited.Err() != nil {
			return context.Cause(limited)
		}
		return err
	}
	data, err := response.Raw()
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode the response of the API server: %w", err)
	}
	return nil
}

// withParams adds query parameters to a request.
func withParams(r *rest.Request, params map[string]string) *rest.Request {
	for key, value := range params {
		r = r.Param(key, value)
	}
	return r
}

// Get reads the object at a path.
func (c *Client) Get(ctx context.Context, path string, params map[string]string, into any) error {
	return c.sendRequest(ctx, withParams(c.rest.Get().AbsPath(path), params), into)
}

// Create creates an object at the path of its kind.
func (c *Client) Create(ctx context.Context, path string, object, into any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return c.sendRequest(ctx, c.rest.Post().AbsPath(path).Body(body), into)
}

// Merge merges a patch into the object at a path.
func (c *Client) Merge(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return c.sendRequest(ctx, c.rest.Patch(types.MergePatchType).AbsPath(path).Body(body), nil)
}

// Delete deletes the object at a path, its dependents in the foreground. With parameters it
// deletes the selected objects of a collection.
func (c *Client) Delete(ctx context.Context, path string, grace *int64, params map[string]string) error {
	foreground := metav1.DeletePropagationForeground
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, PropagationPolicy: &foreground, GracePeriodSeconds: grace,
	})
	if err != nil {
		return err
	}
	return c.sendRequest(ctx, withParams(c.rest.Delete().AbsPath(path), params).Body(body), nil)
}

// list is one page of a list of any kind.
type list struct {
	Metadata metav1.ListMeta   `json:"metadata"`
	Items    []json.RawMessage `json:"items"`
}

// List reads all pages of a list, and calls each for every object. It returns the resource version
// from which to watch.
func (c *Client) List(ctx context.Context, path string, params map[string]string, each func(json.RawMessage) error) (string, error) {
	const page = 500
	query := map[string]string{"limit": strconv.Itoa(page)}
	maps.Copy(query, params)
	for {
		var l list
		if err := c.Get(ctx, path, query, &l); err != nil {
			return "", err
		}
		for _, item := range l.Items {
			if err := each(item); err != nil {
				return "", err
			}
		}
		if l.Metadata.Continue == "" {
			return l.Metadata.ResourceVersion, nil
		}
		query["continue"] = l.Metadata.Continue
	}
}

// Stream opens a streaming response: a watch or a log. The caller closes it.
func (c *Client) Stream(ctx context.Context, path string, params map[string]string) (io.ReadCloser, error) {
	return withParams(c.rest.Get().AbsPath(path), params).MaxRetries(0).Stream(ctx)
}
