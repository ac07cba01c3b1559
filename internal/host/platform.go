package host

import (
	"path"
	"slices"
	"strings"
)

// Platform is a kind of machine whose NVIDIA GPUs containers cannot use by the driver for data
// centers and desktops. "" is any other machine.
type Platform string

// The platforms that are not served.
const (
	// WSL is Windows Subsystem for Linux, or another Linux guest of Hyper-V with a shared GPU.
	WSL Platform = "WSL"
	// Tegra is a system on a chip with a GPU of its own, such as Jetson.
	Tegra Platform = "Tegra"
	// VGPUHost has NVIDIA's vGPU manager, which divides the GPUs among virtual machines.
	VGPUHost Platform = "vGPU host"
)

// Platform returns the machine's platform if it is one that is not served. It reads sysfs below the
// host's root or, if it is not mounted there, this process's own, as HasGPU does.
//
// A machine with an NVIDIA GPU on its PCI bus is neither WSL nor Tegra, whatever else it has: an
// IGX Orin with an RTX A6000 is served.
func (r *Root) Platform() Platform {
	if _, err := r.Stat(PCIDevices); err == nil {
		return r.platform()
	}
	own, err := Open("/")
	if err != nil {
		return ""
	}
	defer func() { _ = own.Close() }()
	return own.platform()
}

// platform looks for what marks the platforms, and lists the PCI bus only where it finds that.
func (r *Root) platform() Platform {
	found := Platform("")
	switch {
	case r.isVGPUHost():
		return VGPUHost
	case r.exists("/dev/dxg"), r.exists("/sys/class/misc/dxg"):
		found = WSL // the device of dxgkrnl (Microsoft's kernel for WSL2, drivers/hv/dxgkrnl)
	case r.isTegra():
		found = Tegra
	}
	if found != "" && len(r.GPUs(PCIDevices)) > 0 {
		return ""
	}
	return found
}

// isVGPUHost reports whether the vGPU manager's module is loaded (NVIDIA's "Virtual GPU Software
// User Guide": lsmod | grep vfio), or offers mediated devices of a GPU.
func (r *Root) isVGPUHost() bool {
	const mediated = "/sys/class/mdev_bus"
	if r.exists("/sys/module/nvidia_vgpu_vfio") {
		return true
	}
	return r.exists(mediated) && slices.ContainsFunc(r.GPUs(PCIDevices), func(g PCIGPU) bool { return r.exists(path.Join(mediated, string(g.Address))) })
}

// isTegra reports whether the system on a chip is one of NVIDIA's: by sysfs (Linux,
// drivers/soc/tegra/fuse), by the device tree (Documentation/devicetree/bindings/arm/tegra.yaml), or
// by the file of NVIDIA's Linux for Tegra.
func (r *Root) isTegra() bool {
	const maxFile = 4096
	if family, err := r.ReadFile("/sys/devices/soc0/family", maxFile); err == nil && strings.HasPrefix(string(family), "Tegra") {
		return true
	}
	if compatible, err := r.ReadFile("/sys/firmware/devicetree/base/compatible", maxFile); err == nil {
		for name := range strings.SplitSeq(string(compatible), "\x00") {
			if strings.HasPrefix(name, "nvidia,tegra") {
				return true
			}
		}
	}
	return r.exists("/etc/nv_tegra_release")
}

func (r *Root) exists(name string) bool {
	_, err := r.Lstat(name)
	return err == nil
}

// Describe returns sentences for people about a platform that is not served: what the machine is, and
// what to do.
func (p Platform) Describe() (message, action string) {
	switch p {
	case WSL:
		message = "is a guest of Windows (WSL2) that shares a GPU with it by /dev/dxg"
		action = "use the GPU with NVIDIA's container toolkit, which has a mode for WSL; a driver for Linux has no place here"
	case Tegra:
		message = "is a Jetson (Tegra), whose GPU is on the chip and not on the PCI bus"
		action = "use the GPU with JetPack's driver and NVIDIA's container toolkit and device plugin; no other driver fits"
	case VGPUHost:
		message = "is a host of vGPUs: NVIDIA's vGPU manager divides its GPUs among virtual machines"
		action = "keep NVIDIA's operator for this node; a virtual machine with a vGPU is served as a node of its own"
	}
	return "gpuready does not serve this machine: it " + message,
		action + "; the node's label nvidia.com/gpu.deploy.operands=false keeps gpuready's operands away"
}
