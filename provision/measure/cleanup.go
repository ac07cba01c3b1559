package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/step"
)

// Cleanup removes what killed runs have left: pods and NodeClaims with their label. It also
// creates the given policy, if any, unless one with its name exists. It returns a line for
// each action that it took, or with dry would take. A failed action does not stop the others.
func Cleanup(ctx context.Context, c *cluster.Client, policy map[string]any, dry bool) ([]string, error) {
	done, err := cleanPolicy(ctx, c, policy, dry)
	errs := []error{err}
	for _, path := range []string{"/api/v1/pods", "/apis/karpenter.sh/v1/nodeclaims"} {
		more, err := cleanKind(ctx, c, path, dry)
		done, errs = append(done, more...), append(errs, err)
	}
	return done, errors.Join(errs...)
}

// cleanPolicy creates a policy unless it exists.
func cleanPolicy(ctx context.Context, c *cluster.Client, policy map[string]any, dry bool) ([]string, error) {
	if policy == nil {
		return nil, nil
	}
	meta, _ := policy["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" || policy["kind"] != "ClusterPolicy" {
		return nil, errors.New("the policy's file has no ClusterPolicy with a name")
	}
	path := policiesPath + "/" + url.PathEscape(name)
	var existing metav1.PartialObjectMetadata
	switch err := c.Get(ctx, path, nil, &existing); {
	case err == nil && existing.DeletionTimestamp == nil:
		return nil, nil
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read ClusterPolicy %s: %w", name, err)
	case dry:
		return []string{"create ClusterPolicy " + name}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, restoreWithin)
	defer cancel()
	if err := recreatePolicy(ctx, c, path, policy); err != nil {
		return nil, fmt.Errorf("create ClusterPolicy %s: %w", name, err)
	}
	return []string{"create ClusterPolicy " + name}, nil
}

// cleanKind deletes the objects of a kind that have the label of a run.
func cleanKind(ctx context.Context, c *cluster.Client, path string, dry bool) ([]string, error) {
	var done []string
	_, err := c.List(ctx, path, map[string]string{"labelSelector": step.WorkloadLabel}, func(raw json.RawMessage) error {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		objectPath := path + "/" + o.Name
		action := "delete NodeClaim " + o.Name
		if o.Namespace != "" {
			objectPath, action = "/api/v1/namespaces/"+o.Namespace+"/pods/"+o.Name, "delete pod "+o.Namespace+"/"+o.Name
		}
		if !dry {
			if err := c.Delete(ctx, objectPath, nil, nil); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w", action, err)
			}
		}
		done = append(done, action)
		return nil
	})
	// Without Karpenter the kind does not exist, or RBAC forbids it.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && strings.HasPrefix(path, "/apis/karpenter") {
		err = nil
	}
	return done, err
}
