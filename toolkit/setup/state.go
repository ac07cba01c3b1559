package setup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/spec"
)

// Reasons in the toolkit's state and log; part of the contract.
const (
	ReasonNoDriver        gpu.Reason = "NoDriver"
	ReasonNoCUDA          gpu.Reason = "NoCUDA"
	ReasonNoGPU           gpu.Reason = "NoGPU"
	ReasonIncomplete      gpu.Reason = "Incomplete"
	ReasonConflict        gpu.Reason = "CDIConflict"
	ReasonNoPermission    gpu.Reason = "NoPermission"
	ReasonVersionMismatch gpu.Reason = "VersionMismatch"
	ReasonNVML            gpu.Reason = "NVML"
	ReasonReadOnly        gpu.Reason = "ReadOnly"
	ReasonDiskFull        gpu.Reason = "DiskFull"
	ReasonHookMissing     gpu.Reason = "HookMissing"
	ReasonHost            gpu.Reason = "Host"
)

// ErrHook means that the image lacks gpu-cdi-hook.
var ErrHook = errors.New("the program gpu-cdi-hook cannot be read")

// State summarizes the result, or the reason of a failure.
func (c Config) State(w Wanted, err error) nodestate.State {
	s := nodestate.State{Component: nodestate.Toolkit}
	if w.Driver.Version != "" {
		s.Driver = &w.Driver
	}
	if err != nil {
		s.Phase = nodestate.Failed
		if errors.Is(err, gpu.ErrNoDriver) {
			s.Phase = nodestate.Waiting
		}
		s.Reason, s.Message = c.Explain(err)
		return s
	}
	s.Toolkit = &nodestate.ToolkitInfo{Specs: w.Specs, Hook: path.Join(c.InstallDir, HookName), Handler: c.Handler}
	s.Phase = nodestate.Ready
	switch {
	case w.Conflict != "":
		s.Phase, s.Reason, s.Message = nodestate.Degraded, ReasonConflict, strings.Join(append([]string{w.Conflict}, w.Warnings...), "; ")
	case len(w.Warnings) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, ReasonIncomplete, strings.Join(w.Warnings, "; ")
	case len(w.Specs) == 0:
		s.Reason, s.Message = ReasonNoGPU, "the driver sees no GPU on this node; there is nothing to specify"
	case w.Owner != "" || len(w.Others) > 0:
		others := w.Others
		if w.Owner != "" {
			others = append([]string{w.Owner + " defines nvidia.com/gpu; ours is not written"}, others...)
		}
		s.Message = strings.Join(others, "; ")
	}
	return s
}

// WithRuntimeState adds to a state the description of the container runtime, nil if unknown, the reason
// of its problem, and the state of the injection. The problem only matters if there are
// specifications and nothing else failed.
func WithRuntimeState(s nodestate.State, r *nodestate.Runtime, reason gpu.Reason, i *nodestate.Injection) nodestate.State {
	if r == nil && i == nil {
		return s
	}
	var t nodestate.ToolkitInfo
	if s.Toolkit != nil {
		t = *s.Toolkit
	}
	t.Runtime, t.Injection = r, i
	s.Toolkit = &t
	if reason == "" || r == nil || len(t.Specs) == 0 || s.Phase != nodestate.Ready && s.Phase != nodestate.Degraded {
		return s
	}
	text := r.Message
	if s.Message != "" {
		text += "; " + s.Message
	}
	s.Phase, s.Reason, s.Message = nodestate.Degraded, reason, text
	return s
}

// Explain returns the reason of an error, and a sentence with the error and a remedy.
func (c Config) Explain(err error) (gpu.Reason, string) {
	next := func(reason gpu.Reason, action string) (gpu.Reason, string) {
		if _, refused := errors.AsType[*apply.Refused](err); refused || action == "" {
			return reason, err.Error()
		}
		return reason, err.Error() + "; " + action
	}
	where := ""
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		where = at.Path
	}
	option := ""
	for dir, flag := range map[string]string{c.CDIDir: "--cdi-output-dir", c.InstallDir: "--toolkit-install-dir", c.StateDir: "--state-dir"} {
		if where == dir || strings.HasPrefix(where, dir+"/") || where != "" && strings.HasPrefix(dir, where+"/") {
			option = flag
		}
	}
	switch {
	case errors.Is(err, gpu.ErrNoDriver):
		if strings.Contains(err.Error(), "--driver-root") {
			return next(ReasonNoDriver, "")
		}
		return next(ReasonNoDriver, "install a driver or wait for its container, or say where it is with --driver-root")
	case errors.Is(err, spec.ErrNoCUDA):
		return next(ReasonNoCUDA, "")
	case errors.Is(err, ErrHook):
		return next(ReasonHookMissing, "say where it is with --hook-program")
	case errors.Is(err, gpu.ErrVersionMismatch):
		return next(ReasonVersionMismatch, "load the new driver's kernel modules (restart the driver's container, or reboot)")
	case errors.Is(err, gpu.ErrNoPermission):
		return next(ReasonNoPermission, "give the toolkit access to /dev/nvidia* (privileged, or with the device cgroup's permission)")
	case errors.Is(err, syscall.EROFS):
		if option == "" {
			return next(ReasonReadOnly, "mount it writable")
		}
		reason, message := next(ReasonReadOnly, "mount it writable")
		return reason, fmt.Sprintf("%s, or choose another directory with %s", message, option)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return next(ReasonDiskFull, "make room on that file system; nothing was left half-written")
	case errors.Is(err, fs.ErrPermission):
		return next(ReasonNoPermission, "run the toolkit as root, with the host's directories mounted writable")
	}
	return next(ReasonHost, "")
}

// Same reports whether two states are equal, apart from the time of writing.
func Same(a, b nodestate.State) bool {
	return a.Phase == b.Phase && a.Reason == b.Reason && a.Message == b.Message &&
		equalJSON(a.Driver, b.Driver) && equalJSON(a.Toolkit, b.Toolkit)
}

// equalJSON reports whether two values have the same encoding.
func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
