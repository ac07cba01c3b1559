package fleet

import (
	"strconv"
	"strings"
)

// release holds a version's first two numbers. The zero value is older than any.
type release struct{ major, minor int }

func (r release) atLeast(major, minor int) bool {
	return r.major > major || r.major == major && r.minor >= minor
}

// parseRelease parses the beginning of "v1.29.3+rke2r1", "1.27.13-eks-036c24b", "2.0.0-rc.1".
// It returns the zero release if there are no two numbers. A pre-release counts as the release
// that it precedes.
func parseRelease(version string) release {
	first, rest, ok := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if !ok {
		return release{}
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return release{}
	}
	minor, err := strconv.ParseUint(rest[:end], 10, 16)
	if err != nil {
		return release{}
	}
	return release{int(major), int(minor)}
}

// injectionOf chooses by what a version enables or allows to enable. A kubelet before 1.29
// silently drops CDI names from Allocate (feature gate DevicePluginCDIDevices). containerd has
// them from 1.7 (off), and with NRI from 2.0 (on). CRI-O has CDI by annotation from 1.24, by
// name and with NRI from 1.28. An unknown version gets what works with everything.
func injectionOf(kubelet, runtime string) Injection {
	names := parseRelease(kubelet).atLeast(1, 29)
	engine, version, _ := strings.Cut(runtime, "://")
	r := parseRelease(version)
	switch {
	case engine == "containerd" && r.atLeast(2, 0) && names, engine == "cri-o" && r.atLeast(1, 28) && names:
		return NRI
	case engine == "containerd" && r.atLeast(1, 7) && names:
		return CDI
	case engine == "containerd" && r.atLeast(1, 7), engine == "cri-o" && r.atLeast(1, 24):
		return Annotations
	}
	return Handler
}
