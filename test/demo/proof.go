package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// giveUpAfter is the time after which the demo believes the validator that a layer is not ready. A layer may
// become ready before: the validator needs time to notice.
const giveUpAfter = 5 * time.Second

var errGivenUp = errors.New("the layer has not become ready")

// validator waits until the validator has proven every layer of readiness: driver, toolkit, cuda and plugin.
// It returns the layers for the screen. If the validator says that a layer is not ready, and still does
// so after giveUpAfter, the error has its reason and the next action.
func (r *pipeline) validator(ctx context.Context) (string, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stopTimer := func() bool { return false }
	defer func() { stopTimer() }()
	var proven []string
	err := readiness.Wait(ctx, readiness.DefaultDir, readiness.Layers(), "", func(l readiness.Layer, s readiness.Status, _ error) {
		stopTimer() // the layer's status has changed
		if s.Proof != nil {
			proven = append(proven, string(l))
		} else if s.NotReady != nil {
			stopTimer = time.AfterFunc(giveUpAfter, func() { giveUp(errGivenUp) }).Stop
		}
	})
	// Wait's error has the last status of the layer that it waited for when ctx ended.
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
