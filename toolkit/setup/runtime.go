package setup

import (
	"context"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/target"
)

// RuntimeSockets are where the container runtime is looked for.
func (t *Toolkit) RuntimeSockets() []string {
	sockets, err := target.Sockets(t.Config.Runtime)
	if err != nil {
		return nil // what was said contradicts itself: the command line refuses that
	}
	return sockets
}

// AskRuntime asks the runtime at a socket. The answer's message says what is wrong
// with it for GPUs, and what to change, and reason is that in a word; also where
// there was no answer, with an error.
func (t *Toolkit) AskRuntime(ctx context.Context, at string) (cri.Answer, gpu.Reason, error) {
	answer, err := target.AskAt(ctx, t.Root, at, t.Config.Runtime)
	if err != nil {
		return answer, cri.ReasonSilent, err
	}
	var reason gpu.Reason
	reason, answer.Message = cri.Advise(answer, t.Config.CDIDir, t.same)
	return answer, reason, nil
}

// WithRuntime adds to a state what the container runtime says of itself now, if one
// is found, what kept it from being configured, and how agents were given the GPUs
// when a daemon last said so.
func (t *Toolkit) WithRuntime(ctx context.Context, s nodestate.State, configErr error) nodestate.State {
	var runtime *nodestate.Runtime
	var reason gpu.Reason
	if at := cri.Find(t.Root, t.RuntimeSockets()); at != "" {
		answer, why, _ := t.AskRuntime(ctx, at) // its message says so if there is none
		runtime, reason = &answer.Runtime, why
		if problem, message := t.Config.ProblemOf(configErr); problem != "" {
			reason, runtime.Message = problem, message
		}
	}
	var injection *nodestate.Injection
	if was, err := t.Published(); err == nil && was.Toolkit != nil {
		injection = was.Toolkit.Injection
	}
	return With(s, runtime, reason, injection)
}
