package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/step"
)

// nameAndLabel returns an object's name and its value of step.WorkloadLabel.
func nameAndLabel(raw json.RawMessage) (name, label string, err error) {
	var o metav1.PartialObjectMetadata
	err = json.Unmarshal(raw, &o)
	return o.Name, o.Labels[step.WorkloadLabel], err
}

// waitGone waits until an object that is being deleted is gone. It polls, for kinds that
// are not watched.
func (s *Session) waitGone(ctx context.Context, path string) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.Client.Get(ctx, path, nil, nil)
		if apierrors.IsNotFound(err) {
			return nil
		}
		for waiting := true; waiting; {
			select {
			case <-tick.C:
				waiting = false
			case <-s.Observer.Changes(): // Observer requires that they are read
			case <-ctx.Done():
				return fmt.Errorf("wait until %s is deleted: %w", path, context.Cause(ctx))
			}
		}
	}
}
