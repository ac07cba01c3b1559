package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// add labels an object with the operator and the state, sets its digest, and appends it to the
// objects.
func (r *renderer) add(s progress.State, o client.Object) error {
	operator := r.spec.Operator
	labels, annotations := map[string]string{}, map[string]string{}
	maps.Copy(labels, r.labels("operator.labels", operator.Labels))
	maps.Copy(annotations, r.annotations("operator.annotations", operator.Annotations))
	maps.Copy(labels, o.GetLabels())
	maps.Copy(annotations, o.GetAnnotations())
	labels[label.ManagedBy], labels[label.PartOf], labels[label.State] = label.Operator, label.Product, string(s)
	delete(annotations, label.Digest)
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	digest, err := digestOf(o)
	if err != nil {
		return fmt.Errorf("%s %s: %w", s, o.GetName(), err)
	}
	annotations[label.Digest] = digest
	o.SetAnnotations(annotations)
	r.objects = append(r.objects, Object{s, o, digest})
	return nil
}

// digestOf returns the SHA-256 of v as JSON, whose keys encoding/json sorts. A program of the same
// version computes the same digest.
func digestOf(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
