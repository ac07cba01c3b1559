package apply

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
)

// Timeout bounds one request.
const Timeout = 15 * time.Second

// Apply makes one change by server-side apply. It takes back fields that other managers own, as
// the object is the operator's. It returns the resulting object.
func Apply(ctx context.Context, c client.Client, change Change) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	u := change.Object.DeepCopy()
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(label.FieldManager), client.ForceOwnership)
	if err != nil {
		return nil, fmt.Errorf("apply %s: %w", change.Key, err)
	}
	return u, nil
}

// Prune deletes an object if it still has the planned UID. Its pods are deleted in the
// background, as by a manual deletion.
func Prune(ctx context.Context, c client.Client, o client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	uid := o.GetUID()
	preconditions := metav1.Preconditions{}
	if uid != "" {
		preconditions.UID = &uid
	}
	err := c.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions(preconditions))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", o.GetName(), err)
	}
	return nil
}
