// Package injection is the contract by which node agents that are not
// privileged get at the GPUs.
//
// A device node that a pod mounts by hostPath is refused by the device cgroup. So
// the toolkit, as a plugin of the container runtime (NRI), adds the CDI device
// Device to each container that asks for it: one of the toolkit's own namespace,
// whose pod carries the annotation Annotation=true and which has the environment
// variable Variable=Expected. What the container was given it finds in that
// variable: the generation that the toolkit's state names as well. When the two
// differ, because a driver came, was upgraded, or a GPU was added, the container
// has to be created anew; its process ends and the kubelet does that. MIG instances
// that are made or removed matter only to agents that run programs on them: see Extent.
//
// A container without the variable, a privileged one or a process on the host,
// has what it has.
package injection

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// The names of the contract.
const (
	Annotation = "gpuready.io/management"
	Device     = "management.gpuready.io/gpu=all"
	Variable   = "GPUREADY_INJECTION"
	Expected   = "expected"
)

// ErrOutdated means that the container has to be created anew.
var ErrOutdated = errors.New("this container has to be created anew")

// Wait returns nil as soon as a container that is created now is given all that
// there is to give, which on a node without a GPU is nothing. dir is that of the
// toolkit's state. progress is told what is waited for, whenever that changes;
// the error says it too.
func Wait(ctx context.Context, dir, boot string, progress func(string)) error {
	waiting := ""
	working := false
	ctx, done := context.WithCancel(ctx)
	defer done()
	err := nodestate.WatchBoot(ctx, dir, boot, func(s nodestate.State, err error) {
		why := Missing(s, err)
		if why == "" {
			working = true
			done()
			return
		}
		if why != waiting {
			waiting = why
			progress(why)
		}
	})
	switch {
	case working:
		return nil
	case waiting != "" && ctx.Err() != nil:
		return fmt.Errorf("%s: %w", waiting, err)
	}
	return err
}

// Missing says, of what was read of the toolkit's state, what is not there yet
// for a container to be given the GPUs; "" where nothing is missing.
func Missing(s nodestate.State, err error) string {
	switch {
	case nodestate.IsAbsent(err):
		return "the toolkit has said nothing in this boot; see that nvidia-container-toolkit-daemonset runs on this node"
	case err != nil:
		return err.Error()
	case s.Reason == ReasonNoGPU: // whether or not it could inject any
		return ""
	case s.Toolkit == nil || s.Toolkit.Injection == nil:
		return "the toolkit does not inject devices on this node: " + said(s)
	case !s.Toolkit.Injection.Working:
		return "the toolkit cannot inject devices: " + s.Toolkit.Injection.Message + "; where the runtime has no NRI, use the -privileged manifest"
	case s.Toolkit.Injection.Generation == "":
		return "the toolkit has nothing to inject yet: " + said(s)
	}
	return ""
}

// SeesDriver reports whether the toolkit has found a driver on the host, also one that
// it cannot use. A container that was given nothing has no other way to know.
func SeesDriver(s nodestate.State, err error) bool {
	return err == nil && (s.Driver != nil || s.Phase == nodestate.Failed)
}

// ReasonNoGPU is the toolkit's word for a node that has no GPU, with a driver or without.
const ReasonNoGPU = "NoGPU"

func said(s nodestate.State) string {
	text := string(s.Phase)
	if s.Reason != "" {
		text += " (" + string(s.Reason) + ")"
	}
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

// Watch returns an error that wraps ErrOutdated when what the toolkit injects is
// no longer what this container was given, as far as extent goes, and ctx.Err() when
// ctx ends before. given is the value of Variable; where it is empty there is nothing
// to watch. dir is that of the toolkit's state.
func Watch(ctx context.Context, dir, boot, given string, extent Extent) error {
	if given == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	var outdated error
	ctx, done := context.WithCancel(ctx)
	defer done()
	err := nodestate.WatchBoot(ctx, dir, boot, func(s nodestate.State, err error) {
		if outdated = compare(s, err, given, extent); outdated != nil {
			done()
		}
	})
	if outdated != nil {
		return outdated
	}
	return err
}

func compare(s nodestate.State, err error, given string, extent Extent) error {
	if err != nil || s.Toolkit == nil || s.Toolkit.Injection == nil || !s.Toolkit.Injection.Working {
		return nil //nolint:nilerr // a new container would not be given more
	}
	now := s.Toolkit.Injection.Generation
	switch {
	case now == "" || Current(given, now, extent):
		return nil
	case given == Expected:
		return fmt.Errorf("%w: it was created without the GPUs' devices, which can be injected now", ErrOutdated)
	}
	return fmt.Errorf("%w: it was given the GPUs of an earlier state of the node (%s, now %s)", ErrOutdated, given, now)
}
