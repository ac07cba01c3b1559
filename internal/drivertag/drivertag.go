// Package drivertag makes the tags of driver images by kernel: the operator names these images,
// gpu-driver pushes and pulls them.
package drivertag

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

var pattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// Tag returns the tag of a driver's image for a kernel and an operating system,
// "535.309.01-6.1.0-50-amd64-debian12". The kernel is written as by Kernel.
func Tag(version, kernel, osTag string) (string, error) {
	tag := version + "-" + Kernel(kernel) + "-" + osTag
	switch {
	case version == "" || kernel == "" || osTag == "":
		return "", fmt.Errorf("a tag needs the driver's version (%q), the kernel (%q) and the tag of the operating system (%q)", version, kernel, osTag)
	case !pattern.MatchString(tag):
		return "", fmt.Errorf("%q can be no tag of an image", record.Clean(tag, 200))
	}
	return tag, nil
}

// Kernel returns a kernel's release as written in tags: "6.12.95+deb12-amd64" is
// "6.12.95_deb12-amd64", since a tag has no "+".
func Kernel(release string) string { return strings.ReplaceAll(release, "+", "_") }
