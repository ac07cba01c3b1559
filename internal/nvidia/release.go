// Package nvidia holds facts about NVIDIA's stack that its users' policies and manifests rely on: the
// images of each release of its GPU Operator, how NVIDIA's images are recognised and those of drivers
// are tagged, and the settings of its programs that ours accept and do not follow.
package nvidia

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

// Image is an image, as a ClusterPolicy names it.
type Image struct {
	Repository string `json:"repository"` // registry and path, without the image's own name: "nvcr.io/nvidia"
	Image      string `json:"image"`      // "driver"
	Version    string `json:"version"`    // a tag
}

// Images holds images by the field of a ClusterPolicy that configures them: "dcgmExporter".
type Images map[string]Image

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

// FindRelease returns a release by its name, "v25.3.0", or by its beginning, "25.3": then the newest
// of these. An empty name means the newest of all.
func FindRelease(name string) (Release, error) {
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
