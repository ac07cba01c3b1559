package report

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/validator/kube"
)

// partOf is the label of all parts of the product.
var partOf = map[string]string{"app.kubernetes.io/part-of": "gpuready"}

// ExplainCluster reads a Node, its pods and its Events from the API server.
func ExplainCluster(ctx context.Context, client *kube.Client, name string, now time.Time) (explain.Report, error) {
	node, err := client.Node(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return explain.Report{}, fmt.Errorf("read Node %s: %w; see kubectl get nodes", name, err)
	case err != nil:
		return explain.Report{}, fmt.Errorf("read Node %s: %w", name, err)
	}
	c := explain.Cluster{Node: node}
	c.Pods, c.PodsErr = client.NodePods(ctx, name, partOf)
	c.Events, c.EventsErr = client.NodeEvents(ctx, name)
	return explain.FromCluster(c, now), nil
}
