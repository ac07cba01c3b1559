package evict

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/operator/upgrade"
)

// Requests removes pods through the API server. Unlike client-go, it does not wait and resend
// after a response with Retry-After: the queue does that.
type Requests struct{ core rest.Interface }

// NewRequests returns Requests for an API server that use the given HTTP client.
func NewRequests(server *rest.Config, with *http.Client) (*Requests, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(server)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	core, err := rest.RESTClientForConfigAndClient(config, with)
	return &Requests{core}, err
}

// Evict requests the eviction of a pod.
func (r *Requests) Evict(ctx context.Context, pod upgrade.Removal) error {
	return send(ctx, r.core.Post().SubResource("eviction"), pod, policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: podPrecondition(pod),
	})
}

// Delete deletes a pod.
func (r *Requests) Delete(ctx context.Context, pod upgrade.Removal) error {
	o := podPrecondition(pod)
	o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	return send(ctx, r.core.Delete(), pod, o)
}

// podPrecondition returns options that spare a newer pod of the same name.
func podPrecondition(pod upgrade.Removal) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID(pod.UID))}}
}

func send(ctx context.Context, request *rest.Request, pod upgrade.Removal, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return request.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text).MaxRetries(0).Do(ctx).Error()
}

// unique sorts texts and removes duplicates.
func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}
