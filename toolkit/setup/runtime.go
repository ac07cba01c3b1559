package setup

import (
	"context"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/cri"
)

// RuntimeSockets are where the container runtime is looked for.
func (t *Toolkit) RuntimeSockets() []string {
	if t.Config.RuntimeSocket != "" {
		return []string{t.Config.RuntimeSocket}
	}
	return cri.Sockets
}

// AskRuntime asks the runtime at a socket. The answer's message says what is wrong
// with it for GPUs, and what to change, and reason is that in a word; also where
// there was no answer, with an error.
func (t *Toolkit) AskRuntime(ctx context.Context, at string) (cri.Answer, gpu.Reason, error) {
	answer, err := cri.Ask(ctx, t.Root, at)
	if err != nil {
		return answer, cri.ReasonSilent, err
	}
	var reason gpu.Reason
	reason, answer.Message = cri.Advise(answer, t.Config.CDIDir, func(a, b string) bool {
		x, errX := t.Root.Resolve(a)
		y, errY := t.Root.Resolve(b)
		return errX == nil && errY == nil && x == y
	})
	return answer, reason, nil
}

// WithRuntime adds to a state what the container runtime says of itself now, if one
// is found, and how agents were given the GPUs when a daemon last said so.
func (t *Toolkit) WithRuntime(ctx context.Context, s nodestate.State) nodestate.State {
	var runtime *nodestate.Runtime
	var reason gpu.Reason
	if at := cri.Find(t.Root, t.RuntimeSockets()); at != "" {
		answer, why, _ := t.AskRuntime(ctx, at) // its message says so if there is none
		runtime, reason = &answer.Runtime, why
	}
	var injection *nodestate.Injection
	if was, err := t.Published(); err == nil && was.Toolkit != nil {
		injection = was.Toolkit.Injection
	}
	return With(s, runtime, reason, injection)
}
