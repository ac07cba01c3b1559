// Package cluster reads a cluster for kubectl-gpu: single objects, how far a node is on its way to
// usable GPUs, and everything that support needs. Except for CreateJob, LabelNode and PatchNode its requests only
// read. Each request has a deadline and is tried once, except for watches.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuready/gpuready/internal/version"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/label"
)

// pageSize is the number of objects in a page of a list; maxObjects bounds the whole list.
const (
	pageSize   = 500
	maxObjects = 20000
)

// ErrTooMany means that a list was truncated at maxObjects.
var ErrTooMany = errors.New("there are more, which are left out")

// Options selects the cluster, as kubectl's flags do.
type Options struct {
	Kubeconfig string
	Context    string
	As         string        // the user to act as; "": the kubeconfig's
	AsGroups   []string      // the groups of that user
	Timeout    time.Duration // of a request
}

// Client makes the requests. Its methods may be called concurrently.
type Client struct {
	rest    *rest.RESTClient
	http    *http.Client
	timeout time.Duration
	// Namespace is the namespace of the kubeconfig's context.
	Namespace string
}

// New finds the cluster as kubectl does.
func New(w Options) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = w.Kubeconfig
	if len(w.AsGroups) > 0 && w.As == "" {
		return nil, errors.New("--as-group needs --as, the user to act as")
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: w.Context}
	overrides.AuthInfo.Impersonate, overrides.AuthInfo.ImpersonateGroups = w.As, w.AsGroups
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
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
	if err == nil {
		c.Namespace = namespace
	}
	return c, err
}

// ForConfig returns a Client; Close closes its connections.
func ForConfig(config *rest.Config, timeout time.Duration) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.UserAgent = "kubectl-gpu/" + version.String()
	c.AcceptContentTypes, c.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.QPS = -1 // one after the other
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	r, err := rest.RESTClientForConfigAndClient(c, client)
	if err != nil {
		return nil, fmt.Errorf("a client for %s: %w", c.Host, err)
	}
	return &Client{rest: r, http: client, timeout: timeout}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Policies reads all ClusterPolicies. A cluster without their definition has none.
func (c *Client) Policies(ctx context.Context) ([]v1.ClusterPolicy, error) {
	all, err := list[v1.ClusterPolicy](ctx, c, "/apis/"+v1.Group+"/"+v1.Version+"/"+v1.Resource, nil)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}

// PolicyInForce reads the policy in force; nil if there is none.
func (c *Client) PolicyInForce(ctx context.Context) (*v1.ClusterPolicy, error) {
	policies, err := c.Policies(ctx)
	if err != nil {
		return nil, fmt.Errorf("read ClusterPolicies: %w", err)
	}
	return InForce(policies), nil
}

// agentNamespace returns the namespace of the agents, or "" if it is unknown. The policy's status has
// it. If another operator writes that, or if there is no policy, it is that of the Deployment of
// gpuready's operator, or of the agents' DaemonSets: anybody may create such objects, so that it is
// good for reading only.
func (c *Client) agentNamespace(ctx context.Context, policy *v1.ClusterPolicy) string {
	if policy != nil {
		if ns := policy.Status.OperandNamespace(); ns != "" {
			return ns
		}
	}
	if found, err := c.DeploymentsNamed(ctx, label.Deployment); err == nil {
		for i := range found {
			if found[i].Labels[label.PartOf] == label.Product {
				return OperandNamespace(&found[i])
			}
		}
	}
	if sets, err := c.AllDaemonSets(ctx); err == nil {
		for i := range sets {
			if sets[i].Labels[label.PartOf] == label.Product {
				return sets[i].Namespace
			}
		}
	}
	return ""
}

// defaultNamespace returns the agents' namespace or, if it is unknown, that of the kubeconfig.
func (c *Client) defaultNamespace(ctx context.Context, policy *v1.ClusterPolicy) string {
	return cmp.Or(c.agentNamespace(ctx, policy), c.Namespace, corev1.NamespaceDefault)
}

// OperandNamespace returns the namespace of the operands of a Deployment of gpuready's operator.
func OperandNamespace(d *appsv1.Deployment) string {
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if ns, is := strings.CutPrefix(arg, "--operand-namespace="); is {
				return ns
			}
		}
		for _, e := range c.Env {
			if e.Name == "OPERAND_NAMESPACE" && e.Value != "" {
				return e.Value
			}
		}
	}
	return d.Namespace
}

// PolicyTexts reads all ClusterPolicies as they are stored, with fields that this program does not
// know.
func (c *Client) PolicyTexts(ctx context.Context) ([]json.RawMessage, error) {
	return list[json.RawMessage](ctx, c, "/apis/"+v1.Group+"/"+v1.Version+"/"+v1.Resource, nil)
}

// Definition reads the metadata of the CustomResourceDefinition of ClusterPolicies.
func (c *Client) Definition(ctx context.Context) (metav1.ObjectMeta, error) {
	var d struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	err := c.get(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+v1.Resource+"."+v1.Group, nil, &d)
	return d.Metadata, err
}

// NVIDIADrivers reads all NVIDIADrivers.
func (c *Client) NVIDIADrivers(ctx context.Context) ([]v1alpha1.NVIDIADriver, error) {
	return list[v1alpha1.NVIDIADriver](ctx, c, "/apis/"+v1alpha1.Group+"/"+v1alpha1.Version+"/"+v1alpha1.Resource, nil)
}

// Node reads a Node.
func (c *Client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	return n, c.get(ctx, "/api/v1/nodes/"+name, nil, n)
}

// Nodes reads all Nodes that match a label selector.
func (c *Client) Nodes(ctx context.Context, selector string) ([]corev1.Node, error) {
	return list[corev1.Node](ctx, c, "/api/v1/nodes", params("labelSelector", selector))
}

// AllNamespaces selects the objects of all namespaces.
const AllNamespaces = "*"

// Pods reads a namespace's Pods by field and label selectors.
func (c *Client) Pods(ctx context.Context, namespace, fields, labels string) ([]corev1.Pod, error) {
	path := "/api/v1/namespaces/" + namespace + "/pods"
	if namespace == AllNamespaces {
		path = "/api/v1/pods"
	}
	return list[corev1.Pod](ctx, c, path, params("fieldSelector", fields, "labelSelector", labels))
}

// PodsOn reads the pods of all namespaces on a node.
func (c *Client) PodsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	return list[corev1.Pod](ctx, c, "/api/v1/pods", params("fieldSelector", "spec.nodeName="+node))
}

// ProductPods reads the product's pods of all namespaces.
func (c *Client) ProductPods(ctx context.Context) ([]corev1.Pod, error) {
	return list[corev1.Pod](ctx, c, "/api/v1/pods", params("labelSelector", label.PartOf+"="+label.Product))
}

// AllDaemonSets reads the DaemonSets of all namespaces.
func (c *Client) AllDaemonSets(ctx context.Context) ([]appsv1.DaemonSet, error) {
	return list[appsv1.DaemonSet](ctx, c, "/apis/apps/v1/daemonsets", nil)
}

// DeploymentsNamed reads the Deployments of a name in all namespaces.
func (c *Client) DeploymentsNamed(ctx context.Context, name string) ([]appsv1.Deployment, error) {
	return list[appsv1.Deployment](ctx, c, "/apis/apps/v1/deployments", params("fieldSelector", "metadata.name="+name))
}

// RuntimeClasses reads all RuntimeClasses.
func (c *Client) RuntimeClasses(ctx context.Context) ([]nodev1.RuntimeClass, error) {
	return list[nodev1.RuntimeClass](ctx, c, "/apis/node.k8s.io/v1/runtimeclasses", nil)
}

// ResourceClaims reads all ResourceClaims in the API server's preferred version. There are none if
// it does not serve them.
func (c *Client) ResourceClaims(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var group metav1.APIGroup
	err := c.get(ctx, "/apis/resource.k8s.io", nil, &group)
	var items []map[string]any // items of a list have no kind
	if err == nil {
		items, err = list[map[string]any](ctx, c, "/apis/"+group.PreferredVersion.GroupVersion+"/resourceclaims", nil)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, item := range items {
		all = append(all, &unstructured.Unstructured{Object: item})
	}
	return all, nil
}

// RuntimeClass returns a RuntimeClass.
func (c *Client) RuntimeClass(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	class := &nodev1.RuntimeClass{}
	return class, c.get(ctx, "/apis/node.k8s.io/v1/runtimeclasses/"+name, nil, class)
}

// DaemonSets reads the product's DaemonSets in a namespace.
func (c *Client) DaemonSets(ctx context.Context, namespace string) ([]appsv1.DaemonSet, error) {
	return list[appsv1.DaemonSet](ctx, c, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets", params("labelSelector", label.PartOf+"="+label.Product))
}

// Deployments reads the product's Deployments in a namespace.
func (c *Client) Deployments(ctx context.Context, namespace string) ([]appsv1.Deployment, error) {
	return list[appsv1.Deployment](ctx, c, "/apis/apps/v1/namespaces/"+namespace+"/deployments", params("labelSelector", label.PartOf+"="+label.Product))
}

// Events reads a namespace's Events by a field selector.
func (c *Client) Events(ctx context.Context, namespace, fields string) ([]corev1.Event, error) {
	return list[corev1.Event](ctx, c, "/api/v1/namespaces/"+namespace+"/events", params("fieldSelector", fields))
}

// Job reads a Job.
func (c *Client) Job(ctx context.Context, namespace, name string) (*batchv1.Job, error) {
	j := &batchv1.Job{}
	return j, c.get(ctx, "/apis/batch/v1/namespaces/"+namespace+"/jobs/"+name, nil, j)
}

// CreateJob creates a Job, and returns it as the API server has stored it.
func (c *Client) CreateJob(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	body, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	made := &batchv1.Job{}
	return made, c.post(ctx, "/apis/batch/v1/namespaces/"+job.Namespace+"/jobs", body, made)
}

// MayWriteNodes reports whether a ServiceAccount may write Nodes.
func (c *Client) MayWriteNodes(ctx context.Context, namespace, account string) (bool, error) {
	for _, verb := range []string{"update", "patch"} {
		body, err := json.Marshal(&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"},
		}})
		if err != nil {
			return false, err
		}
		var review authorizationv1.SubjectAccessReview
		if err := c.post(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", body, &review); err != nil || review.Status.Allowed {
			return err == nil, err
		}
	}
	return false, nil
}

// HasGroup reports whether the cluster serves a group of APIs.
func (c *Client) HasGroup(ctx context.Context, group string) (bool, error) {
	_, err := c.Raw(ctx, "/apis/"+group, nil)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Output reads a container's output.
func (c *Client) Output(ctx context.Context, namespace, pod, container string) ([]byte, error) {
	return c.Raw(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/log", params("container", container, "limitBytes", "65536"))
}

// Log reads the end of a container's log.
func (c *Client) Log(ctx context.Context, namespace, pod, container string, previous bool, lines, bytes int) ([]byte, error) {
	return c.Raw(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/log", map[string]string{
		"container": container, "previous": strconv.FormatBool(previous), "tailLines": strconv.Itoa(lines), "limitBytes": strconv.Itoa(bytes), "timestamps": "true",
	})
}
