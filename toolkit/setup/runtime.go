package setup

import (
	"context"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// RuntimeSockets returns the possible sockets of the container runtime.
func (t *Toolkit) RuntimeSockets() []string {
	sockets, err := configure.Sockets(t.Config.Runtime)
	if err != nil {
		return nil // contradictory settings, which the command line refuses
	}
	return sockets
}

// QueryRuntime queries the runtime at a socket. The result's message describes a problem that
// affects GPUs, with a remedy, and reason is its reason. Both are also set if the runtime
// does not respond, with an error.
func (t *Toolkit) QueryRuntime(ctx context.Context, at string) (runtime.Info, gpu.Reason, error) {
	info, err := configure.QueryAt(ctx, t.Root, at, t.Config.Runtime)
	if err != nil {
		return info, runtime.ReasonSilent, err
	}
	var reason gpu.Reason
	reason, info.Message = runtime.Advise(info, t.Config.CDIDir, t.SamePath)
	return info, reason, nil
}

// WithRuntime adds to a state the container runtime's current description, if one is found,
// the problem of configuring it, and the state of the injection as a daemon last published
// it.
func (t *Toolkit) WithRuntime(ctx context.Context, s nodestate.State, configErr error) nodestate.State {
	var found *nodestate.Runtime
	var reason gpu.Reason
	if at := runtime.FindSocket(t.Root, t.RuntimeSockets()); at != "" {
		info, why, _ := t.QueryRuntime(ctx, at) // its message describes an error
		found, reason = &info.Runtime, why
		if problem, message := t.Config.ProblemOf(configErr); problem != "" {
			reason, found.Message = problem, message
		}
	}
	var injection *nodestate.Injection
	if was, err := t.Published(); err == nil && was.Toolkit != nil {
		injection = was.Toolkit.Injection
	}
	return WithRuntimeState(s, found, reason, injection)
}
