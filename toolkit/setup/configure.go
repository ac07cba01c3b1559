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

// Configurer returns the configurer of this host's container runtime, nil if configuring it
// is not allowed. notify is called after each step.
func (t *Toolkit) Configurer(notify func(step string, took time.Duration)) *configure.Configurer {
	if !t.Config.Configure {
		return nil
	}
	return t.configurer(notify)
}

func (t *Toolkit) configurer(notify func(step string, took time.Duration)) *configure.Configurer {
	c := t.Config
	w := configure.Wishes{CDI: c.CDI, CDIDir: c.CDIDir, Default: c.HandlerDefault}
	if c.Handler != "" {
		w.Handler = runtime.Handler{Name: c.Handler, Program: path.Join(c.InstallDir, ShimName)}
	}
	return &configure.Configurer{
		Wishes:  w,
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

// HandlerItems returns the items of the handler if one is wanted. They have to exist before
// a runtime names the handler.
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

// ConfigureRuntime configures the container runtime if that is allowed. With dry set it
// only plans.
func (t *Toolkit) ConfigureRuntime(ctx context.Context, c *configure.Configurer, dry bool) (o configure.Outcome, err error) {
	if c == nil {
		return o, nil
	}
	items, err := t.HandlerItems()
	if err != nil {
		return o, err
	}
	files, runtime := t.Store.Apply, c.Apply
	if dry {
		files, runtime = t.Store.Plan, c.Plan
	}
	changes, err := files(items)
	if err != nil {
		return o, err
	}
	o, err = runtime(ctx)
	o.Changes = append(changes, o.Changes...)
	return o, err
}

// RestoreRuntime restores the container runtime's own configuration, see
// configure.Configurer.Restore.
func (t *Toolkit) RestoreRuntime(ctx context.Context, dry bool, notify func(did string)) (apply.Restored, error) {
	o := configure.RestoreOptions{DryRun: dry, MayRestart: t.Config.Configure, IsConfig: t.isConfig, Notify: notify}
	return t.configurer(nil).Restore(ctx, o)
}

// isConfig reports whether a path of the manifest belongs to the runtime's configuration,
// and not to the toolkit itself.
func (t *Toolkit) isConfig(p string) bool {
	driverRoot, devRoot := t.Roots()
	ours := append(t.CDIDirs(), t.Config.InstallDir, "/dev", path.Join(driverRoot, "dev"), path.Join(devRoot, "dev"))
	return !slices.ContainsFunc(ours, func(dir string) bool {
		real, err := t.Root.Resolve(dir)
		return strings.HasPrefix(p, dir+"/") || err == nil && strings.HasPrefix(p, real+"/")
	})
}

// ProblemOf returns the reason and the message of an error of configuring the runtime,
// empty if there is no error.
func (c Config) ProblemOf(err error) (gpu.Reason, string) {
	if err == nil {
		return "", ""
	}
	if problem, ok := errors.AsType[*configure.Problem](err); ok {
		return problem.Reason, problem.Message
	}
	return c.Explain(err)
}

// Lock makes this process the only one that changes the host, and removes the partial files
// of a killed one. With waiting set it waits for another process, see apply.Lock.
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
		_ = t.Root.Remove(dir) // not empty: others use it
	}
	return err
}
