package request

// This file parses NVIDIA_DRIVER_CAPABILITIES and maps the capabilities to files
// and device nodes of a driver.

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Capabilities is a set of capabilities.
type Capabilities uint8

// The capabilities. None marks files that a container always gets.
const (
	Compute  Capabilities = 1 << iota // CUDA and OpenCL
	Compat32                          // 32-bit libraries, in addition to the library's own capability
	Graphics                          // OpenGL, EGL, Vulkan, OptiX
	Utility                           // nvidia-smi and NVML
	Video                             // encoding and decoding
	Display                           // X11
	NGX                               // DLSS and the like

	NoCapability    Capabilities = 0
	AllCapabilities              = Compute | Compat32 | Graphics | Utility | Video | Display | NGX
	// DefaultCapabilities is the set of a container that names no capability.
	DefaultCapabilities = Utility | Compute
)

var capabilityNames = []struct {
	name string
	set  Capabilities
}{
	{"compute", Compute}, {"compat32", Compat32}, {"graphics", Graphics}, {"utility", Utility},
	{"video", Video}, {"display", Display}, {"ngx", NGX}, {"all", AllCapabilities},
}

// ParseCapabilities parses a value of NVIDIA_DRIVER_CAPABILITIES: comma-separated capabilities in any
// order. A value that names none is Default.
func ParseCapabilities(value string) (Capabilities, error) {
	set := NoCapability
	for word := range strings.SplitSeq(value, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		one, ok := findCapability(word)
		if !ok {
			return NoCapability, fmt.Errorf("%q is no driver capability; there are compute, compat32, graphics, utility, video, display, ngx and all", record.Clean(word, 100))
		}
		set |= one
	}
	if set == NoCapability {
		return DefaultCapabilities, nil
	}
	return set, nil
}

func findCapability(word string) (Capabilities, bool) {
	for _, n := range capabilityNames {
		if n.name == word {
			return n.set, true
		}
	}
	return NoCapability, false
}

// String returns the set in the format of Parse.
func (s Capabilities) String() string {
	var words []string
	for _, n := range capabilityNames {
		if n.set != AllCapabilities && s&n.set != 0 {
			words = append(words, n.name)
		}
	}
	return strings.Join(words, ",")
}

// Covers reports whether a container with the capabilities gets the driver's file or device
// node at a path.
func (s Capabilities) Covers(p string) bool {
	of := CapabilitiesOf(p)
	if of == NoCapability {
		return true
	}
	if of&Compat32 != 0 && s&Compat32 == 0 {
		return false
	}
	return s&of&^Compat32 != 0
}

// CapabilitiesOf returns the capabilities of a driver's file or device node. Any one of them is enough,
// but Compat32, if included, is required. None means that every container gets it. An
// unknown library counts as Compute, which is part of Default: a new driver's libcuda may
// need it.
func CapabilitiesOf(p string) Capabilities {
	base := path.Base(p)
	switch {
	case strings.HasPrefix(p, "/dev/"):
		return ofNode(p, base)
	case strings.HasPrefix(base, "lib") && strings.Contains(base, ".so"):
		set := ofLibrary(base)
		if is32(p) {
			set |= Compat32
		}
		return set
	case strings.Contains(base, ".so"): // modules of the X server and of GBM
		return Graphics | Display
	}
	return ofFile(p, base)
}

func is32(p string) bool {
	for _, dir := range []string{"/i386-linux-gnu/", "/lib32/", "/arm-linux-gnueabihf/"} {
		if strings.Contains(p, dir) {
			return true
		}
	}
	return false
}

func ofNode(p, base string) Capabilities {
	if base == "nvidia-modeset" || strings.HasPrefix(p, "/dev/dri/") {
		return Graphics | Display
	}
	return NoCapability
}

// libraries lists the capabilities of libraries, from github.com/NVIDIA/libnvidia-container,
// src/nvc_info.c, and, for newer drivers, the list of installed components in the driver's
// README.
var libraries = []struct {
	set      Capabilities
	prefixes []string
}{
	{Utility, []string{"libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvsdm"}},
	{Video, []string{"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia", "libnvidia-vksc"}},
	{NGX, []string{"libnvidia-ngx"}},
	// Compiler and allocator serve CUDA and graphics alike.
	{Compute | Graphics, []string{"libnvidia-gpucomp", "libnvidia-allocator"}},
	{Graphics | Display, []string{
		"libGL", "libEGL", "libOpenGL", "libnvidia-egl", "libnvidia-gl", "libnvidia-tls", "libnvidia-fbc", "libnvidia-ifr",
		"libnvidia-rtcore", "libnvoptix", "libnvidia-cbl", "libnvidia-vulkan", "libnvidia-present", "libnvidia-wayland", "libnvidia-api", "libnvidia-gtk",
		"libnvidia-wfb", "libvulkan",
	}},
}

func ofLibrary(base string) Capabilities {
	for _, l := range libraries {
		for _, prefix := range l.prefixes {
			if strings.HasPrefix(base, prefix) {
				return l.set
			}
		}
	}
	return Compute
}

// ofFile returns the capabilities of other files: programs, sockets, data. Every container
// gets the firmware.
func ofFile(p, base string) Capabilities {
	switch base {
	case "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager":
		return Utility
	case "nvidia-cuda-mps-control", "nvidia-cuda-mps-server":
		return Compute
	case "nvoptix.bin":
		return Graphics
	}
	for _, dir := range []string{"/vulkan/", "/vulkansc/", "/glvnd/", "/egl/", "/X11/", "/drirc.d/"} {
		if strings.Contains(p, dir) {
			return Graphics | Display
		}
	}
	return NoCapability
}
