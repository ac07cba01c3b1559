package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// settled is the time after which a refused layer counts as final: the validator needs time
// to notice that something became ready.
const settled = 5 * time.Second

var errSettled = errors.New("nothing has changed since")

// validator waits for the proofs of all layers.
func (r *pipeline) validator(ctx context.Context) (string, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := time.AfterFunc(stepTimeout, func() {})
	defer func() { timer.Stop() }()
	var proven []string
	err := readiness.Wait(ctx, readiness.DefaultDir, readiness.Layers(), "", func(l readiness.Layer, s readiness.Status, _ error) {
		timer.Stop()
		if s.Proof != nil {
			proven = append(proven, string(l))
		} else if s.NotReady != nil {
			timer = time.AfterFunc(settled, func() { giveUp(errSettled) })
		}
	})
	var refused *readiness.NotReadyError
	if errors.As(err, &refused) && refused.Status.NotReady != nil {
		why := refused.Status.NotReady
		return "", &stepError{step: "validator", err: fmt.Errorf("layer %s: %s: %s", refused.Layer, why.Reason, why.Message), next: why.Action}
	}
	if err != nil {
		return "", err
	}
	return strings.Join(proven, ", ") + " proven", nil
}
