package main

import (
	"context"
	"errors"
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

const crdsUsage = `Upgrade the cluster's CustomResourceDefinitions of ClusterPolicy and NVIDIADriver to this
version. Helm installs them but never changes them, so the chart runs this command before
an upgrade.

A definition of another owner (without the label app.kubernetes.io/part-of=gpuready) is
left unchanged. If it is that of ClusterPolicy, or that is missing, the command fails. For
NVIDIADriver it only says so: drivers of the ClusterPolicy need no definition of it.

Examples:
  gpu-operator crds --kubeconfig ~/.kube/config
`

func upgradeCRDs(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("crds", crdsUsage, stdout)
	o.addAPIFlags()
	if err := o.parse(args); err != nil {
		return err
	}
	log, err := o.logger(stderr)
	if err != nil {
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
	if err := upgradeDefinition(ctx, c, deployments.ClusterPolicyCRD()); err != nil {
		return err
	}
	if err := upgradeDefinition(ctx, c, deployments.NVIDIADriverCRD()); errors.Is(err, errLeftAlone) {
		log.Warn("left as it is", "error", err)
	} else if err != nil {
		return err
	}
	return nil
}

// errLeftAlone means that a definition is missing or another owner's.
var errLeftAlone = errors.New("nothing is changed")

// definitionTimeout bounds the requests that upgrade the definition.
const definitionTimeout = 30 * time.Second

// upgradeDefinition replaces the cluster's definition by that of this version. It returns an
// errLeftAlone, with what to do, if the definition is missing or is not ours by the label
// app.kubernetes.io/part-of.
func upgradeDefinition(ctx context.Context, c client.Client, text []byte) error {
	want, err := definition(text)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	switch err := c.Get(short, client.ObjectKeyFromObject(want), have); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("CustomResourceDefinition %s is not there, and %w: apply the chart's crds/ first", want.GetName(), errLeftAlone)
	case err != nil:
		return fmt.Errorf("CustomResourceDefinition %s: %w", want.GetName(), err)
	case have.Labels[label.PartOf] != label.Product:
		return fmt.Errorf("CustomResourceDefinition %s is not gpuready's, and %w: it has no label %s=%s. NVIDIA's operator may have installed it; if nothing else needs it, add the label and try again",
			want.GetName(), errLeftAlone, label.PartOf, label.Product)
	}
	if err := c.Apply(short, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(label.FieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: %w", want.GetName(), err)
	}
	return nil
}

// definition decodes a definition of this version.
func definition(text []byte) (*unstructured.Unstructured, error) {
	want := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &want.Object); err != nil {
		return nil, fmt.Errorf("the program's own CustomResourceDefinition: %w", err)
	}
	unstructured.RemoveNestedField(want.Object, "metadata", "creationTimestamp")
	want.SetLabels(map[string]string{label.PartOf: label.Product})
	return want, nil
}
