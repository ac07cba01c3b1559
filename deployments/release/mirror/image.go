// Package mirror prepares a release for clusters without the internet: lists of its images for programs
// that mirror registries, and one archive with everything that a cluster pulls.
//
// The archive is an OCI image layout. Its index names each image twice, by tag and by digest, as
// containerd's import and skopeo expect, so that it can be loaded into a registry and onto a node. It
// also has release.json, by which a registry is filled (Load).
package mirror

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"sigs.k8s.io/yaml"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Image is an artifact in a registry: an image, or a package such as the Helm chart that refers to images.
type Image struct {
	Repository string // "ghcr.io/gpuready/operator"
	Tag        string
	Digest     string // "": another project's image, whose registry has not been asked
	Kind       contents.Kind
	Foreign    bool // another project's
}

// Reference returns the name by digest, or by tag where the digest is not known.
func (i Image) Reference() string {
	if i.Digest == "" {
		return i.Repository + ":" + i.Tag
	}
	return i.Repository + "@" + i.Digest
}

// List returns the artifacts of a release, and then the one image of another project that its chart installs
// by default: Node Feature Discovery.
func List(r contents.Release, l layout.Path) ([]Image, error) {
	packed, err := Chart(r, l)
	if err != nil {
		return nil, err
	}
	foreign, err := nfdImage(packed)
	if err != nil {
		return nil, fmt.Errorf("the chart: %w", err)
	}
	var all []Image
	for _, a := range r.Artifacts {
		all = append(all, Image{Repository: r.Registry + "/" + a.Name, Tag: a.Tag, Digest: a.Digest, Kind: a.Kind})
	}
	return append(all, foreign), nil
}

// Chart returns the packed chart of a release.
func Chart(r contents.Release, l layout.Path) ([]byte, error) {
	for _, a := range r.Artifacts {
		if a.Kind != contents.Chart {
			continue
		}
		packed, err := readChart(l, a)
		if err != nil {
			return nil, fmt.Errorf("chart %s: %w", a.Name, err)
		}
		return packed, nil
	}
	return nil, errors.New("the release has no chart, so its list of images would not be complete")
}

// maxChart bounds a chart, packed and each of its files, in bytes.
const maxChart = 16 << 20

// readChart returns the packed chart of an artifact in a layout.
func readChart(l layout.Path, a contents.Artifact) ([]byte, error) {
	digest, err := v1.NewHash(a.Digest)
	if err != nil {
		return nil, err
	}
	image, err := l.Image(digest)
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	if len(layers) != 1 {
		return nil, fmt.Errorf("it has %d layers; a chart has one", len(layers))
	}
	content, err := layers[0].Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return readBounded(content)
}

func readBounded(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxChart+1))
	if err == nil && len(data) > maxChart {
		err = fmt.Errorf("over %d bytes", maxChart)
	}
	return data, err
}

// nfdFolder is the folder of Node Feature Discovery's chart in ours.
const nfdFolder = "gpuready/charts/node-feature-discovery/"

// nfdImage returns the image that the chart of Node Feature Discovery in a packed chart installs.
func nfdImage(packed []byte) (Image, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return Image{}, err
	}
	var definition struct {
		AppVersion string `json:"appVersion"`
	}
	var values struct {
		Image struct{ Repository, Tag string } `json:"image"`
	}
	for in := tar.NewReader(unzipped); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Image{}, err
		}
		into := map[string]any{nfdFolder + "Chart.yaml": &definition, nfdFolder + "values.yaml": &values}[h.Name]
		if into == nil {
			continue
		}
		text, err := readBounded(in)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			return Image{}, fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	i := Image{Repository: values.Image.Repository, Tag: values.Image.Tag, Kind: contents.Image, Foreign: true}
	if i.Tag == "" {
		i.Tag = definition.AppVersion
	}
	if !strings.Contains(i.Repository, "/") || i.Tag == "" {
		return Image{}, fmt.Errorf("%s does not name an image with a tag", nfdFolder)
	}
	return i, nil
}
