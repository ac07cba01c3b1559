package step

import (
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/validator/check"
)

// hardware is the hardware and driver according to the host's files, without NVML.
type hardware struct {
	node    check.Node
	pci     []gpu.PCIAddress // NVIDIA GPUs that could have this driver
	nouveau []gpu.PCIAddress // the ones bound to nouveau, the kernel's own driver
	module  string           // version of the loaded kernel module, "" if none
	library string           // host path of libnvidia-ml below the driver root, "" if none
	majors  map[string]int   // of character devices, by driver name
}

// readHardware reads the host's files. A driver root may contain its own /proc and /sys: a driver
// container has those of the host there, the simulator its stand-ins.
func readHardware(node check.Node) hardware {
	h := hardware{node: node}
	roots := []string{node.DriverRoot, "/"}
	for _, root := range roots {
		if h.pci, h.nouveau = ownGPUs(node.Root, path.Join(root, host.PCIDevices)); len(h.pci) > 0 {
			break
		}
	}
	k := openKernel(node)
	h.module = library.ModuleVersion(k.Read("/proc/driver/nvidia/version"))
	h.majors = k.Majors(func(name string) bool { return strings.HasPrefix(name, "nvidia") })
	if found, err := nvml.FindLibrary(node.Root.Dir(), node.DriverRoot); err == nil {
		h.library = h.onHost(found)
	}
	return h
}

// onHost returns the host path for a path of this process.
func (h hardware) onHost(here string) string {
	if p, ok := h.node.Root.Host(here); ok {
		return p
	}
	return here
}

func (h hardware) libraryVersion() string { return library.Version(h.library) }

// moduleHidden reports whether the driver's kernel module is loaded but not visible here. A
// container with a simulated GPU has the host's /proc, and not the stand-in in the simulated
// driver's root.
func (h hardware) moduleHidden(d check.Driver) bool { return d.Info.Simulated && h.module == "" }

// ownGPUs returns the NVIDIA GPUs of a sysfs folder that are not reserved for virtual
// machines, and those of them that are bound to nouveau.
func ownGPUs(root *host.Root, dir string) (found, nouveau []gpu.PCIAddress) {
	for _, device := range root.GPUs(dir) {
		switch device.Driver {
		case "vfio-pci":
			continue
		case "nouveau":
			nouveau = append(nouveau, device.Address)
		}
		found = append(found, device.Address)
	}
	return found, nouveau
}

// frontend returns the major number of /dev/nvidia0 and /dev/nvidiactl. The driver's name in
// /proc/devices changed with R550, the number (195, by Linux's devices.txt) never did.
func (h hardware) frontend() int {
	for _, name := range []string{"nvidia", "nvidia-frontend"} {
		if major, ok := h.majors[name]; ok {
			return major
		}
	}
	return 195
}
