package configure

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/containerd"
	"github.com/gpuready/gpuready/toolkit/runtime/crio"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
	"github.com/gpuready/gpuready/toolkit/runtime/docker"
)

// HostRuntime is the container runtime of a host. It implements configure.Runtime. Its methods
// must not be called concurrently.
type HostRuntime struct {
	Root     *host.Root
	Settings distro.Settings // overrides of the detected runtime

	info runtime.Info // the last response
}

// Sockets returns the possible sockets of the runtime, in the order they are tried.
func Sockets(s distro.Settings) ([]string, error) {
	kind, _, err := s.Kind()
	if err != nil {
		return nil, err
	}
	switch {
	case kind == "" && s.Socket != "":
		return []string{s.Socket}, nil
	case kind == "":
		var own []string // Docker's is no CRI socket
		for _, at := range []string{s.ContainerdSocket, s.CRIOSocket} {
			if at != "" {
				own = append(own, at)
			}
		}
		return append(own, runtime.Sockets...), nil
	}
	p, err := distro.Override(distro.Profile{}, s)
	if err == nil && kind == runtime.Docker {
		return []string{p.API}, nil
	}
	return p.Sockets, err
}

// Query queries the runtime over its own socket.
func (r *HostRuntime) Query(ctx context.Context) (runtime.Info, error) {
	info, err := r.query(ctx)
	if err == nil {
		r.info = info
	}
	return info, err
}

func (r *HostRuntime) query(ctx context.Context) (info runtime.Info, err error) {
	sockets, err := Sockets(r.Settings)
	if err != nil {
		info.Message = err.Error()
		return info, err
	}
	at := runtime.FindSocket(r.Root, sockets)
	if at == "" {
		info.Message = fmt.Sprintf("no container runtime listens at %v; start it, or say with --runtime-socket where it listens", sockets)
		return info, errors.New("no socket")
	}
	return QueryAt(ctx, r.Root, at, r.Settings)
}

// QueryAt queries the runtime at a socket, by its own API.
func QueryAt(ctx context.Context, root *host.Root, at string, s distro.Settings) (runtime.Info, error) {
	if kind, _, err := s.Kind(); err == nil && kind == runtime.Docker {
		return runtime.QueryDocker(ctx, root, at)
	}
	return runtime.Query(ctx, root, at)
}

func (r *HostRuntime) profile() (distro.Profile, error) { return Profile(r.Root, r.Settings, r.info) }

// Profile returns the profile of a runtime on the host, given its response.
func Profile(root *host.Root, s distro.Settings, info runtime.Info) (distro.Profile, error) {
	p, err := distro.Detect(root, info.Socket, info.Name)
	if err != nil && s.Empty() {
		return p, err
	}
	return distro.Override(p, s)
}

// Plan returns the plan for the wanted abilities.
func (r *HostRuntime) Plan(version string, want runtime.Want) (runtime.Plan, error) {
	p, err := r.profile()
	if err != nil {
		return runtime.Plan{}, err
	}
	if why := p.Obstacle(r.Root); why != "" {
		return runtime.Plan{}, errors.New(why)
	}
	place := p.Place(version)
	planner, ok := planners[place.Kind]
	if !ok {
		return runtime.Plan{}, fmt.Errorf("a runtime of kind %q cannot be configured; name the runtime with --runtime", place.Kind)
	}
	plan, err := planner(r.Root, place, want)
	if err == nil {
		err = p.CheckPlan(r.Root, plan)
	}
	return plan, err
}

var planners = map[runtime.Kind]func(runtime.Files, runtime.Place, runtime.Want) (runtime.Plan, error){
	runtime.Containerd: containerd.Plan, runtime.CRIO: crio.Plan, runtime.Docker: docker.Plan,
}

// CanRestart reports whether the runtime may be restarted from here. If not, it returns the manual
// steps.
func (r *HostRuntime) CanRestart() (bool, string) {
	p, err := r.profile()
	switch {
	case err != nil:
		return false, err.Error()
	case p.Restart.Method != distro.Manual:
		return true, ""
	case p.Restart.Message != "":
		return false, p.Restart.Message
	case len(p.Restart.Units) > 0:
		return false, fmt.Sprintf("restart it: systemctl restart %s", p.Restart.Units[0])
	}
	return false, "restart it"
}

// CheckRestart returns the error with which Restart would not begin.
func (r *HostRuntime) CheckRestart(ctx context.Context) error {
	p, err := r.profile()
	if err != nil {
		return err
	}
	return checkUnits(ctx, r.Root, p.Restart)
}

// Restart makes the runtime load the edits.
func (r *HostRuntime) Restart(ctx context.Context, edits []runtime.Edit) (string, error) {
	p, err := r.profile()
	if err != nil {
		return "", err
	}
	reload := p.Engine == runtime.Docker && len(edits) > 0 && docker.Reloadable(edits)
	passage, err := Restart(ctx, r.Root, p.Engine, p.Restart, reload)
	return passage.String(), err
}

// Files returns the configuration files of a runtime, given its response.
func Files(root *host.Root, s distro.Settings, info runtime.Info) []string {
	p, err := Profile(root, s, info)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc([]string{p.Config, p.DropIn}, func(s string) bool { return s == "" })
}
