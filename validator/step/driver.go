package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer.
const (
	reasonLibraryMissing   gpu.Reason = "DriverLibraryMissing"
	reasonModuleMissing    gpu.Reason = "KernelModuleNotLoaded"
	reasonUVMMissing       gpu.Reason = "UVMModuleNotLoaded"
	reasonNouveau          gpu.Reason = "NouveauInTheWay"
	reasonVersionMismatch  gpu.Reason = "DriverVersionMismatch"
	reasonNoPermission     gpu.Reason = "DeviceNodesNotPermitted"
	reasonNVMLFailed       gpu.Reason = "NVMLFailed"
	reasonNoUsableGPU      gpu.Reason = "NoUsableGPU"
	reasonGPUsMissing      gpu.Reason = "GPUsMissing"
	reasonCUDALibrary      gpu.Reason = "LibcudaMissing"
	reasonLibraryMismatch  gpu.Reason = "DriverLibrariesDiffer"
	reasonDeviceNode       gpu.Reason = "DeviceNodeMissing"
	reasonDeviceNodeWrong  gpu.Reason = "DeviceNodeWrong"
	reasonDeviceLink       gpu.Reason = "DeviceLinkMissing" // in notes only
	reasonSimulatedRefused gpu.Reason = "SimulatedDriverRefused"
	reasonPlatform         gpu.Reason = "PlatformNotServed"
	reasonAttestation      gpu.Reason = "AttestationPending"
)

// NoDriver reports whether a refusal of this layer only means that there is no driver, so that
// state s of the driver's container explains why. If there is a driver that was not injected
// into this container, a driver's container that has ended explains nothing: the driver may
// be another, for example the host's.
func NoDriver(reason gpu.Reason, s nodestate.State) bool {
	switch reason {
	case reasonLibraryMissing, reasonModuleMissing:
		return true
	case check.ReasonInjection:
		return readiness.IsDriverLoading(s)
	}
	return false
}

// ReadNVML reads NVML once. Its error wraps gpu's sentinels.
type ReadNVML func(ctx context.Context, node check.Node) (check.Reading, error)

// CheckDriver checks layer driver: kernel module, user libraries and device nodes exist and
// belong together, and NVML finds GPUs with them. It returns the proven driver.
//
// The PCI bus distinguishes absence from failure: a node without NVIDIA GPU and driver has
// nothing to prove, one with a GPU but no driver is broken.
func CheckDriver(ctx context.Context, node check.Node, read ReadNVML) (check.Driver, check.Outcome) {
	node = node.FindDriverRoot()
	h := readHardware(node)
	if o := h.injectionMissing(); o != nil {
		return check.Driver{}, *o
	}
	reading, err := read(ctx, node)
	if o := h.notServed(); o != nil && (err != nil || !reading.Snapshot.Driver.Simulated) {
		return check.Driver{}, *o
	}
	if err != nil {
		o := h.nvmlFailure(err)
		if o.Kind == check.Absent && (node.ExpectGPUs > 0 || node.Strict) {
			o = check.Fail(reasonGPUsMissing, fmt.Sprintf("0 of %d expected GPUs are usable: no NVIDIA GPU is on the PCI bus, and there is no driver", max(node.ExpectGPUs, 1)),
				"see that the GPU is seated and powered, and passed through to a virtual machine")
		}
		return check.Driver{}, o
	}
	s := reading.Snapshot
	d := check.Driver{
		Info: nodestate.DriverInfo{
			Root: node.DriverRoot, Version: s.Driver.Version,
			CUDAVersion: s.Driver.CUDAVersion, Simulated: s.Driver.Simulated,
		},
		DevRoot: node.DevRoot,
		LibDirs: []string{filepath.Dir(reading.Library)},
		GPUs:    s.Devices,
	}
	found, err := findLibraries(node, reading.Library)
	if err != nil {
		return check.Driver{}, h.nvmlFailure(err)
	}
	for _, dir := range found.dirs {
		if !slices.Contains(d.LibDirs, dir) {
			d.LibDirs = append(d.LibDirs, dir)
		}
	}
	if !d.Info.Simulated {
		d.Module = openKernel(node).Loading("nvidia")
	}
	if PartitionsOnDemand(node) {
		d.OnDemand, d.GPUs = true, s.Clone().Devices
		for i := range d.GPUs {
			d.GPUs[i].MIG = nil
		}
	}
	for _, verify := range []func(hardware, check.Driver, check.Reading) *check.Outcome{
		checkSimulation, checkVersions, found.checkLibcuda, found.checkVersions, checkUsable, checkComplete, checkNodes, checkAttestation,
	} {
		if failed := verify(h, d, reading); failed != nil {
			return check.Driver{}, *failed
		}
	}
	proof := readiness.Proof{
		Driver: &d.Info, HostRoot: node.Root.Dir(), DevRoot: d.DevRoot, GPUs: len(d.Units()),
		Summary: fmt.Sprintf("%s, driver %s, CUDA %s", describeGPUs(d.GPUs), d.Info.Version, d.Info.CUDAVersion),
	}
	return d, check.NewPass(proof, h.notes(d, found.jit != "")...)
}

// injectionMissing refuses the layer if this container waits for the injection of the GPUs on a node
// that has them: NVML would describe this container, not the node.
func (h hardware) injectionMissing() *check.Outcome {
	if h.node.Injection != injection.Expected {
		return nil
	}
	toolkit, err := h.node.State(nodestate.Toolkit)
	offered := err == nil && toolkit.Toolkit != nil && toolkit.Toolkit.Injection != nil && toolkit.Toolkit.Injection.Generation != ""
	if h.library == "" && h.module == "" && !offered && !injection.SeesDriver(toolkit, err) && !h.driverReady() {
		return nil
	}
	if o := h.notServed(); o != nil && (err != nil || toolkit.Driver == nil || !toolkit.Driver.Simulated) {
		return o
	}
	why := "the toolkit has reported nothing since the node booted"
	switch {
	case offered && toolkit.Toolkit.Injection.Working:
		why = "the toolkit injects them, and it passed this container by"
	case err == nil && toolkit.Toolkit != nil && toolkit.Toolkit.Injection != nil && toolkit.Toolkit.Injection.Message != "":
		why = toolkit.Toolkit.Injection.Message
	case err == nil:
		why = fmt.Sprintf("the toolkit says %s: %s", toolkit.Phase, toolkit.Message)
	case !nodestate.IsAbsent(err):
		why = err.Error()
	}
	return failed(check.ReasonInjection, "this container was created without the GPUs' devices, so nothing can be said of them: "+why,
		fmt.Sprintf("see the log of nvidia-container-toolkit-daemonset on this node, and that this pod is in its namespace and has the annotation %s=true; "+
			"where the runtime has no NRI, use the privileged variant of the manifests", injection.Annotation))
}

// notServed refuses the layer on a platform that is not served. A simulated driver works on any.
func (h hardware) notServed() *check.Outcome {
	platform := h.node.Root.Platform()
	if platform == "" {
		return nil
	}
	message, action := platform.Describe()
	return failed(reasonPlatform, message, action)
}

// driverReady reports whether a driver's container reports that its driver is loaded.
func (h hardware) driverReady() bool {
	s, err := h.node.State(nodestate.Driver)
	return err == nil && (s.Phase == nodestate.Ready || s.Phase == nodestate.Degraded)
}

// nvmlFailure returns the outcome for a failure of NVML, with its cause.
func (h hardware) nvmlFailure(err error) check.Outcome {
	found := "the PCI bus shows " + countOf(len(h.pci), "NVIDIA GPU")
	switch {
	case errors.Is(err, gpu.ErrNoDriver) && h.library == "" && h.module == "" && len(h.pci) == 0:
		return check.NoGPU("no NVIDIA GPU on the PCI bus and no driver: nothing to prove on this node")
	case errors.Is(err, gpu.ErrNoDriver) && h.module == "" && len(h.nouveau) > 0:
		return check.Fail(reasonNouveau, fmt.Sprintf("%s, and %s of nouveau, the kernel's own driver, which keeps NVIDIA's from them", found, addresses(h.nouveau)),
			"keep nouveau from being loaded (/etc/modprobe.d: blacklist nouveau, options nouveau modeset=0), make the initramfs anew, and reboot")
	case errors.Is(err, gpu.ErrNoDriver) && h.library == "":
		if h.module != "" {
			found = "the kernel module " + h.module + " is loaded"
		}
		return check.Fail(reasonLibraryMissing,
			fmt.Sprintf("%s, but there is no libnvidia-ml.so.1 below %s", found, h.node.DriverRoot),
			"install the driver's user libraries there, or say with --driver-root where they are; a driver container may still be at work")
	case errors.Is(err, gpu.ErrNoDriver):
		return check.Fail(reasonModuleMissing,
			fmt.Sprintf("%s is there, but the nvidia kernel module is not loaded: %v", h.library, err),
			"load it with modprobe nvidia; if that fails, dmesg says why (Secure Boot, built for another kernel)")
	case errors.Is(err, gpu.ErrVersionMismatch):
		return *versionMismatch(h.libraryVersion(), h.module)
	case errors.Is(err, gpu.ErrNoPermission):
		return check.Fail(reasonNoPermission, err.Error(),
			"give this container the GPUs (management.gpuready.io/gpu=all by CDI, or the nvidia runtime handler); device nodes by hostPath alone are refused by the device cgroup")
	}
	return check.Fail(reasonNVMLFailed, err.Error(), "look for NVRM and Xid lines in dmesg; a reset or a reboot may be needed")
}

func checkSimulation(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	if !d.Info.Simulated || h.node.AllowSimulated {
		return nil
	}
	return failed(reasonSimulatedRefused,
		fmt.Sprintf("the driver %s below %s is simulated: there is no GPU under it, so nothing can be vouched for", d.Info.Version, d.Info.Root),
		"where that is intended, say --allow-simulated (ALLOW_SIMULATED=true); else remove the simulated driver")
}

func checkVersions(h hardware, d check.Driver, r check.Reading) *check.Outcome {
	if h.moduleHidden(d) {
		return nil // the simulated library has compared them itself
	}
	if h.module == "" {
		return failed(reasonModuleMissing, "/proc/driver/nvidia/version is not there, so no nvidia kernel module is loaded",
			"load it with modprobe nvidia")
	}
	for _, version := range []string{library.Version(r.Library), d.Info.Version} {
		if version != "" && version != h.module {
			return versionMismatch(version, h.module)
		}
	}
	return nil
}

func versionMismatch(library, module string) *check.Outcome {
	return failed(reasonVersionMismatch,
		fmt.Sprintf("the driver's libraries are of version %s, the kernel module is %s", cmp.Or(library, "unknown"), cmp.Or(module, "unknown")),
		"finish the upgrade: reload the kernel modules (no process may use a GPU then) or reboot")
}

// checkLibcuda checks that there is a libcuda, which CUDA programs load.
func (l libraries) checkLibcuda(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	if l.cuda == "" {
		return failed(reasonCUDALibrary, "there is no libcuda.so.1 in "+h.onHost(d.LibDirs[0])+", where libnvidia-ml.so.1 is, nor in another folder of drivers' libraries",
			"install the whole driver: the package that holds libcuda (Debian libcuda1, Ubuntu libnvidia-compute-*, RHEL nvidia-driver-cuda-libs)")
	}
	return nil
}

// jitCompiler is the compiler of PTX, in a package of its own on Debian. Programs with machine code
// for the GPU do not need it.
const jitCompiler = "libnvidia-ptxjitcompiler.so.1"

// libraries are the driver's libraries that CUDA programs load, as this process sees them. They can be in other folders
// than libnvidia-ml.
type libraries struct {
	cuda, jit string   // "": there is none
	dirs      []string // with libraries of libnvidia-ml's version
}

// findLibraries finds the libraries that belong to the libnvidia-ml at a path: below the driver root, or, if a
// container runtime has injected it, in this container.
func findLibraries(node check.Node, ml string) (libraries, error) {
	dir := "/"
	if at := node.Root.Path(node.DriverRoot); isBelow(ml, at) {
		dir = at
	}
	root, err := host.Open(dir)
	if err != nil {
		return libraries{}, err
	}
	defer root.Close()
	beside, _ := root.Host(filepath.Dir(ml))
	find := library.New(root, beside)
	here := func(name string) string {
		if real, ok := find.Find(name, library.Version(ml)); ok {
			return root.Path(real)
		}
		return ""
	}
	l := libraries{cuda: here("libcuda.so.1"), jit: here(jitCompiler)}
	if l.cuda != "" {
		l.dirs = append(l.dirs, filepath.Dir(l.cuda))
	}
	if version := library.Version(ml); version != "" {
		for _, dir := range find.Holding(version) {
			l.dirs = append(l.dirs, root.Path(dir))
		}
	}
	return l, nil
}

func isBelow(p, dir string) bool {
	return dir == "/" || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// checkVersions checks that the libraries that CUDA programs load are of one version.
func (l libraries) checkVersions(h hardware, _ check.Driver, r check.Reading) *check.Outcome {
	version := library.Version(r.Library)
	for _, real := range []string{l.cuda, l.jit} {
		if have := library.Version(real); have != "" && version != "" && have != version {
			name, _, _ := strings.Cut(filepath.Base(real), ".so.")
			return failed(reasonLibraryMismatch,
				fmt.Sprintf("in %s %s is of version %s, libnvidia-ml of version %s", h.onHost(filepath.Dir(real)), name, have, version),
				"install all user libraries of one driver version")
		}
	}
	return nil
}

func checkUsable(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	var faults []string
	for _, g := range d.GPUs {
		if g.Fault == (gpu.Fault{}) {
			return nil
		}
		faults = append(faults, check.Name(g)+": "+g.Fault.String())
	}
	if len(faults) == 0 {
		return failed(reasonNoUsableGPU,
			fmt.Sprintf("the driver works and finds no GPU; the PCI bus shows %s", countOf(len(h.pci), "NVIDIA GPU")),
			"look for NVRM lines in dmesg: the GPU may be unsupported by this driver, bound to another one, or fallen off the bus")
	}
	return failed(reasonNoUsableGPU, "no GPU is usable: "+strings.Join(faults, "; "), "look for Xid lines in dmesg; reset the GPUs or reboot")
}

// checkAttestation checks that the GPUs accept work where confidential computing is on. Setting their ready
// state vouches for their attestation, so the node's owner does that and no component.
func checkAttestation(_ hardware, _ check.Driver, r check.Reading) *check.Outcome {
	if !r.Snapshot.Driver.AwaitsAttestation {
		return nil
	}
	return failed(reasonAttestation, "confidential computing is on, and the GPUs accept no work: their ready state is not set",
		"attest the GPUs, and then set it: nvidia-smi conf-compute -srs 1; it is lost when the driver is loaded again")
}

// checkComplete checks that as many GPUs are usable as the node is expected to have.
func checkComplete(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	problems := h.gpuProblems(d)
	why := ""
	if len(problems) > 0 {
		why = ": " + strings.Join(problems, "; ")
	}
	const action = "look for Xid and NVRM lines in dmesg, reset the GPU or reboot; gpu-validator preflight tests each GPU"
	if usable := countUsable(d); usable < h.node.ExpectGPUs {
		return failed(reasonGPUsMissing, fmt.Sprintf("%d of %d expected GPUs are usable%s", usable, h.node.ExpectGPUs, why), action)
	}
	if h.node.Strict && len(problems) > 0 {
		return failed(reasonGPUsMissing, "not every GPU is usable (--strict)"+why, action)
	}
	return nil
}

func countUsable(d check.Driver) (n int) {
	for _, g := range d.GPUs {
		if g.Fault == (gpu.Fault{}) && (!g.MIGEnabled || len(g.MIG) > 0 || d.OnDemand) {
			n++
		}
	}
	return n
}

// gpuProblems returns problems of single GPUs that do not affect the others.
func (h hardware) gpuProblems(d check.Driver) []string {
	var notes []string
	seen := map[gpu.PCIAddress]bool{}
	for _, g := range d.GPUs {
		seen[g.PCI] = true
		if g.Fault != (gpu.Fault{}) {
			notes = append(notes, check.Name(g)+" is not usable: "+g.Fault.String())
		}
		if g.MIGEnabled && len(g.MIG) == 0 && !d.OnDemand {
			notes = append(notes, check.Name(g)+" is in MIG mode and has no MIG devices")
		}
	}
	for _, address := range h.pci {
		if !seen[address] {
			notes = append(notes, "the GPU at "+string(address)+" is on the PCI bus, but not known to the driver")
		}
	}
	return notes
}

// notes returns the oddities of a node whose driver is proven.
func (h hardware) notes(d check.Driver, hasCompiler bool) []string {
	notes := h.gpuProblems(d)
	if !hasCompiler && !d.Info.Simulated {
		notes = append(notes, "there is no "+jitCompiler+" in "+h.onHost(d.LibDirs[0])+": programs that bring PTX and no machine code for the GPU do not run; install the whole driver")
	}
	return append(notes, h.linkNotes(d)...)
}

func addresses(all []gpu.PCIAddress) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = string(a)
	}
	if len(words) == 1 {
		return words[0] + " is in the hands"
	}
	return strings.Join(words, ", ") + " are in the hands"
}

func failed(reason gpu.Reason, message, action string) *check.Outcome {
	o := check.Fail(reason, message, action)
	return &o
}

// describeGPUs counts the GPUs by product: "8 × NVIDIA H200", "7 of 8 …".
func describeGPUs(gpus []gpu.Device) string {
	var order []string
	all, good := map[string]int{}, map[string]int{}
	for _, g := range gpus {
		if all[g.Product] == 0 {
			order = append(order, g.Product)
		}
		all[g.Product]++
		if g.Fault == (gpu.Fault{}) {
			good[g.Product]++
		}
	}
	var parts []string
	for _, product := range order {
		n := fmt.Sprint(all[product])
		if good[product] < all[product] {
			n = fmt.Sprintf("%d of %d", good[product], all[product])
		}
		parts = append(parts, n+" × "+cmp.Or(product, "GPU"))
	}
	return strings.Join(parts, ", ")
}

func countOf(n int, what string) string {
	switch n {
	case 0:
		return "no " + what
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
