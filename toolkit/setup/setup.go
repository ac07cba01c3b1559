// Package setup brings a host to where containers can be given GPUs: it looks,
// plans, applies, and says what was reached or why it was not.
package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/distro"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/ociruntime/settings"
	"github.com/gpuready/gpuready/toolkit/spec"
)

// ContainerRoot is where driver containers show their root.
const ContainerRoot = "/run/nvidia/driver"

// Config says where things are. All paths but HostRoot and HookProgram are the host's.
type Config struct {
	HostRoot    string // where the host's file system is seen; "" is "/"
	DriverRoot  string // "": ContainerRoot if a driver is there, else "/"
	DevRoot     string // "": the driver root if it has the device nodes, else "/"
	CDIDir      string
	InstallDir  string
	StateDir    string
	HookProgram string // gpu-cdi-hook, as this process sees it

	NRISocket string // where the runtime lets plugins in
	Namespace string // whose agents are given the GPUs by NRI; "": nobody's
	// WorkloadNamespaces are those whose containers are given by NRI the GPUs that they
	// ask for.
	WorkloadNamespaces []string

	Runtime        distro.Settings // what is said of the container runtime instead of what is found
	Configure      bool            // its configuration may be changed
	CDI            bool            // it is to resolve CDI names
	Handler        string          // it is to have our handler by this name; "": it needs none
	HandlerDefault bool            // and that is to be the default
	Shim           settings.Settings
	ShimProgram    string // gpu-oci-runtime, as this process sees it
}

// Driver is how NVML is found and opened; a process can load it only once.
type Driver interface {
	// Find returns where libnvidia-ml is below a driver root, as this process
	// sees it; its error wraps gpu.ErrNoDriver.
	Find(driverRoot string) (string, error)
	Open(driverRoot string) (gpu.Source, error)
}

// Toolkit looks at one host and changes it.
type Toolkit struct {
	Config Config
	Driver Driver
	Root   *host.Root

	bootID   string
	account  sync.Mutex // held while the account is read and written
	found    found      // what the last look at the driver's files gave
	stateDir string     // where this process sees the state, once that was found out
}

// found remembers the driver's files: looking for them takes most of the time
// of a refresh, and they change only with the driver.
type found struct {
	root, version string
	files         spec.Files
}

// New looks at the host below cfg.HostRoot.
func New(cfg Config, driver Driver) (*Toolkit, error) {
	root, err := host.Open(cfg.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("host's file system: %w; mount it and say where with --host-root", err)
	}
	bootID, err := nodestate.BootIDAt(root.Dir())
	if err != nil {
		return nil, err
	}
	return &Toolkit{Config: cfg, Driver: driver, Root: root, bootID: bootID}, nil
}

// Close lets go of the host's file system.
func (t *Toolkit) Close() error { return t.Root.Close() }

// Roots applies the rules for roots that were not given.
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

// Wanted is what the host should have, and what follows from it.
type Wanted struct {
	Items    []change.Item
	Specs    []nodestate.Spec
	Driver   nodestate.DriverInfo
	Warnings []string // what was left out, and why
	Owner    string   // who else defines nvidia.com/gpu
	Others   []string // who else defines another of the kinds that are not only ours
	Conflict string   // what is wrong with names that only we define; "": nothing
}

// Control returns what has to be there before NVML can be asked: the control
// nodes. Without a driver in the kernel that is nothing.
func (t *Toolkit) Control() ([]change.Item, error) {
	driverRoot, devRoot := t.Roots()
	_, control, _, err := t.nodes(driverRoot, devRoot, gpu.Snapshot{})
	if err != nil {
		return nil, err
	}
	return node.Items(t.Root, devRoot, control, nil), nil
}

// Forget makes the next Want look for the driver's files again.
func (t *Toolkit) Forget() { t.found = found{} }

// nodes returns the device nodes that are there or should be, of these those
// that the toolkit makes, and the minor numbers of MIG's capabilities.
func (t *Toolkit) nodes(driverRoot, devRoot string, s gpu.Snapshot) (all, control []node.Node, caps node.Caps, err error) {
	majors, err := node.ReadMajors(t.Root, driverRoot)
	if err != nil {
		return nil, nil, nil, err
	}
	if caps, err = node.ReadCaps(t.Root, driverRoot); err != nil {
		return nil, nil, nil, err
	}
	there, err := node.Find(t.Root, devRoot)
	if err != nil {
		return nil, nil, nil, err
	}
	names := []string{"config", "monitor"}
	for _, d := range s.Devices {
		for _, m := range d.MIG {
			names = append(names, node.Instance(d.Minor, m.GPUInstance), node.Compute(d.Minor, m.GPUInstance, m.ComputeInstance))
		}
	}
	slices.Sort(names)
	control = node.Control(majors, caps, slices.Compact(names))
	makes, err := node.MakesGPUs(t.Root, driverRoot)
	if err != nil {
		return nil, nil, nil, err
	}
	if makes {
		control = append(control, node.GPUs(majors, s.Devices)...)
	}
	all = slices.Clone(control)
	for _, n := range there {
		if !slices.ContainsFunc(control, func(c node.Node) bool { return c.Path == n.Path }) {
			all = append(all, n)
		}
	}
	return all, control, caps, nil
}

// Want decides what the host should have for the GPUs of a snapshot.
func (t *Toolkit) Want(s gpu.Snapshot) (Wanted, error) {
	driverRoot, devRoot := t.Roots()
	w := Wanted{Driver: nodestate.DriverInfo{Root: driverRoot, Version: s.Driver.Version, CUDAVersion: s.Driver.CUDAVersion, Simulated: s.Driver.Simulated}}
	if t.found.root != driverRoot || t.found.version != s.Driver.Version {
		files, err := spec.Find(t.Root, driverRoot, s.Driver.Version)
		if err != nil {
			return w, err
		}
		t.found = found{driverRoot, s.Driver.Version, files}
	}
	all, control, caps, err := t.nodes(driverRoot, devRoot, s)
	if err != nil {
		return w, err
	}
	around, err := spec.Look(t.Root, driverRoot, devRoot, s)
	if err != nil {
		return w, err
	}
	if err := isProgram(t.Config.HookProgram); err != nil {
		return w, fmt.Errorf("%w: %w", ErrHook, err)
	}
	hook := install.Hook(t.Config.InstallDir, t.Config.HookProgram)
	out := spec.Build(spec.Input{Files: t.found.files, Around: around, Snapshot: s, Nodes: all, Caps: caps, DriverRoot: driverRoot, DevRoot: devRoot, Hook: hook.Path})
	w.Warnings = out.Warnings
	// Specifications last: a name must not resolve before what it needs is there.
	w.Items = append(node.Items(t.Root, devRoot, control, all), hook)
	if err := t.wantNoStale(&w); err != nil {
		return w, err
	}
	return w, t.wantSpecs(&w, out)
}

// isProgram says whether a file of this process can be installed.
func isProgram(name string) error {
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

// wantNoStale wants those of our links gone whose device is.
func (t *Toolkit) wantNoStale(w *Wanted) error {
	account, err := install.Read(t.Root, t.Config.InstallDir, t.bootID)
	if err != nil {
		return err
	}
	var links []string
	for _, e := range account.Entries {
		wanted := slices.ContainsFunc(w.Items, func(i change.Item) bool { return i.Path == e.Path })
		if path.Dir(e.Path) == "/dev/char" && !wanted {
			links = append(links, e.Path)
		}
	}
	w.Items = append(w.Items, node.Stale(t.Root, links)...)
	return nil
}

func (t *Toolkit) wantSpecs(w *Wanted, out spec.Output) error {
	files, err := cdi.Load(t.Root, t.cdiDirs()...)
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
			w.Items = append(w.Items, change.Item{Path: p, Absent: true})
			continue
		}
		data, err := cdi.Encode(*wanted)
		if err != nil {
			return err
		}
		w.Items = append(w.Items, change.Item{Path: p, File: &change.File{Data: data, Mode: 0o644}})
		file := nodestate.Spec{Kind: kind, Path: p}
		for _, d := range wanted.Devices {
			file.Devices = append(file.Devices, d.Name)
		}
		w.Specs = append(w.Specs, file)
		if spec.Own(kind) && w.Conflict == "" {
			w.Conflict = spec.Conflict(files, kind, p, slices.Index(t.cdiDirs(), t.Config.CDIDir), file.Devices)
		}
	}
	return nil
}

// SpecPath is where the specification of a kind lies.
func (t *Toolkit) SpecPath(kind string) string {
	return path.Join(t.Config.CDIDir, spec.FileName(kind))
}

// cdiDirs are where others may define what we define: where runtimes look, and
// where we write.
func (t *Toolkit) cdiDirs() []string {
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

// Plan compares what is wanted with what is there.
func (t *Toolkit) Plan(items []change.Item) ([]change.Change, error) {
	return change.Plan(t.Root, items)
}

// Apply makes the changes and keeps account of them.
func (t *Toolkit) Apply(changes []change.Change) error {
	t.account.Lock()
	defer t.account.Unlock()
	return install.Apply(t.Root, t.Config.InstallDir, t.bootID, changes)
}

// Do brings the host to what is wanted and returns what it changed, also
// before an error.
func (t *Toolkit) Do(items []change.Item) ([]change.Change, error) {
	changes, err := t.Plan(items)
	if err != nil {
		return nil, err
	}
	err = t.Apply(changes)
	return change.Made(changes, err), err
}

// Uninstall removes everything that the toolkit made, its state included. It
// returns what it removed, and what it left because others changed it; with dry
// set it removes nothing.
func (t *Toolkit) Uninstall(dry bool) (changes []change.Change, left []string, err error) {
	restored, err := install.Restore(t.Root, t.Config.InstallDir, t.bootID, install.RestoreOptions{DryRun: dry})
	if err != nil {
		return nil, nil, err
	}
	state := path.Join(t.Config.StateDir, string(nodestate.Toolkit))
	gone, err := t.Plan([]change.Item{{Path: path.Join(state, nodestate.FileName), Absent: true}})
	if err == nil && !dry {
		err = change.Apply(t.Root, gone)
	}
	if err != nil {
		return nil, nil, err
	}
	return append(restored.Changes, gone...), restored.Left, nil
}

// Published returns the state of this boot that was left last, if there is one.
func (t *Toolkit) Published() (nodestate.State, error) {
	real, err := t.Root.Resolve(path.Join(t.Config.StateDir, string(nodestate.Toolkit)))
	if err != nil {
		return nodestate.State{}, err
	}
	return nodestate.ReadBoot(filepath.Clean(t.Root.Path(real)), t.bootID)
}

// Publish leaves the state where others look for it. One goroutine calls it at a time.
func (t *Toolkit) Publish(s nodestate.State) error {
	real, err := t.Root.Resolve(path.Join(t.Config.StateDir, string(nodestate.Toolkit)))
	switch {
	case err == nil:
		t.stateDir = filepath.Clean(t.Root.Path(real))
	case t.stateDir == "" || !inotify.Exhausted(err):
		return err
	}
	s.Component, s.BootID = nodestate.Toolkit, t.bootID
	return nodestate.Write(t.stateDir, s)
}

// Once looks, plans and, unless dry, applies; for the commands apply and plan.
// It returns the changes, also those made before an error.
func (t *Toolkit) Once(ctx context.Context, dry bool) (changes []change.Change, w Wanted, err error) {
	control, err := t.Control()
	if err != nil {
		return nil, w, err
	}
	changes, err = t.Plan(control)
	if err == nil && !dry {
		err = t.Apply(changes)
		changes = change.Made(changes, err)
	}
	if err != nil {
		return changes, w, err
	}
	driverRoot, _ := t.Roots()
	source, err := t.Driver.Open(driverRoot)
	if err != nil {
		return changes, w, err
	}
	defer source.Close()
	snapshot, err := source.Snapshot(ctx)
	if err != nil {
		return changes, w, err
	}
	if w, err = t.Want(snapshot); err != nil {
		return changes, w, err
	}
	rest, err := t.Plan(w.Items)
	if err != nil {
		return changes, w, err
	}
	if dry {
		return rest, w, nil // the control nodes are among them
	}
	err = t.Apply(rest)
	return append(changes, change.Made(rest, err)...), w, err
}
