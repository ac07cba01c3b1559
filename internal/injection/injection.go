// Package injection defines the contract by which unprivileged node agents get access
// to the GPUs.
//
// The device cgroup refuses a device node that a pod mounts by hostPath. So the
// toolkit, as a plugin of the container runtime (NRI), adds the CDI device Device to
// each container that asks for it. Such a container is in the toolkit's namespace, its
// pod has the annotation Annotation=true, and its environment has Variable=Expected.
// The toolkit sets that variable to the generation of what it injected, which its state
// names as well. The two differ once a driver was installed or upgraded, or a GPU was
// added. Then the process ends, and the kubelet creates the container again. New or
// removed MIG instances matter only to agents that run programs on them: see Extent.
//
// Nothing is injected into a container without the variable, such as a privileged one,
// or into a process on the host.
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

// ErrOutdated means that the container must be created again.
var ErrOutdated = errors.New("this container has to be created anew")

// Wait returns nil as soon as a container created now gets everything there is to
// inject; on a node without a GPU that is nothing. dir is the directory of the toolkit's
// state. progress is called with what Wait waits for, whenever that changes; the error
// contains it too.
func Wait(ctx context.Context, dir, boot string, progress func(string)) error {
	waiting := ""
	working := false
	ctx, done := context.WithCancel(ctx)
	defer done()
	err := nodestate.WatchBoot(ctx, dir, boot, func(s nodestate.State, err error) {
		why := MissingReason(s, err)
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

// MissingReason describes what is missing before a container can get the GPUs, given the
// result of reading the toolkit's state; "" if nothing is.
func MissingReason(s nodestate.State, err error) string {
	switch {
	case nodestate.IsAbsent(err):
		return "the toolkit has reported nothing since the node booted; see that nvidia-container-toolkit-daemonset runs on this node"
	case err != nil:
		return err.Error()
	case s.Reason == ReasonNoGPU: // whether or not it could inject any
		return ""
	case s.Toolkit == nil || s.Toolkit.Injection == nil:
		return "the toolkit does not inject devices on this node: " + describe(s)
	case !s.Toolkit.Injection.Working:
		return "the toolkit cannot inject devices: " + s.Toolkit.Injection.Message + "; where the runtime has no NRI, use the -privileged manifest"
	case s.Toolkit.Injection.Generation == "":
		return "the toolkit has nothing to inject yet: " + describe(s)
	}
	return ""
}

// SeesDriver reports whether the toolkit has found a driver on the host, even one that
// it cannot use. A container without injected devices has no other way to know.
func SeesDriver(s nodestate.State, err error) bool {
	return err == nil && (s.Driver != nil || s.Phase == nodestate.Failed)
}

// ReasonNoGPU is the toolkit's reason on a node without a GPU, with a driver or without.
const ReasonNoGPU = "NoGPU"

func describe(s nodestate.State) string {
	text := string(s.Phase)
	if s.Reason != "" {
		text += " (" + string(s.Reason) + ")"
	}
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

// Watch returns an error that wraps ErrOutdated when the toolkit would now inject other
// things than this container got, within extent. It returns ctx.Err() when ctx ends
// first. extent is asked at each change of what is injected. given is the value of Variable; if it is empty there is nothing to watch. dir is
// the directory of the toolkit's state.
func Watch(ctx context.Context, dir, boot, given string, extent func() Extent) error {
	if given == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	var outdated error
	ctx, done := context.WithCancel(ctx)
	defer done()
	err := nodestate.WatchBoot(ctx, dir, boot, func(s nodestate.State, err error) {
		if outdated = compare(s, err, given, extent()); outdated != nil {
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
