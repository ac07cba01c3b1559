package nvidia

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// counterparts are parts of the names of NVIDIA's images that have a counterpart in this
// product, with another entry point. Mirrors often add a prefix or a suffix.
var counterparts = []string{"container-toolkit", "k8s-device-plugin", "gpu-feature-discovery", "gpu-operator"}

// version matches versions as NVIDIA writes them: v1.17.5-ubuntu20.04, 25.3.0, 570.124.06.
var version = regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?([-+._][A-Za-z0-9._+-]*)?$`)

// IsCounterpart reports whether an image specification of the toolkit, the device plugin or the
// validator means NVIDIA's image rather than this product's, which would not start from it. own
// is the version of this product's images. A version alone means NVIDIA's, unless it belongs to
// the same minor release as own or to the one before, with which own works.
func IsCounterpart(image Image, own string) bool {
	if strings.HasPrefix(image.Repository+"/", Vendor+"/") {
		return true
	}
	name := image.Image[strings.LastIndex(image.Image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	if name == "" {
		return version.MatchString(image.Version) && !isOwn(image.Version, own)
	}
	return strings.HasPrefix(image.Image, Vendor+"/") || slices.ContainsFunc(counterparts, func(part string) bool { return strings.Contains(name, part) })
}

// isOwn reports whether a version belongs to the same minor release as own, or to the one before.
func isOwn(version, own string) bool {
	major, minor, ok := release(version)
	ownMajor, ownMinor, ownOK := release(own)
	return ok && ownOK && major == ownMajor && (minor == ownMinor || minor == ownMinor-1)
}

// release returns major and minor of a version: 0 and 1 of "v0.1.1".
func release(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	return major, minor, errMajor == nil && errMinor == nil
}

// driverSystems are the prefixes of the OS tags for which NVIDIA publishes driver images.
var driverSystems = []string{"ubuntu", "rhel", "rhcos", "sles", "rocky", "ol"}

// majorsFrom is the first driver whose images for the systems below are tagged with the major
// release only: that of release 26.7.
var majorsFrom = [2]int{595, 91}

var majorSystems = []string{"rhel", "rocky", "ol"}

// DriverSystem returns the end of the tags of NVIDIA's images of a driver for an operating
// system, whose own tag is its ID and version: "rhel9.4". It is "rhel9" for drivers from
// 595.91 on. It returns false if NVIDIA publishes no such images.
func DriverSystem(osTag, driverVersion string) (string, bool) {
	version := strings.TrimLeft(osTag, "abcdefghijklmnopqrstuvwxyz-_")
	system := strings.TrimSuffix(osTag, version)
	if version == "" || !slices.Contains(driverSystems, system) {
		return osTag, false
	}
	majors := slices.Compare(leadingNumbers(driverVersion), majorsFrom[:]) >= 0
	if system == "ol" && !majors {
		return osTag, false // published only since
	}
	if majors && slices.Contains(majorSystems, system) {
		version, _, _ = strings.Cut(version, ".")
	}
	return system + version, true
}

// leadingNumbers returns the first two numbers of a version. Those of a branch alone are its
// newest: "595" is like 595.999.
func leadingNumbers(version string) []int {
	first, rest, more := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	numbers := []int{0, 999}
	numbers[0], _ = strconv.Atoi(first)
	if more {
		numbers[1], _ = strconv.Atoi(second)
	}
	return numbers
}

// DriverBranch returns the branch of a driver's version, with which the tags of precompiled images
// begin: "570" of "570.124.06".
func DriverBranch(driverVersion string) string {
	branch, _, _ := strings.Cut(driverVersion, ".")
	return branch
}

// tagPattern matches the tags of images.
var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// DriverTag returns the tag of a driver's image for a kernel and an operating system,
// "535.309.01-6.1.0-50-amd64-debian12". The kernel is written as by TagKernel.
func DriverTag(version, kernel, osTag string) (string, error) {
	part := TagKernel(kernel)
	tag := version + "-" + part + "-" + osTag
	switch {
	case version == "" || part == "" || osTag == "":
		return "", fmt.Errorf("a tag needs the driver's version (%q), the kernel (%q) and the tag of the operating system (%q)", version, kernel, osTag)
	case !tagPattern.MatchString(tag):
		return "", fmt.Errorf("%q can be no tag of an image", record.Clean(tag, 200))
	}
	return tag, nil
}

// TagKernel returns a kernel's release as written in tags, which is as Node Feature Discovery writes it in
// its label: "6.12.95+deb12-amd64" is "6.12.95_deb12-amd64", since neither has a "+", and "6.8.0+" of a
// kernel with local changes is "6.8.0". Capitals stay.
func TagKernel(release string) string {
	return strings.Trim(strings.ReplaceAll(release, "+", "_"), "-_.")
}
