package setup

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
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
	ReasonFolderReplaced  gpu.Reason = "FolderReplaced"
	ReasonPlatform        gpu.Reason = "PlatformNotServed"
)

// ErrHook means that gpu-cdi-hook cannot be read, as in an image without it.
var ErrHook = errors.New("the program gpu-cdi-hook cannot be read")

// platformError is the reason why a host's GPUs are not served.
type platformError struct{ platform host.Platform }

func (e *platformError) Error() string {
	message, action := e.platform.Describe()
	return message + "; " + action
}

// checkPlatform returns an error on a platform that is not served. A simulated driver works on any.
func (t *Toolkit) checkPlatform(s gpu.Snapshot) error {
	if s.Driver.Simulated {
		return nil
	}
	if platform := t.Root.Platform(); platform != "" {
		return &platformError{platform}
	}
	return nil
}

// ExplainDriver returns the error of finding the driver: on a platform that is not served, where no
// driver would help, that of the platform.
func (t *Toolkit) ExplainDriver(err error) error {
	for _, missing := range []error{gpu.ErrNoDriver, gpu.ErrVersionMismatch, spec.ErrNoCUDA} {
		if errors.Is(err, missing) {
			return cmp.Or(t.checkPlatform(gpu.Snapshot{}), err)
		}
	}
	return err
}

// State returns the toolkit's state for w, the host's wanted state, and err, the error of
// finding or applying it. If err is not nil, only w.Driver counts.
func (c Config) State(w Wanted, err error) nodestate.State {
	s := nodestate.State{Component: nodestate.Toolkit, Unserved: c.Unserved}
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
	s.Toolkit = &nodestate.ToolkitInfo{Specs: w.Specs, Hook: path.Join(c.InstallDir, HookName), Handler: c.Handler, HandlerAccepts: c.handlerAccepts()}
	s.Phase = nodestate.Ready
	switch {
	case w.Conflict != "":
		s.Phase, s.Reason, s.Message = nodestate.Degraded, ReasonConflict, strings.Join(append([]string{w.Conflict}, w.Warnings...), "; ")
	case len(w.Warnings) > 0:
		s.Phase, s.Reason, s.Message = nodestate.Degraded, ReasonIncomplete, strings.Join(w.Warnings, "; ")
	case len(w.Specs) == 0:
		s.Reason, s.Message = ReasonNoGPU, "the driver sees no GPU on this node; no CDI specification is needed"
	case w.Owner != "" || len(w.Others) > 0:
		// Another program already provides nvidia.com/gpu or one of the other kinds: not a fault.
		others := w.Others
		if w.Owner != "" {
			others = append([]string{w.Owner + " defines nvidia.com/gpu; ours is not written"}, others...)
		}
		s.Message = strings.Join(others, "; ")
	}
	return s
}

// handlerAccepts returns how our handler lets unprivileged containers request GPUs, in the words
// of the device plugin's list strategies. It returns nil if there is no handler.
func (c Config) handlerAccepts() []string {
	if c.Handler == "" {
		return nil
	}
	accepts := []string{}
	if c.Shim.AcceptEnvvar {
		accepts = append(accepts, "envvar")
	}
	if c.Shim.AcceptVolumeMounts {
		accepts = append(accepts, "volume-mounts")
	}
	return accepts
}

// WithRuntimeState returns s with the container runtime r (nil: unknown) and the injection i
// (nil: off, or not tried yet). reason names the problem of the runtime, "" if there is none; its
// message is in r. The problem makes a Ready or Degraded state Degraded with that reason, if
// there are CDI specifications; any other state keeps its reason.
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
	// An apply.Refused already ends with the remedy.
	withAction := func(reason gpu.Reason, action string) (gpu.Reason, string) {
		if _, refused := errors.AsType[*apply.Refused](err); refused || action == "" {
			return reason, err.Error()
		}
		return reason, err.Error() + "; " + action
	}
	where := ""
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		where = at.Path
	}
	option := "" // the flag that moves what was to be written below where
	for _, o := range []struct{ dir, flag string }{{c.CDIDir, "--cdi-output-dir"}, {c.InstallDir, "--toolkit-install-dir"}, {c.StateDir, "--state-dir"}} {
		if where == o.dir || strings.HasPrefix(where, o.dir+"/") || where != "" && strings.HasPrefix(o.dir, where+"/") {
			option = o.flag
			break
		}
	}
	if _, is := errors.AsType[*platformError](err); is {
		return withAction(ReasonPlatform, "")
	}
	switch {
	case errors.Is(err, gpu.ErrNoDriver):
		// nvml.Find already names the flag as the remedy.
		if strings.Contains(err.Error(), "--driver-root") {
			return withAction(ReasonNoDriver, "")
		}
		return withAction(ReasonNoDriver, "install a driver or wait for its container, or say where it is with --driver-root")
	case errors.Is(err, spec.ErrNoCUDA):
		return withAction(ReasonNoCUDA, "")
	case errors.Is(err, ErrHook):
		return withAction(ReasonHookMissing, "say where it is with --hook-program")
	case errors.Is(err, gpu.ErrVersionMismatch):
		return withAction(ReasonVersionMismatch, "load the new driver's kernel modules (restart the driver's container, or reboot)")
	case errors.Is(err, gpu.ErrNoPermission):
		return withAction(ReasonNoPermission, "give the toolkit access to /dev/nvidia* (privileged, or with the device cgroup's permission)")
	case errors.Is(err, mount.ErrReplaced):
		return withAction(ReasonFolderReplaced, "nothing to do: the toolkit ends, and its next container has the new one")
	case errors.Is(err, syscall.EROFS):
		if option == "" {
			return withAction(ReasonReadOnly, "mount it writable")
		}
		reason, message := withAction(ReasonReadOnly, "mount it writable")
		return reason, fmt.Sprintf("%s, or choose another directory with %s", message, option)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return withAction(ReasonDiskFull, "make room on that file system; nothing was left half-written")
	case errors.Is(err, fs.ErrPermission):
		return withAction(ReasonNoPermission, "run the toolkit as root, with the host's directories mounted writable")
	}
	return withAction(ReasonHost, "")
}

// Same reports whether two states say the same: phase, reason, message, driver and toolkit.
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
