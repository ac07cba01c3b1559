package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// maxBlob bounds a blob, in bytes, so that a registry does not fill the disk.
const maxBlob = 4 << 30

// store holds what was pulled, as an OCI layout in an empty folder.
type store struct {
	registry attest.Registry
	layout   layout.Path

	mu    sync.Mutex // guards bytes, and the layout's index
	bytes int64
}

func newStore(dir string, registry attest.Registry) (*store, error) {
	path, err := layout.Write(filepath.Join(dir, contents.Layout), empty.Index)
	return &store{registry: registry, layout: path}, err
}

// contentError says that a registry has something else than what was signed.
type contentError struct{ expected, found string }

func (e *contentError) Error() string { return "expected " + e.expected + "; found " + e.found }

// amount counts what was pulled.
type amount struct {
	count int
	bytes int64
}

func (n *amount) add(size int64) { n.count, n.bytes = n.count+1, n.bytes+size }

func (s *store) count(n amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n.bytes
}

func (s *store) pulled() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// pull pulls an artifact with all that it refers to. The error is a *contentError if that is not
// what release.json lists.
func (s *store) pull(ctx context.Context, a contents.Artifact) (n amount, err error) {
	defer func() { s.count(n) }()
	ref, err := s.registry.Digest(a.Name, a.Digest)
	if err != nil {
		return n, err
	}
	data, err := s.manifest(ctx, ref, &n)
	if err != nil {
		return n, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return n, &contentError{"a manifest or an index at " + ref.String(), err.Error()}
	}
	if !index.MediaType.IsIndex() {
		return n, errors.Join(checkPlatforms(a, nil), s.image(ctx, ref.Context(), data, &n))
	}
	if err := checkPlatforms(a, index.Manifests); err != nil {
		return n, err
	}
	for _, d := range index.Manifests {
		data, err := s.manifest(ctx, ref.Context().Digest(d.Digest.String()), &n)
		if err != nil {
			return n, err
		}
		if err := s.image(ctx, ref.Context(), data, &n); err != nil {
			return n, err
		}
	}
	h, err := v1.NewHash(a.Digest)
	if err != nil {
		return n, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return n, s.layout.AppendDescriptor(v1.Descriptor{MediaType: index.MediaType, Size: int64(len(data)), Digest: h})
}

// checkPlatforms compares the images of an index with the platforms of release.json.
func checkPlatforms(a contents.Artifact, manifests []v1.Descriptor) error {
	var expected, found []string
	for _, p := range a.Platforms {
		expected = append(expected, p.Platform+" "+p.Digest)
	}
	for _, d := range manifests {
		platform := "no platform"
		if d.Platform != nil {
			platform = d.Platform.String()
		}
		found = append(found, platform+" "+d.Digest.String())
	}
	slices.Sort(expected)
	slices.Sort(found)
	if !slices.Equal(expected, found) {
		return &contentError{fmt.Sprint("the platforms ", expected, " in ", a.Digest), fmt.Sprint(found)}
	}
	return nil
}

// manifest pulls a manifest or an index.
func (s *store) manifest(ctx context.Context, ref name.Digest, n *amount) ([]byte, error) {
	data, err := s.registry.Manifest(ctx, ref)
	if err != nil {
		return nil, asContentError("manifest "+ref.DigestStr(), err)
	}
	n.add(int64(len(data)))
	return data, attest.NewBlob("", "", data).AddTo(s.layout)
}

// image pulls the configuration and the layers of a manifest.
func (s *store) image(ctx context.Context, repository name.Repository, manifest []byte, n *amount) error {
	var m v1.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return &contentError{"a manifest in " + repository.String(), err.Error()}
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := s.blob(ctx, repository, d); err != nil {
			return asContentError(fmt.Sprintf("blob %s (%s)", d.Digest, d.MediaType), err)
		}
		n.add(d.Size)
	}
	return nil
}

// blob pulls a blob, also if another repository has it: a registry may keep one for each.
func (s *store) blob(ctx context.Context, repository name.Repository, d v1.Descriptor) error {
	if d.Size < 0 || d.Size > maxBlob {
		return &contentError{fmt.Sprintf("blob %s with at most %d bytes", d.Digest, maxBlob), fmt.Sprintf("%d bytes", d.Size)}
	}
	path := s.path(d.Digest.String())
	if _, err := os.Stat(path); err == nil {
		return s.registry.Blob(ctx, repository, d, io.Discard)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".pulling-")
	if err != nil {
		return err
	}
	if err := errors.Join(s.registry.Blob(ctx, repository, d, f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

func (s *store) path(digest string) string {
	h, err := v1.NewHash(digest)
	if err != nil {
		return filepath.Join(string(s.layout), "blobs", "invalid")
	}
	return filepath.Join(string(s.layout), "blobs", h.Algorithm, h.Hex)
}

// asContentError returns a *contentError for an error that says that the registry has other bytes,
// or none; other errors as they are.
func asContentError(what string, err error) error {
	if _, is := errors.AsType[*contentError](err); is {
		return err
	}
	if wrong, is := errors.AsType[*attest.DigestError](err); is {
		return &contentError{what + " unchanged", "other bytes: " + wrong.Found}
	}
	if isMissing(err) {
		return &contentError{what, "that the registry does not have it"}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// imageOf returns an image that was pulled with an index, or alone.
func (s *store) imageOf(a contents.Artifact, platform int) (v1.Image, error) {
	top, err := v1.NewHash(a.Digest)
	if err != nil {
		return nil, err
	}
	s.mu.Lock() // pull writes the file that this reads
	root, err := s.layout.ImageIndex()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	index, err := root.ImageIndex(top)
	if err != nil {
		return nil, err
	}
	h, err := v1.NewHash(a.Platforms[platform].Digest)
	if err != nil {
		return nil, err
	}
	return index.Image(h)
}

// layers fetches the layers of an artifact that are files, into a folder, by their names.
func (s *store) layers(ctx context.Context, ref name.Digest, dir string) (map[string]v1.Descriptor, error) {
	var n amount
	data, err := s.manifest(ctx, ref, &n)
	if err != nil {
		return nil, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, &contentError{"a manifest at " + ref.String(), err.Error()}
	}
	if m.ArtifactType != contents.ArtifactType || m.MediaType != types.OCIManifestSchema1 {
		return nil, &contentError{"an artifact of type " + contents.ArtifactType + " at " + ref.String(), fmt.Sprintf("%.100q", m.ArtifactType)}
	}
	if err := s.image(ctx, ref.Context(), data, &n); err != nil {
		return nil, err
	}
	s.count(n)
	files := map[string]v1.Descriptor{}
	for _, l := range m.Layers {
		file := attest.FileName(l)
		if !filepath.IsLocal(file) || files[file].Size != 0 {
			return nil, &contentError{"layers with the names of files, each once, in " + ref.String(), fmt.Sprintf("%.100q", file)}
		}
		files[file] = l
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.Link(s.path(l.Digest.String()), path); err != nil {
			return nil, err
		}
	}
	return files, nil
}
