package mirror

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Annotations in the archive's index.
const (
	reference   = "io.gpuready.reference" // of what is pushed: "ghcr.io/gpuready/operator:v0.2.0"
	importName  = "io.containerd.image.name"
	refName     = "org.opencontainers.image.ref.name"
	version     = "org.opencontainers.image.version"
	revision    = "org.opencontainers.image.revision"
	created     = "org.opencontainers.image.created"
	layoutFile  = "oci-layout"
	layoutText  = `{"imageLayoutVersion":"1.0.0"}`
	indexFile   = "index.json"
	blobsFolder = "blobs/sha256/"
)

// Fetch copies other projects' images from their registries into a layout, and returns the images with
// their digests. An image that has a digest keeps it.
func Fetch(ctx context.Context, images []Image, to layout.Path, options ...remote.Option) ([]Image, error) {
	options = append([]remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)}, options...)
	images = slices.Clone(images)
	for n := range images {
		i := &images[n]
		if !i.Foreign {
			continue
		}
		ref, err := name.ParseReference(i.Reference())
		if err != nil {
			return nil, err
		}
		found, err := remote.Get(ref, options...)
		if err == nil {
			err = appendTo(to, found)
		}
		if err != nil {
			return nil, fmt.Errorf("image of another project: %w; without it, leave out --foreign", err)
		}
		i.Digest = found.Digest.String()
	}
	return images, nil
}

func appendTo(to layout.Path, found *remote.Descriptor) error {
	if found.MediaType.IsIndex() {
		index, err := found.ImageIndex()
		if err != nil {
			return err
		}
		return to.AppendIndex(index)
	}
	image, err := found.Image()
	if err != nil {
		return err
	}
	return to.AppendImage(image)
}

// Write writes an archive of images, whose blobs are in the layouts. The same images make the same bytes.
// It leaves out images without a digest.
func Write(w io.Writer, r contents.Release, images []Image, layouts ...layout.Path) error {
	a := archive{from: layouts, sizes: map[v1.Hash]int64{}}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Annotations: map[string]string{
		version: r.Version, revision: r.Revision, created: r.Created.UTC().Format(time.RFC3339),
	}}
	for _, i := range images {
		if i.Digest == "" {
			continue
		}
		d, err := a.walk(i.Digest)
		if err != nil {
			return fmt.Errorf("%s: %w", i.Reference(), err)
		}
		index.Manifests = append(index.Manifests, describe(d, i)...)
	}
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	if err := writeFile(out, layoutFile, int64(len(layoutText)), bytes.NewReader([]byte(layoutText))); err != nil {
		return err
	}
	if err := writeFile(out, indexFile, int64(len(text)), bytes.NewReader(text)); err != nil {
		return err
	}
	for _, h := range slices.SortedFunc(maps.Keys(a.sizes), func(x, y v1.Hash) int { return bytes.Compare([]byte(x.Hex), []byte(y.Hex)) }) {
		if err := a.writeBlob(out, h); err != nil {
			return err
		}
	}
	return out.Close()
}

// describe returns the descriptors of an image in the archive's index. A runtime imports those with a name: by
// its tag, and by its digest, for pods that name it so. It would try to unpack a chart, which has none.
func describe(d v1.Descriptor, i Image) []v1.Descriptor {
	tagged := i.Repository + ":" + i.Tag
	d.Annotations = map[string]string{reference: tagged}
	if i.Kind != contents.Image {
		return []v1.Descriptor{d}
	}
	d.Annotations[importName], d.Annotations[refName] = tagged, tagged
	byDigest := d
	byDigest.Annotations = map[string]string{importName: i.Reference()}
	return []v1.Descriptor{d, byDigest}
}

// archive collects the blobs of images.
type archive struct {
	from  []layout.Path
	sizes map[v1.Hash]int64
}

// maxManifest bounds a manifest, in bytes.
const maxManifest = 4 << 20

// walk adds a manifest or index with all that it refers to, and returns its descriptor.
func (a *archive) walk(digest string) (v1.Descriptor, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return v1.Descriptor{}, err
	}
	f, size, err := a.open(h)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	if size > maxManifest {
		return v1.Descriptor{}, fmt.Errorf("manifest %s: %d bytes; at most %d", h, size, maxManifest)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return v1.Descriptor{}, err
	}
	var m struct {
		MediaType types.MediaType `json:"mediaType"`
		Manifests []v1.Descriptor `json:"manifests"`
		Config    *v1.Descriptor  `json:"config"`
		Layers    []v1.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return v1.Descriptor{}, fmt.Errorf("manifest %s: %w", h, err)
	}
	a.sizes[h] = size
	for _, child := range m.Manifests {
		if _, err := a.walk(child.Digest.String()); err != nil {
			return v1.Descriptor{}, err
		}
	}
	if m.Config != nil {
		m.Layers = append(m.Layers, *m.Config)
	}
	for _, blob := range m.Layers {
		a.sizes[blob.Digest] = blob.Size
	}
	return v1.Descriptor{MediaType: m.MediaType, Digest: h, Size: size}, nil
}

// open opens a blob of the first layout that has it.
func (a *archive) open(h v1.Hash) (*os.File, int64, error) {
	var errs []error
	for _, l := range a.from {
		f, err := os.Open(filepath.Join(string(l), "blobs", h.Algorithm, h.Hex))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		info, err := f.Stat()
		if err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		return f, info.Size(), nil
	}
	return nil, 0, errors.Join(errs...)
}

// writeBlob writes a blob, whose size and digest it checks.
func (a *archive) writeBlob(out *tar.Writer, h v1.Hash) error {
	f, size, err := a.open(h)
	if err != nil {
		return err
	}
	defer f.Close()
	if size != a.sizes[h] {
		return fmt.Errorf("blob %s: %d bytes, not %d: the release is damaged; build it again", h, size, a.sizes[h])
	}
	sum, err := v1.Hasher(h.Algorithm)
	if err != nil {
		return err
	}
	if err := writeFile(out, blobsFolder+h.Hex, size, io.TeeReader(f, sum)); err != nil {
		return err
	}
	if found := fmt.Sprintf("%x", sum.Sum(nil)); found != h.Hex {
		return fmt.Errorf("blob %s: its digest is sha256:%s: the release is damaged; build it again", h, found)
	}
	return nil
}

func writeFile(out *tar.Writer, name string, size int64, content io.Reader) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := io.Copy(out, content)
	return err
}
