package runtime

import (
	"fmt"
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

// Release returns the release of the runtime with the given name, the zero value if its
// version is unknown. It refuses a version that is none, or older than the oldest release.
func (p Place) Release(name string, oldest Release) (Release, error) {
	if p.Version == "" {
		return Release{}, nil
	}
	r, ok := ParseRelease(p.Version)
	switch {
	case !ok:
		return r, &Refusal{File: p.Config, Message: fmt.Sprintf("%s says that it is version %q, which is no version; nothing is changed without knowing it", name, p.Version)}
	case !r.AtLeast(oldest.Major, oldest.Minor):
		return r, &Refusal{File: p.Config, Message: fmt.Sprintf("%s %s is older than %d.%d; upgrade it", name, p.Version, oldest.Major, oldest.Minor)}
	}
	return r, nil
}

// AtLeast reports whether r is the given release or a later one.
func (r Release) AtLeast(major, minor int) bool {
	return r.Major > major || r.Major == major && r.Minor >= minor
}
