package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

// Survey configures where to look for a driver, and which modules are wanted.
type Survey struct {
	System  kernel.System
	Host    *host.Root // the file system of this process
	Image   *host.Root // the driver's user space and modules: /driver
	Built   *host.Root // modules that were built on the node; nil: none
	Modules string     // of the kernel itself: /lib/modules, a path of Host
	Conf    string     // parameters, one file for each module: /drivers, a path of Host
	Kind    kernel.Kind
	DRM     bool   // nvidia-drm is wanted
	Peermem bool   // nvidia-peermem is wanted
	Digest  string // of the configuration outside of these files: DRIVER_CONFIG_DIGEST
	// WithoutGPU loads the modules even if the PCI bus has no GPU.
	WithoutGPU bool
}

// Snapshot is the result of a survey.
type Snapshot struct {
	Release string // of the running kernel
	GPUs    []host.PCIGPU
	Passed  string      // names the GPUs that are held for virtual machines
	Kind    kernel.Kind // of the modules that are loaded
	Why     string      // why this kind
	Version string      // of the driver
	Image   *host.Root
	Files   kernel.Files
	Tree    *kernel.Tree
	Options kernel.Options
	Loaded  map[string]kernel.Loaded
	Wanted  []string // the driver's modules, in the order in which they are loaded
	Digest  string   // of the driver, its modules and their parameters
}

// loadedFirst lists modules of the kernel that are loaded before NVIDIA's where they exist: the
// driver looks up some of their symbols at run time.
var loadedFirst = []string{"i2c_core", "ipmi_msghandler", "ipmi_devintf", "video"}

// ErrNoGPU is returned on a node without a GPU.
var ErrNoGPU error = &kernel.Error{Reason: kernel.ReasonNoDevice, Message: "there is no NVIDIA GPU on this node's PCI bus: no driver is loaded"}

// listGPUs lists the GPUs on the PCI bus, except those that are passed to virtual machines. passed names these.
func (v Survey) listGPUs() (own []host.PCIGPU, passed string) {
	all := v.Host.GPUs(path.Join(v.System.Sys, strings.TrimPrefix(host.PCIDevices, "/sys")))
	return slices.DeleteFunc(slices.Clone(all), func(g host.PCIGPU) bool { return strings.Contains(g.Driver, "vfio") }), kernel.PassedOn(all)
}

// CheckGPU returns ErrNoGPU on a node without a GPU, wrapped if all GPUs are passed to virtual machines, and the
// reason on a platform that is not served. The modules of a vGPU manager are never replaced.
func (v Survey) CheckGPU() error {
	if p := v.Host.Platform(); p == host.VGPUHost || p != "" && !v.WithoutGPU {
		message, action := p.Describe()
		return &kernel.Error{Reason: kernel.ReasonPlatform, Message: message + "; " + action}
	}
	own, passed := v.listGPUs()
	switch {
	case v.WithoutGPU || len(own) > 0:
		return nil
	case passed != "":
		return &kernel.Error{Reason: kernel.ReasonNoDevice, Err: ErrNoGPU,
			Message: "all NVIDIA GPUs on this node's PCI bus are held for virtual machines (" + passed + "): no driver is loaded"}
	}
	return ErrNoGPU
}

// Snapshot surveys the node and the image.
func (v Survey) Snapshot() (Snapshot, error) {
	s := Snapshot{Image: v.Image}
	s.GPUs, s.Passed = v.listGPUs()
	var err error
	if s.Release, err = v.System.Release(); err != nil {
		return s, err
	}
	if s.Tree, err = kernel.ReadTree(v.Host, path.Join(v.Modules, s.Release)); err != nil {
		return s, err
	}
	if err := v.chooseFiles(&s); err != nil {
		return s, err
	}
	s.Wanted = v.wantedModules()
	s.Version = s.Files["nvidia"].Version
	if s.Options, err = kernel.ReadModprobe(v.Host, "/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"); err != nil {
		return s, err
	}
	if err := s.Options.ReadConf(v.Host, v.Conf); err != nil {
		return s, err
	}
	if err := kernel.CheckConf(s.Options, s.Files); err != nil {
		return s, err
	}
	s.Options.SetDefaults(s.Files, s.GPUs)
	if s.Loaded, err = v.System.ReadLoaded(); err != nil {
		return s, err
	}
	s.Digest = s.digest(v.Digest)
	return s, nil
}

// wantedModules returns the driver's modules to load, in order.
func (v Survey) wantedModules() []string {
	wanted := []string{"nvidia", "nvidia_uvm", "nvidia_modeset"}
	if v.DRM {
		wanted = append(wanted, "nvidia_drm")
	}
	if v.Peermem {
		wanted = append(wanted, "nvidia_peermem")
	}
	return wanted
}

// fileNames returns the names of modules in the spelling of their files: "nvidia-uvm".
func fileNames(modules []string) []string {
	names := make([]string, len(modules))
	for i, m := range modules {
		names[i] = strings.ReplaceAll(m, "_", "-")
	}
	return names
}

// chooseFiles finds the image's modules for the running kernel and chooses their kind.
func (v Survey) chooseFiles(s *Snapshot) error {
	byKind, err := kernel.FindDrivers(v.Image, path.Join("/lib/modules", s.Release))
	if err != nil {
		return err
	}
	if v.Built != nil && len(byKind) == 0 {
		if byKind, err = kernel.FindDrivers(v.Built, path.Join("/lib/modules", s.Release)); err != nil {
			return err
		}
	}
	kinds := slices.Sorted(maps.Keys(byKind))
	if len(kinds) == 0 {
		return &kernel.Error{Reason: kernel.ReasonKernelMismatch, Module: "nvidia", Err: errNoModules, Message: fmt.Sprintf(
			"the driver's image has no modules for kernel %s, which this node runs%s; use the image for this kernel", s.Release, v.otherReleases())}
	}
	s.Kind, s.Why, err = kernel.ChooseKind(v.Kind, kinds, s.GPUs, byKind[kinds[0]]["nvidia"].Version)
	s.Files = byKind[s.Kind]
	return err
}

// otherReleases names the kernels for which the image has modules.
func (v Survey) otherReleases() string {
	names, err := v.Image.Names("/lib/modules")
	if err != nil || len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return ", but for " + strings.Join(names[:min(len(names), 5)], ", ")
}

// Plan returns the modules to load in addition to those that are loaded already.
func (s Snapshot) Plan(loaded map[string]kernel.Loaded) ([]kernel.Step, error) {
	return kernel.PlanSteps(kernel.Inputs{Wanted: s.Wanted, Optional: loadedFirst, Files: s.Files, Tree: s.Tree, Options: s.Options, Loaded: loaded, Release: s.Release})
}

// digest identifies the driver to load: the build of each wanted module, its parameters, and
// outside, a digest of other configuration.
func (s Snapshot) digest(outside string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", s.Release, s.Kind, outside)
	for _, name := range s.Wanted {
		i := s.Files[name].Info
		fmt.Fprintf(h, "%s %s %s %s %v\n", name, i.Version, i.SrcVersion, i.BuildID, s.Options.Params[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
