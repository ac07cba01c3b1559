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

// The capabilities. noCapability marks files that a container always gets.
const (
	compute  Capabilities = 1 << iota // CUDA and OpenCL
	compat32                          // 32-bit libraries, in addition to the library's own capability
	graphics                          // OpenGL, EGL, Vulkan, OptiX
	utility                           // nvidia-smi and NVML
	video                             // encoding and decoding
	display                           // X11
	ngx                               // DLSS and the like

	noCapability    Capabilities = 0
	allCapabilities              = compute | compat32 | graphics | utility | video | display | ngx
	// defaultCapabilities is the set of a container that names no capability.
	defaultCapabilities = utility | compute
)

var capabilityNames = []struct {
	name string
	set  Capabilities
}{
	{"compute", compute}, {"compat32", compat32}, {"graphics", graphics}, {"utility", utility},
	{"video", video}, {"display", display}, {"ngx", ngx}, {"all", allCapabilities},
}

// parseCapabilities parses a value of NVIDIA_DRIVER_CAPABILITIES: comma-separated capabilities in any
// order. A value that names none is defaultCapabilities.
func parseCapabilities(value string) (Capabilities, error) {
	set := noCapability
	for word := range strings.SplitSeq(value, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		one, ok := findCapability(word)
		if !ok {
			return noCapability, fmt.Errorf("%q is no driver capability; there are compute, compat32, graphics, utility, video, display, ngx and all", record.Clean(word, 100))
		}
		set |= one
	}
	if set == noCapability {
		return defaultCapabilities, nil
	}
	return set, nil
}

func findCapability(word string) (Capabilities, bool) {
	for _, n := range capabilityNames {
		if n.name == word {
			return n.set, true
		}
	}
	return noCapability, false
}

// String returns the set in the format of parseCapabilities.
func (s Capabilities) String() string {
	var words []string
	for _, n := range capabilityNames {
		if n.set != allCapabilities && s&n.set != 0 {
			words = append(words, n.name)
		}
	}
	return strings.Join(words, ",")
}

// covers reports whether a container with the capabilities gets the driver's file or device
// node at a path.
func (s Capabilities) covers(p string) bool {
	of := capabilitiesOf(p)
	if of == noCapability {
		return true
	}
	if of&compat32 != 0 && s&compat32 == 0 {
		return false
	}
	return s&of&^compat32 != 0
}

// capabilitiesOf returns the capabilities of a driver's file or device node. Any one of them is enough,
// but compat32, if included, is required. noCapability means that every container gets it. An
// unknown library counts as compute, which is part of the default: a new driver's libcuda may
// need it.
func capabilitiesOf(p string) Capabilities {
	base := path.Base(p)
	switch {
	case strings.HasPrefix(p, "/dev/"):
		return ofNode(p, base)
	case strings.HasPrefix(base, "lib") && strings.Contains(base, ".so"):
		set := ofLibrary(base)
		if is32(p) {
			set |= compat32
		}
		return set
	case strings.Contains(base, ".so"): // modules of the X server and of GBM
		return graphics | display
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
		return graphics | display
	}
	return noCapability
}

// libraries lists the capabilities of libraries, from github.com/NVIDIA/libnvidia-container,
// src/nvc_info.c, and, for newer drivers, the list of installed components in the driver's
// README.
var libraries = []struct {
	set      Capabilities
	prefixes []string
}{
	{utility, []string{"libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvsdm"}},
	{video, []string{"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia", "libnvidia-vksc"}},
	{ngx, []string{"libnvidia-ngx"}},
	// Compiler and allocator serve CUDA and graphics alike.
	{compute | graphics, []string{"libnvidia-gpucomp", "libnvidia-allocator"}},
	{graphics | display, []string{
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
	return compute
}

// ofFile returns the capabilities of other files: programs, sockets, data. Every container
// gets the firmware.
func ofFile(p, base string) Capabilities {
	switch base {
	case "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager":
		return utility
	case "nvidia-cuda-mps-control", "nvidia-cuda-mps-server":
		return compute
	case "nvidia.icd": // of OpenCL
		return compute
	case "nvoptix.bin":
		return graphics
	case "nvidia-xconfig":
		return display
	}
	for _, dir := range []string{"/vulkan/", "/vulkansc/", "/glvnd/", "/egl/", "/X11/", "/drirc.d/"} {
		if strings.Contains(p, dir) {
			return graphics | display
		}
	}
	return noCapability
}
