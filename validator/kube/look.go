package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// maxListed bounds a list; further items are left out.
const maxListed = 500

// Kubeconfig returns the configuration for a cluster, found as kubectl does: the file
// given, else $KUBECONFIG, else ~/.kube/config, else that of this process's pod. context
// is one of the file's, "" for the current one.
func Kubeconfig(file, context string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no cluster is known: name a kubeconfig with --kubeconfig or $KUBECONFIG")
	}
	return c, err
}

// NodeEvents reads the Events about a Node.
func (c *Client) NodeEvents(ctx context.Context, name string) ([]corev1.Event, error) {
	selector := fields.Set{"involvedObject.kind": "Node", "involvedObject.name": name}.AsSelector().String()
	list := &corev1.EventList{}
	err := c.do(ctx, c.rest.Get().Namespace(EventNamespace).Resource("events").
		VersionedParams(&metav1.ListOptions{FieldSelector: selector, Limit: maxListed}, metav1.ParameterCodec), list)
	return list.Items, err
}

// NodePods reads the Pods on a Node that have the labels.
func (c *Client) NodePods(ctx context.Context, node string, having map[string]string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := c.do(ctx, c.rest.Get().Resource("pods").VersionedParams(&metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		LabelSelector: labels.SelectorFromSet(having).String(), Limit: maxListed,
	}, metav1.ParameterCodec), list)
	return list.Items, err
}
