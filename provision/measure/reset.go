package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

const policiesPath = "/apis/nvidia.com/v1/clusterpolicies"

// Reset deletes the ClusterPolicy and applies it again. It measures the time of an operator
// until nodes without any operand offer GPUs.
type Reset struct {
	Name string // of the policy; "": the only one
	// SavePolicy saves the policy to a file before it is deleted, so that a user can restore it if
	// this program is killed. It returns the path.
	SavePolicy func(manifest []byte) (path string, err error)

	policy map[string]any // as saved; nil: not read yet
	nodes  []string       // that offered GPUs before the first sample
}

// Reboots reports false: nodes stay up.
func (*Reset) Reboots() bool { return false }

// Nodes returns the nodes that offered GPUs before the first sample.
func (r *Reset) Nodes(*Session) []string { return r.nodes }

// Prepare deletes the policy, and waits until no operand's pod and no GPU is left.
func (r *Reset) Prepare(ctx context.Context, s *Session) error {
	if r.policy == nil {
		if err := r.readPolicy(ctx, s); err != nil {
			return err
		}
	}
	if err := s.removeWorkloads(ctx); err != nil {
		return err
	}
	if err := s.Client.Delete(ctx, r.path(), nil, nil); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ClusterPolicy %s: %w", r.Name, err)
	}
	if err := s.waitFor(ctx, "wait until nothing of the stack is left", func(all []step.Change) (bool, string) {
		for _, c := range all {
			switch {
			case c.Pod != nil && s.Options.Selectors.Of(c.Pod) != "" && slices.Contains(r.nodes, c.Pod.Spec.NodeName):
				return false, "pod " + c.Pod.Namespace + "/" + c.Pod.Name + " is there"
			case c.Node != nil && slices.Contains(r.nodes, c.Node.Name):
				if q := c.Node.Status.Allocatable[s.Options.Resource]; q.Sign() > 0 {
					return false, "node " + c.Node.Name + " still offers " + string(s.Options.Resource)
				}
			}
		}
		return true, ""
	}); err != nil {
		return err
	}
	return s.waitGone(ctx, r.path())
}

func (r *Reset) path() string { return policiesPath + "/" + url.PathEscape(r.Name) }

// readPolicy reads and saves the policy, and finds the nodes to measure.
func (r *Reset) readPolicy(ctx context.Context, s *Session) error {
	if r.Name == "" {
		var names []string
		_, err := s.Client.List(ctx, policiesPath, nil, func(raw json.RawMessage) error {
			name, _, err := nameAndLabel(raw)
			names = append(names, name)
			return err
		})
		switch {
		case apierrors.IsNotFound(err):
			return errors.New("the cluster has no ClusterPolicy resource: install an operator first, or measure another test")
		case err != nil:
			return fmt.Errorf("list ClusterPolicies: %w", err)
		case len(names) != 1:
			return fmt.Errorf("there are %d ClusterPolicies (%s); name one with --policy", len(names), strings.Join(names, ", "))
		}
		r.Name = names[0]
	}
	policy := map[string]any{}
	if err := s.Client.Get(ctx, r.path(), nil, &policy); err != nil {
		return fmt.Errorf("read ClusterPolicy %s: %w", r.Name, err)
	}
	if r.nodes = s.gpuNodes(); len(r.nodes) == 0 {
		return fmt.Errorf("no node offers %s: wait until the nodes are ready: they are the ones to measure", s.Options.Resource)
	}
	manifest := withoutServerFields(policy)
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	file, err := r.SavePolicy(text)
	if err != nil {
		return fmt.Errorf("save ClusterPolicy %s before it is deleted: %w", r.Name, err)
	}
	s.Log.Info("saved the ClusterPolicy; if this program is killed, restore it with kubectl apply -f", "file", file)
	r.policy = manifest
	return nil
}

// withoutServerFields returns an object without status and server-set metadata.
func withoutServerFields(object map[string]any) map[string]any {
	delete(object, "status")
	old, _ := object["metadata"].(map[string]any)
	metadata := map[string]any{}
	for _, key := range []string{"name", "labels", "annotations"} {
		if v, ok := old[key]; ok {
			metadata[key] = v
		}
	}
	object["metadata"] = metadata
	return object
}

// Request applies the policy, and creates a workload on each node.
func (r *Reset) Request(ctx context.Context, s *Session) error {
	if err := s.create(ctx, policiesPath, r.policy); err != nil {
		return fmt.Errorf("create ClusterPolicy %s: %w", r.Name, err)
	}
	return s.createWorkloads(ctx, r.nodes)
}

// Finish removes the workloads.
func (r *Reset) Finish(ctx context.Context, s *Session, _ *report.Sample) error {
	return s.removeWorkloads(ctx)
}

// recreatePolicy creates a ClusterPolicy unless it exists. If one is being deleted, it waits until
// that is gone.
func recreatePolicy(ctx context.Context, c *cluster.Client, path string, policy map[string]any) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		var existing metav1.PartialObjectMetadata
		err := c.Get(ctx, path, nil, &existing)
		switch {
		case apierrors.IsNotFound(err):
			if err := c.Create(ctx, policiesPath, policy, nil); !apierrors.IsAlreadyExists(err) {
				return err
			}
		case err != nil || existing.DeletionTimestamp == nil:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the policy that was deleted is still there: %w", ctx.Err())
		}
	}
}

// Restore recreates the policy if it was deleted.
func (r *Reset) Restore(ctx context.Context, s *Session) error {
	if r.policy == nil {
		return nil
	}
	if err := recreatePolicy(ctx, s.Client, r.path(), r.policy); err != nil {
		return fmt.Errorf("restore ClusterPolicy %s: %w", r.Name, err)
	}
	return nil
}
