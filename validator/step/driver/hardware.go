package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/validator/check"
)

const maxProcFile = 64 << 10

var versionPattern = regexp.MustCompile(`^\d{2,4}(\.\d{1,4}){1,3}$`)

// hardware is what the files of the host say, without NVML.
type hardware struct {
	node    check.Node
	pci     []gpu.PCIAddress // NVIDIA GPUs that could have this driver
	module  string           // version of the loaded kernel module, "" if none
	library string           // host path of libnvidia-ml below the driver root, "" if none
	majors  map[string]int   // of character devices, by driver name
}

// look reads them. A driver root may bring its own /proc and /sys: a driver
// container shows those of the host there, the simulator its stand-ins.
func look(node check.Node) hardware {
	h := hardware{node: node}
	roots := []string{node.DriverRoot, "/"}
	for _, root := range roots {
		if h.pci = ownGPUs(node.Root, path.Join(root, host.PCIDevices)); len(h.pci) > 0 {
			break
		}
	}
	for _, root := range roots {
		if data, err := node.Root.ReadFile(path.Join(root, "proc/driver/nvidia/version"), maxProcFile); err == nil {
			h.module = moduleVersion(string(data))
			break
		}
	}
	for _, root := range roots {
		data, err := node.Root.ReadFile(path.Join(root, "proc/devices"), maxProcFile)
		if h.majors = characterMajors(string(data)); err == nil && len(nvidiaMajors(h.majors)) > 0 {
			break
		}
	}
	if library, err := nvml.FindLibrary(node.Root.Dir(), node.DriverRoot); err == nil {
		h.library = h.onHost(library)
	}
	return h
}

// onHost is a path of this process as the host calls it.
func (h hardware) onHost(here string) string {
	if p, ok := h.node.Root.Host(here); ok {
		return p
	}
	return here
}

func (h hardware) libraryVersion() string { return suffix(h.library) }

// outOfSight says that the driver's kernel module cannot be seen from here
// although it is there: a container that was given a simulated GPU has the host's
// /proc, and not the stand-in for it in the simulated driver's root.
func (h hardware) outOfSight(d check.Driver) bool { return d.Info.Simulated && h.module == "" }

// ownGPUs returns the NVIDIA GPUs of a sysfs folder that are not set aside for
// virtual machines.
func ownGPUs(root *host.Root, dir string) []gpu.PCIAddress {
	var found []gpu.PCIAddress
	for _, device := range root.GPUs(dir) {
		if device.Driver != "vfio-pci" {
			found = append(found, device.Address)
		}
	}
	return found
}

// moduleVersion reads /proc/driver/nvidia/version, whose first line is
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep …" or
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release …".
func moduleVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "NVRM version:") {
		return ""
	}
	for word := range strings.FieldsSeq(line) {
		if versionPattern.MatchString(word) {
			return word
		}
	}
	return ""
}

// characterMajors reads the first part of /proc/devices.
func characterMajors(text string) map[string]int {
	majors := map[string]int{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Block devices") {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if major, err := strconv.Atoi(fields[0]); err == nil && major >= 0 {
			majors[fields[1]] = major
		}
	}
	return majors
}

func nvidiaMajors(majors map[string]int) []string {
	var names []string
	for name := range majors {
		if strings.HasPrefix(name, "nvidia") {
			names = append(names, name)
		}
	}
	return names
}

// frontend is the major of /dev/nvidia0 and /dev/nvidiactl: the driver's name in
// /proc/devices changed with R550, the number (195, by Linux's
// devices.txt) never did.
func (h hardware) frontend() int {
	for _, name := range []string{"nvidia", "nvidia-frontend"} {
		if major, ok := h.majors[name]; ok {
			return major
		}
	}
	return 195
}

// nodes checks the device nodes that every CUDA program opens.
func nodes(h hardware, d check.Driver, _ check.Reading) *check.Outcome {
	const controlMinor = 255
	type node struct {
		name         string
		major, minor int // minor -1: any
	}
	want := []node{{"nvidiactl", h.frontend(), controlMinor}}
	if uvm, ok := h.majors["nvidia-uvm"]; ok {
		want = append(want, node{"nvidia-uvm", uvm, 0})
	} else if !h.outOfSight(d) {
		return failed(ReasonModuleMissing, "the kernel module nvidia-uvm, which CUDA needs, is not loaded: /proc/devices does not list it",
			"load it with modprobe nvidia-uvm")
	}
	for _, g := range d.GPUs {
		if g.Fault == (gpu.Fault{}) {
			want = append(want, node{fmt.Sprintf("nvidia%d", g.Minor), h.frontend(), g.Minor})
		}
	}
	for _, n := range want {
		p := path.Join(d.DevRoot, "dev", n.name)
		info, err := h.node.Root.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return failed(ReasonDeviceNode, "the device node "+p+" is not there",
				"gpu-toolkit makes it; by hand: nvidia-modprobe -u -c=0")
		}
		if err != nil {
			return failed(ReasonDeviceNode, err.Error(), "make the path readable for this process")
		}
		major, minor, is := host.Device(info)
		if !is && d.Info.Simulated && info.Mode().IsRegular() {
			continue // a simulated driver root where mknod is not permitted
		}
		if !is || int(major) != n.major || int(minor) != n.minor {
			have := "no character device"
			if is {
				have = fmt.Sprintf("character device %d:%d", major, minor)
			}
			return failed(ReasonDeviceNodeWrong,
				fmt.Sprintf("%s is %s, the driver expects %d:%d", p, have, n.major, n.minor),
				fmt.Sprintf("remove it and make it anew: rm %s && mknod -m 666 %s c %d %d", p, p, n.major, n.minor))
		}
	}
	return nil
}
