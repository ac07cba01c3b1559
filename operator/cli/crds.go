package cli

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/crd"
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
	return crd.Upgrade(ctx, c)
}
