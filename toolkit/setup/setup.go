// Package setup prepares a host so that containers can use GPUs. In one pass (Toolkit.Once)
// it reads the GPUs, computes the wanted files, nodes and CDI specifications of the host
// (Toolkit.Want, with spec.Build), and writes those that differ (apply.Store.Apply). It also
// reports the result, and connects package configure with the host.
package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
	"github.com/gpuready/gpuready/toolkit/spec"
)

// ContainerRoot is the path at which driver containers mount their root.
const ContainerRoot = "/run/nvidia/driver"

// HookName is the file name of the hook in the install directory.
const HookName = "gpu-cdi-hook"

// Config is the configuration of a Toolkit. All paths except HostRoot, HookProgram and
// ShimProgram are the host's.
type Config struct {
	HostRoot    string // mount point of the host's file system; "" is "/"
	DriverRoot  string // "" means ContainerRoot if a driver is there, otherwise "/"
	DevRoot     string // "" means the driver root if it has the device nodes, otherwise "/"
	CDIDir      string
	InstallDir  string
	StateDir    string
	HookProgram string // gpu-cdi-hook, in this process's file system

	NRISocket string // the runtime's socket for plugins
	Namespace string // the namespace of the agents that get the GPUs by NRI; "" for none
	// WorkloadNamespaces are the namespaces whose containers get the requested GPUs by NRI.
	WorkloadNamespaces []string

	Runtime        distro.Settings // overrides of the detected container runtime
	Configure      bool            // its configuration may be changed
	CDI            bool            // it shall resolve CDI names
	Handler        string          // name of our handler in it; "" if it needs none
	HandlerDefault bool            // our handler shall be the default
	Shim           request.Settings
	ShimProgram    string // gpu-oci-runtime, in this process's file system

	Unserved []nodestate.Setting // settings that are accepted and have no effect
}

// stateDir returns the directory of the toolkit's state and lock.
func (c Config) stateDir() string { return path.Join(c.StateDir, string(nodestate.Toolkit)) }

// Driver finds and opens NVML, which a process can load only once.
type Driver interface {
	// Find returns the path of libnvidia-ml below a driver root, in this process's file
	// system. Its error wraps gpu.ErrNoDriver.
	Find(driverRoot string) (string, error)
	Open(driverRoot string) (gpu.Source, error)
}

// Toolkit scans and changes one host.
type Toolkit struct {
	Config Config
	Driver Driver
	Root   *host.Root
	Store  *apply.Store // the account of all changes

	cache    driverCache // the driver's files found last
	stateDir string      // the state's directory in this process's file system, once resolved
}

// driverCache caches the driver's files. Finding them takes most of the time of a refresh,
// and they only change with the driver.
type driverCache struct {
	root, version string
	files         spec.Files
}

// New returns a Toolkit for the host below cfg.HostRoot.
func New(cfg Config, driver Driver) (*Toolkit, error) {
	root, err := host.Open(cfg.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("host's file system: %w; mount it and set --host-root to its path", err)
	}
	bootID, err := nodestate.BootIDAt(root.Dir())
	if err != nil {
		return nil, err
	}
	store := &apply.Store{Root: root, Dir: cfg.InstallDir, BootID: bootID}
	return &Toolkit{Config: cfg, Driver: driver, Root: root, Store: store}, nil
}

// Close closes the host's file system.
func (t *Toolkit) Close() error { return t.Root.Close() }

// Roots returns the configured roots, or the defaults for those that are not configured.
func (t *Toolkit) Roots() (driverRoot, devRoot string) {
	if driverRoot = t.Config.DriverRoot; driverRoot == "" {
		driverRoot = "/"
		if _, err := t.Driver.Find(ContainerRoot); err == nil {
			driverRoot = ContainerRoot
		}
	}
	if devRoot = t.Config.DevRoot; devRoot == "" {
		devRoot = "/"
		if nodes, err := node.Find(t.Root, driverRoot); err == nil && len(nodes) > 0 {
			devRoot = driverRoot
		}
	}
	return driverRoot, devRoot
}

// Wanted is the wanted state of the host, with related information.
type Wanted struct {
	Items    []apply.Item
	Specs    []nodestate.Spec
	Driver   nodestate.DriverInfo
	Warnings []string // the devices and files that were left out, and why
	Owner    string   // another file that defines nvidia.com/gpu
	Others   []string // other files that define further kinds that are not only ours
	Conflict string   // a problem with names that only we define, "" if none
}

// Control returns the items that NVML needs: the control nodes. Without a driver in the
// kernel there are none.
func (t *Toolkit) Control() ([]apply.Item, error) {
	driverRoot, devRoot := t.Roots()
	nodes, err := node.Scan(t.Root, driverRoot, devRoot, gpu.Snapshot{})
	if err != nil {
		return nil, err
	}
	nodes.All = nodes.Wanted
	return nodes.Items(t.Root, devRoot), nil
}

// InvalidateFiles makes the next Want find the driver's files again.
func (t *Toolkit) InvalidateFiles() { t.cache = driverCache{} }

// Want returns the wanted state of the host for the GPUs of a snapshot.
func (t *Toolkit) Want(s gpu.Snapshot) (Wanted, error) {
	driverRoot, devRoot := t.Roots()
	w := Wanted{Driver: nodestate.DriverInfo{Root: driverRoot, Version: s.Driver.Version, CUDAVersion: s.Driver.CUDAVersion, Simulated: s.Driver.Simulated}}
	if err := t.checkPlatform(s); err != nil {
		return w, err
	}
	if t.cache.root != driverRoot || t.cache.version != s.Driver.Version {
		files, err := spec.Find(t.Root, driverRoot, s.Driver.Version)
		if err != nil {
			return w, err
		}
		t.cache = driverCache{driverRoot, s.Driver.Version, files}
	}
	nodes, err := node.Scan(t.Root, driverRoot, devRoot, s)
	if err != nil {
		return w, err
	}
	around, err := spec.FindPeripherals(t.Root, driverRoot, devRoot, s)
	if err != nil {
		return w, err
	}
	if err := checkProgram(t.Config.HookProgram); err != nil {
		return w, fmt.Errorf("%w: %w", ErrHook, err)
	}
	hook := apply.Item{Path: path.Join(t.Config.InstallDir, HookName), File: &apply.File{From: t.Config.HookProgram, Mode: 0o755}}
	out := spec.Build(spec.Input{Files: t.cache.files, Around: around, Snapshot: s, Nodes: nodes, DriverRoot: driverRoot, DevRoot: devRoot, Hook: hook.Path})
	w.Warnings = slices.Concat(out.Warnings, t.cache.files.Warnings, around.Warnings)
	// Specifications come last: a name must not resolve before its files exist.
	w.Items = append(nodes.Items(t.Root, devRoot), hook)
	if err := t.removeStale(&w); err != nil {
		return w, err
	}
	return w, t.addSpecs(&w, out)
}

// checkProgram returns an error if a file of this process cannot be installed.
func checkProgram(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: name, Err: errors.New("it is no regular file")}
	}
	return err
}

// removeStale adds the removal of our links whose device is gone.
func (t *Toolkit) removeStale(w *Wanted) error {
	manifest, err := t.Store.Manifest()
	if err != nil {
		return err
	}
	var links []string
	for _, e := range manifest.Entries {
		wanted := slices.ContainsFunc(w.Items, func(i apply.Item) bool { return i.Path == e.Path })
		if path.Dir(e.Path) == "/dev/char" && !wanted {
			links = append(links, e.Path)
		}
	}
	w.Items = append(w.Items, node.Stale(t.Root, links)...)
	return nil
}

func (t *Toolkit) addSpecs(w *Wanted, out spec.Output) error {
	files, err := cdi.Load(t.Root, t.CDIDirs()...)
	if err != nil {
		return err
	}
	w.Owner = spec.Owner(files, cdi.KindNVIDIA, t.SpecPath(cdi.KindNVIDIA))
	for _, kind := range spec.Kinds {
		p, wanted := t.SpecPath(kind), out.Spec(kind)
		if owner := spec.Owner(files, kind, p); wanted != nil && owner != "" && !spec.Own(kind) {
			wanted = nil
			if kind != cdi.KindNVIDIA {
				w.Others = append(w.Others, owner+" defines "+kind+"; ours is not written")
			}
		}
		if wanted == nil {
			w.Items = append(w.Items, apply.Item{Path: p, Absent: true})
			continue
		}
		data, err := cdi.Encode(*wanted)
		if err != nil {
			return err
		}
		w.Items = append(w.Items, apply.Item{Path: p, File: &apply.File{Data: data, Mode: 0o644}})
		file := nodestate.Spec{Kind: kind, Path: p}
		for _, d := range wanted.Devices {
			file.Devices = append(file.Devices, d.Name)
		}
		w.Specs = append(w.Specs, file)
		if spec.Own(kind) && w.Conflict == "" {
			w.Conflict = spec.Conflict(files, kind, p, slices.Index(t.CDIDirs(), t.Config.CDIDir), file.Devices)
		}
	}
	return nil
}

// SpecPath returns the path of the specification of a kind.
func (t *Toolkit) SpecPath(kind string) string {
	return path.Join(t.Config.CDIDir, spec.FileName(kind))
}

// CDIDirs returns the directories in which any program may define our kinds: those that runtimes
// read, and the toolkit's own.
func (t *Toolkit) CDIDirs() []string {
	dirs := []string{cdi.StaticDir, cdi.DynamicDir}
	ours, err := t.Root.Resolve(t.Config.CDIDir)
	for _, d := range dirs {
		if real, dirErr := t.Root.Resolve(d); err == nil && dirErr == nil && real == ours && d != t.Config.CDIDir {
			dirs = slices.DeleteFunc(dirs, func(s string) bool { return s == d })
		}
	}
	if !slices.Contains(dirs, t.Config.CDIDir) {
		dirs = append(dirs, t.Config.CDIDir)
	}
	return dirs
}

// Uninstall removes everything that the toolkit made, its state included. It returns the
// changes, and descriptions of the paths that it left: others changed them, or containers need
// them. With dry set it removes nothing.
func (t *Toolkit) Uninstall(dry bool) (changes []apply.Change, left []string, err error) {
	o := apply.RestoreOptions{DryRun: dry}
	users := t.handlerContainers()
	if len(users) > 0 {
		o.Only = func(p string) bool {
			return t.isConfig(p) || path.Base(p) != ShimName && path.Base(p) != request.SettingsFile
		}
	}
	restored, err := t.Store.Restore(o)
	if err != nil {
		return nil, nil, err
	}
	if n := len(users); n > 0 {
		restored.Left = append(restored.Left, fmt.Sprintf(
			"%s: the container runtime needs it to stop the containers that were created with it (%d, such as %s): restore again when they have ended",
			path.Join(t.Config.InstallDir, ShimName), n, users[0]))
	}
	gone, err := t.Store.Plan([]apply.Item{{Path: path.Join(t.Config.stateDir(), nodestate.FileName), Absent: true}})
	if err == nil && !dry {
		_, err = apply.Write(t.Root, gone)
	}
	if err != nil {
		return nil, nil, err
	}
	return append(restored.Changes, gone...), restored.Left, nil
}

// Published returns the state published last in this boot, if there is one.
func (t *Toolkit) Published() (nodestate.State, error) {
	real, err := t.Root.Resolve(t.Config.stateDir())
	if err != nil {
		return nodestate.State{}, err
	}
	return nodestate.ReadBoot(filepath.Clean(t.Root.Path(real)), t.Store.BootID)
}

// Publish publishes the state for others. It must not be called concurrently.
func (t *Toolkit) Publish(s nodestate.State) error {
	real, err := t.Root.Resolve(t.Config.stateDir())
	switch {
	case err == nil:
		t.stateDir = filepath.Clean(t.Root.Path(real))
	case t.stateDir == "" || !inotify.Exhausted(err):
		return err
	}
	s.Component, s.BootID = nodestate.Toolkit, t.Store.BootID
	return nodestate.Write(t.stateDir, s)
}

// Once scans the host, plans and, unless dry is set, applies the changes. It serves the
// commands apply and plan. It returns the changes, also those made before an error.
func (t *Toolkit) Once(ctx context.Context, dry bool) (changes []apply.Change, w Wanted, err error) {
	control, err := t.Control()
	if err != nil {
		return nil, w, err
	}
	act := t.Store.Apply
	if dry {
		act = t.Store.Plan
	}
	changes, err = act(control)
	if err != nil {
		return changes, w, err
	}
	driverRoot, _ := t.Roots()
	source, err := t.Driver.Open(driverRoot)
	if err != nil {
		return changes, w, t.ExplainDriver(err)
	}
	defer source.Close()
	snapshot, err := source.Snapshot(ctx)
	if err != nil {
		return changes, w, err
	}
	if w, err = t.Want(snapshot); err != nil {
		return changes, w, err
	}
	rest, err := act(w.Items)
	if dry && err == nil {
		return rest, w, nil // the control nodes are among them
	}
	return append(changes, rest...), w, err
}
