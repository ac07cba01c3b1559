// Package nvidia holds facts about NVIDIA's GPU Operator that its users' policies rely on: the
// images of each release, and how to recognise NVIDIA's images and versions.
package nvidia

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Images holds images by the field of a ClusterPolicy that configures them: "dcgmExporter".
type Images map[string]v1.ImageSpec

// Release is a release of NVIDIA's GPU Operator.
type Release struct {
	Name string `json:"release"` // "v25.3.0"
	Date string `json:"date"`    // of its publication, "2025-04-03"
	// Images are the defaults of its chart.
	Images Images `json:"images"`
}

//go:embed releases.yaml
var releasesYAML []byte

var releases = sync.OnceValue(func() []Release {
	var all []Release
	if err := yaml.UnmarshalStrict(releasesYAML, &all); err != nil {
		panic(fmt.Errorf("releases.yaml: %w", err))
	}
	return all
})

// Releases returns all known releases, from the oldest to the newest.
func Releases() []Release { return slices.Clone(releases()) }

// Find returns a release by its name, "v25.3.0", or by its beginning, "25.3": then the newest
// of these. An empty name means the newest of all.
func Find(name string) (Release, error) {
	all := releases()
	want := strings.TrimPrefix(name, "v")
	for _, r := range slices.Backward(all) {
		have := strings.TrimPrefix(r.Name, "v")
		if have == want || want == "" || strings.HasPrefix(have, want+".") {
			return r, nil
		}
	}
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	return Release{}, fmt.Errorf("%q is no known release of NVIDIA's GPU Operator: use one of %s", name, strings.Join(names, ", "))
}

// host is the registry of NVIDIA's images.
const host = "nvcr.io"

// Vendor is the path that the repositories of NVIDIA's images begin with.
const Vendor = host + "/nvidia"

// At returns the release's images in a mirror: registry replaces nvcr.io. "" means nvcr.io.
func (r Release) At(registry string) Images {
	images := Images{}
	for field, image := range r.Images {
		if rest, ok := strings.CutPrefix(image.Repository, host); ok && registry != "" {
			image.Repository = strings.TrimSuffix(registry, "/") + rest
		}
		images[field] = image
	}
	return images
}

// counterparts are parts of the names of NVIDIA's images that have a counterpart in this
// product, with another entry point. Mirrors often add a prefix or a suffix.
var counterparts = []string{"container-toolkit", "k8s-device-plugin", "gpu-feature-discovery", "gpu-operator"}

// version matches versions as NVIDIA writes them: v1.17.5-ubuntu20.04, 25.3.0, 570.124.06.
var version = regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?([-+._][A-Za-z0-9._+-]*)?$`)

// IsCounterpart reports whether an image specification of the toolkit, the device plugin or the
// validator means NVIDIA's image rather than this product's, which would not start from it. own
// is the version of this product's images. A version alone means NVIDIA's, unless it belongs to
// the same minor release as own.
func IsCounterpart(image v1.ImageSpec, own string) bool {
	if strings.HasPrefix(image.Repository+"/", Vendor+"/") {
		return true
	}
	name := image.Image[strings.LastIndex(image.Image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	if name == "" {
		return version.MatchString(image.Version) && minor(image.Version) != minor(own)
	}
	return strings.HasPrefix(image.Image, Vendor+"/") || slices.ContainsFunc(counterparts, func(part string) bool { return strings.Contains(name, part) })
}

// minor returns the beginning of a version up to its minor release: "0.1" of "v0.1.1".
func minor(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
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

// Branch returns the branch of a driver's version, with which the tags of precompiled images
// begin: "570" of "570.124.06".
func Branch(driverVersion string) string {
	branch, _, _ := strings.Cut(driverVersion, ".")
	return branch
}
