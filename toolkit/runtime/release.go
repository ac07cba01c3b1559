package runtime

import (
	"regexp"
	"strconv"
)

// Release is the part of a runtime's version that its rules depend on. The zero
// value stands for an unknown version.
type Release struct{ Major, Minor int }

var releasePattern = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(\D|$)`)

// ParseRelease parses a version as runtimes report it: "1.7.24", "v2.0.0-rc.1". It
// returns false for anything else.
func ParseRelease(version string) (Release, bool) {
	m := releasePattern.FindStringSubmatch(version)
	if m == nil {
		return Release{}, false
	}
	var r Release
	r.Major, _ = strconv.Atoi(m[1]) // four digits at most
	r.Minor, _ = strconv.Atoi(m[2])
	return r, true
}

// AtLeast reports whether r is the given release or a later one.
func (r Release) AtLeast(major, minor int) bool {
	return r.Major > major || r.Major == major && r.Minor >= minor
}
