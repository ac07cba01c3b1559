package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/label"
)

const crdsUsage = `Upgrade the cluster's CustomResourceDefinition of ClusterPolicy to this version. Helm
installs it but never changes it, so the chart runs this command before an upgrade.

A definition of another owner (without the label app.kubernetes.io/part-of=gpuready) is
left unchanged, and the command fails.

Examples:
  gpu-operator crds --kubeconfig ~/.kube/config
`

func upgradeCRDs(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("crds", crdsUsage, stdout)
	o.addAPIFlags()
	if err := o.parse(args); err != nil {
		return err
	}
	if _, err := o.logger(stderr); err != nil {
		return err
	}
	kube, err := o.restConfig()
	if err != nil {
		return err
	}
	c, err := client.New(kube, client.Options{Scheme: runtime.NewScheme()})
	if err != nil {
		return err
	}
	return upgradeDefinition(ctx, c)
}

// definitionTimeout bounds the requests that upgrade the definition.
const definitionTimeout = 30 * time.Second

// upgradeDefinition replaces the cluster's definition by that of this version. It returns an error, with
// what to do, if the definition is missing or is not ours by the label
// app.kubernetes.io/part-of.
func upgradeDefinition(ctx context.Context, c client.Client) error {
	want, err := definition()
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	switch err := c.Get(short, client.ObjectKeyFromObject(want), have); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("CustomResourceDefinition %s is not there: apply the chart's crds/ first", want.GetName())
	case err != nil:
		return fmt.Errorf("CustomResourceDefinition %s: %w", want.GetName(), err)
	case have.Labels[label.PartOf] != label.Product:
		return fmt.Errorf("CustomResourceDefinition %s is not gpuready's: it has no label %s=%s. NVIDIA's operator may have installed it; if nothing else needs it, add the label and try again",
			want.GetName(), label.PartOf, label.Product)
	}
	if err := c.Apply(short, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(label.FieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: %w", want.GetName(), err)
	}
	return nil
}

// definition returns the definition of this version.
func definition() (*unstructured.Unstructured, error) {
	want := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(deployments.ClusterPolicyCRD(), &want.Object); err != nil {
		return nil, fmt.Errorf("the program's own CustomResourceDefinition: %w", err)
	}
	unstructured.RemoveNestedField(want.Object, "metadata", "creationTimestamp")
	want.SetLabels(map[string]string{label.PartOf: label.Product})
	return want, nil
}
