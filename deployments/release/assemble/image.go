package assemble

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// annotationPrefix is the prefix of the labels that manifests and indexes have as annotations.
const annotationPrefix = "org.opencontainers.image."

// part is the image of one architecture.
type part struct {
	arch        string
	descriptor  v1.Descriptor
	annotations map[string]string
	sbom        []byte
}

// addImages adds the container images, an index each.
func (b *builder) addImages(context.Context) error {
	names, err := b.imageNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		var parts []part
		for _, arch := range architectures {
			p, err := b.readImage(name, arch)
			if err != nil {
				return fmt.Errorf("image %s of %s: %w", name, arch, err)
			}
			parts = append(parts, p)
		}
		if err := b.addIndex(name, contents.Image, parts); err != nil {
			return err
		}
	}
	return nil
}

// imageNames returns the names of the images that there are archives of.
func (b *builder) imageNames() (names []string, err error) {
	for _, arch := range architectures {
		files, err := filepath.Glob(filepath.Join(b.Images, arch, "*.tar"))
		if err != nil {
			return nil, err
		}
		var found []string
		for _, f := range files {
			found = append(found, strings.TrimSuffix(filepath.Base(f), ".tar"))
		}
		slices.Sort(found)
		if names == nil {
			names = found
		}
		if !slices.Equal(names, found) {
			return nil, fmt.Errorf("%s has other images (%s) than %s (%s): run make release", arch, strings.Join(found, ", "), architectures[0], strings.Join(names, ", "))
		}
	}
	for _, name := range pinned {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%s has no archive of the image %s: run make release", filepath.Join(b.Images, architectures[0]), name)
		}
	}
	return names, nil
}

// readImage reads an archive, and puts its image into the layout, with compressed layers.
func (b *builder) readImage(name, arch string) (part, error) {
	file := filepath.Join(b.Images, arch, name)
	image, err := tarball.ImageFromPath(file+".tar", nil)
	if err != nil {
		return part{}, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return part{}, err
	}
	labels := config.Config.Labels
	for _, want := range []struct{ what, have, want string }{
		{"architecture", config.Architecture, arch},
		{"version", labels[annotationPrefix+"version"], b.Version},
		{"revision", labels[annotationPrefix+"revision"], b.revision()},
	} {
		if want.have != want.want {
			return part{}, fmt.Errorf("%s.tar: its %s is %q, not %q: run make release", file, want.what, want.have, want.want)
		}
	}
	layers, err := image.Layers()
	if err != nil {
		return part{}, err
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		return part{}, fmt.Errorf("%s.tar has %d layers, and %d in its configuration", file, len(layers), len(config.RootFS.DiffIDs))
	}
	var descriptors []v1.Descriptor
	for i, layer := range layers {
		d, err := b.layers.add(b.oci, config.RootFS.DiffIDs[i], func() (io.ReadCloser, error) { return layer.Uncompressed() })
		if err != nil {
			return part{}, err
		}
		descriptors = append(descriptors, d)
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return part{}, err
	}
	sbom, err := os.ReadFile(file + ".spdx.json")
	if err != nil {
		return part{}, err
	}
	return b.putImage(arch, raw, descriptors, labels, sbom)
}

// putImage puts the manifest of an image into the layout. Its annotations are those labels of the
// configuration that the specification of OCI knows.
func (b *builder) putImage(arch string, config []byte, layers []v1.Descriptor, labels map[string]string, sbom []byte) (part, error) {
	annotations := map[string]string{annotationPrefix + "created": b.source.time.Format(time.RFC3339)}
	for name, value := range labels {
		if strings.HasPrefix(name, annotationPrefix) {
			annotations[name] = value
		}
	}
	d, err := b.oci.put(config, types.OCIConfigJSON)
	if err != nil {
		return part{}, err
	}
	d, err = b.oci.putJSON(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: d, Layers: layers, Annotations: annotations,
	}, types.OCIManifestSchema1)
	d.Platform = &v1.Platform{OS: "linux", Architecture: arch}
	return part{arch, d, annotations, sbom}, err
}

// addIndex adds an index of images, and their SBOMs.
func (b *builder) addIndex(name string, kind contents.Kind, parts []part) error {
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Annotations: maps.Clone(parts[0].annotations)}
	artifact := contents.Artifact{Name: name, Kind: kind, Tag: b.Version, MediaType: string(types.OCIImageIndex)}
	for _, p := range parts {
		index.Manifests = append(index.Manifests, p.descriptor)
		sbom := name + "-" + p.arch + ".spdx.json"
		artifact.Platforms = append(artifact.Platforms, contents.Platform{
			Platform: "linux/" + p.arch, Digest: p.descriptor.Digest.String(), Size: p.descriptor.Size, SBOM: sbom,
		})
		if err := os.WriteFile(filepath.Join(b.stage, contents.SBOMs, sbom), p.sbom, 0o644); err != nil {
			return err
		}
	}
	d, err := b.oci.putJSON(index, types.OCIImageIndex)
	if err != nil {
		return err
	}
	b.addArtifact(artifact, d)
	return nil
}

// addArtifact adds an artifact to the layout's index and to the contents.
func (b *builder) addArtifact(a contents.Artifact, d v1.Descriptor) {
	a.Digest, a.Size = d.Digest.String(), d.Size
	b.oci.add(d, b.Registry, a.Name, a.Tag)
	b.out.Artifacts = append(b.out.Artifacts, a)
	b.Logf(a.Name, "%s", b.out.Reference(a))
}
