package setup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// ShimName is the file name of the handler's program in the install directory.
const ShimName = "gpu-oci-runtime"

// ErrShim means that the image lacks gpu-oci-runtime.
var ErrShim = errors.New("the program gpu-oci-runtime cannot be read")

// patience limits the time that a runtime may take to respond after a restart. containerd
// with a thousand containers takes ten seconds.
const patience = time.Minute

// Configurer returns the configurer of this host's container runtime, or nil if the
// configuration does not allow to change the runtime. notify is called after each step.
func (t *Toolkit) Configurer(notify func(step string, took time.Duration)) *configure.Configurer {
	if !t.Config.Configure {
		return nil
	}
	return t.configurer(notify)
}

// configurer returns the configurer in any case: RestoreRuntime needs it even if changes are
// no longer allowed.
func (t *Toolkit) configurer(notify func(step string, took time.Duration)) *configure.Configurer {
	c := t.Config
	wishes := configure.Wishes{CDI: c.CDI, CDIDir: c.CDIDir, Default: c.HandlerDefault}
	if c.Handler != "" {
		wishes.Handler = runtime.Handler{Name: c.Handler, Program: path.Join(c.InstallDir, ShimName)}
	}
	return &configure.Configurer{
		Wishes:  wishes,
		Runtime: &configure.HostRuntime{Root: t.Root, Settings: c.Runtime},
		Store:   t.Store, Same: t.SamePath, Patience: patience, Observe: notify,
	}
}

// SamePath reports whether two paths of the host resolve to the same one.
func (t *Toolkit) SamePath(a, b string) bool {
	x, errX := t.Root.Resolve(a)
	y, errY := t.Root.Resolve(b)
	return errX == nil && errY == nil && x == y
}

// HandlerItems returns the files of the handler, gpu-oci-runtime and its settings, if a
// handler is wanted. They have to exist before a runtime's configuration names the handler.
func (t *Toolkit) HandlerItems() ([]apply.Item, error) {
	if t.Config.Handler == "" {
		return nil, nil
	}
	if err := checkProgram(t.Config.ShimProgram); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrShim, err)
	}
	shim := t.Config.Shim
	shim.SpecDirs = t.CDIDirs()
	data, err := shim.Encode()
	if err != nil {
		return nil, err
	}
	return []apply.Item{
		{Path: path.Join(t.Config.InstallDir, request.SettingsFile), File: &apply.File{Data: data, Mode: 0o644}},
		{Path: path.Join(t.Config.InstallDir, ShimName), File: &apply.File{From: t.Config.ShimProgram, Mode: 0o755}},
	}, nil
}

// taskDirs are the folders in which containerd keeps its running containers, and Docker those of its
// containerd: by namespace and ID.
var taskDirs = []string{"/run/containerd", "/run/k3s/containerd", "/run/k0s/containerd", "/var/snap/microk8s/common/run/containerd"}

// handlerContainers returns the IDs of containers that were created with the handler's program.
// containerd executes it again to stop them.
func (t *Toolkit) handlerContainers() (ids []string) {
	program := path.Join(t.Config.InstallDir, ShimName)
	dirs := taskDirs
	if socket := t.Config.Runtime.Socket; socket != "" && !slices.Contains(dirs, path.Dir(socket)) {
		dirs = append(slices.Clone(dirs), path.Dir(socket))
	}
	for _, dir := range dirs {
		tasks := path.Join(dir, "io.containerd.runtime.v2.task")
		namespaces, _ := t.Root.Names(tasks)
		for _, namespace := range namespaces {
			containers, _ := t.Root.Names(path.Join(tasks, namespace))
			for _, id := range containers {
				// The shim writes the path of the low-level runtime into the bundle.
				if used, err := t.Root.ReadFile(path.Join(tasks, namespace, id, "runtime"), 4096); err == nil && string(used) == program {
					ids = append(ids, id)
				}
			}
		}
	}
	return ids
}

// ConfigureRuntime writes the handler's files, and then configures the container runtime. It
// does nothing if c is nil. With dry set it only plans.
func (t *Toolkit) ConfigureRuntime(ctx context.Context, c *configure.Configurer, dry bool) (outcome configure.Outcome, err error) {
	if c == nil {
		return outcome, nil
	}
	items, err := t.HandlerItems()
	if err != nil {
		return outcome, err
	}
	applyFiles, applyConfig := t.Store.Apply, c.Apply
	if dry {
		applyFiles, applyConfig = t.Store.Plan, c.Plan
	}
	changes, err := applyFiles(items)
	if err != nil {
		return outcome, err
	}
	outcome, err = applyConfig(ctx)
	outcome.Changes = append(changes, outcome.Changes...)
	return outcome, err
}

// RestoreRuntime restores the container runtime's own configuration, see
// configure.Configurer.Restore.
func (t *Toolkit) RestoreRuntime(ctx context.Context, dry bool, notify func(did string)) (apply.Restored, error) {
	o := configure.RestoreOptions{DryRun: dry, MayRestart: t.Config.Configure, IsConfig: t.isConfig, Notify: notify}
	return t.configurer(nil).Restore(ctx, o)
}

// isConfig reports whether a path of the store's manifest belongs to the runtime's
// configuration: it is not below a directory into which the toolkit writes its own files.
func (t *Toolkit) isConfig(p string) bool {
	driverRoot, devRoot := t.Roots()
	ours := append(t.CDIDirs(), t.Config.InstallDir, "/dev", path.Join(driverRoot, "dev"), path.Join(devRoot, "dev"))
	return !slices.ContainsFunc(ours, func(dir string) bool {
		resolved, err := t.Root.Resolve(dir)
		return strings.HasPrefix(p, dir+"/") || err == nil && strings.HasPrefix(p, resolved+"/")
	})
}

// ProblemOf returns the reason and the message to report for an error of ConfigureRuntime.
// Both are empty if err is nil.
func (c Config) ProblemOf(err error) (gpu.Reason, string) {
	if err == nil {
		return "", ""
	}
	if problem, ok := errors.AsType[*configure.Problem](err); ok {
		return problem.Reason, problem.Message
	}
	return c.Explain(err)
}

// Lock makes this process the only one that changes the host. It also removes the partial
// files that a killed process has left. With waiting set it waits for another process, see
// apply.Lock.
func (t *Toolkit) Lock(ctx context.Context, waiting func(error)) (*apply.Held, error) {
	held, err := apply.Lock(ctx, t.Root, t.Config.stateDir(), waiting)
	if err != nil {
		return nil, err
	}
	if _, err := t.Store.Sweep(); err != nil {
		return nil, errors.Join(err, held.Unlock())
	}
	return held, nil
}

// RemoveLock removes the lock, and its directory if that is empty.
func (t *Toolkit) RemoveLock(held *apply.Held) error {
	err := held.Remove()
	for _, dir := range []string{t.Config.stateDir(), t.Config.StateDir} {
		_ = t.Root.Remove(dir) // fails if others have files in it
	}
	return err
}
