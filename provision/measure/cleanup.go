package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/step"
)

// Cleanup removes what runs that were killed have left: pods and NodeClaims with their
// label. It creates a policy, where one is given, if none with its name is there. What it
// did, or with dry would do, is returned, a line each.
func Cleanup(ctx context.Context, c *cluster.Client, policy map[string]any, dry bool) ([]string, error) {
	var done []string
	for _, path := range []string{"/api/v1/pods", "/apis/karpenter.sh/v1/nodeclaims"} {
		said, err := cleanKind(ctx, c, path, dry)
		done = append(done, said...)
		if err != nil {
			return done, err
		}
	}
	if policy == nil {
		return done, nil
	}
	meta, _ := policy["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" || policy["kind"] != "ClusterPolicy" {
		return done, errors.New("the policy's file has no ClusterPolicy with a name")
	}
	err := c.Get(ctx, policiesPath+"/"+url.PathEscape(name), nil, nil)
	if !apierrors.IsNotFound(err) {
		return done, err
	}
	if !dry {
		if err := c.Create(ctx, policiesPath, policy, nil); err != nil {
			return done, fmt.Errorf("create ClusterPolicy %s: %w", name, err)
		}
	}
	return append(done, "create ClusterPolicy "+name), nil
}

// cleanKind deletes the objects of a kind that have the label of a run.
func cleanKind(ctx context.Context, c *cluster.Client, path string, dry bool) ([]string, error) {
	var done []string
	_, err := c.List(ctx, path, map[string]string{"labelSelector": step.WorkloadLabel}, func(raw json.RawMessage) error {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		one := path + "/" + o.Name
		what := "delete NodeClaim " + o.Name
		if o.Namespace != "" {
			one, what = "/api/v1/namespaces/"+o.Namespace+"/pods/"+o.Name, "delete pod "+o.Namespace+"/"+o.Name
		}
		if !dry {
			if err := c.Delete(ctx, one, nil, nil); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		done = append(done, what)
		return nil
	})
	if apierrors.IsNotFound(err) { // the cluster knows no such kind
		err = nil
	}
	return done, err
}
