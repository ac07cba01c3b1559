package attest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// SBOMType is the artifact type of SBOMs.
const SBOMType = "application/spdx+json"

// empty is the configuration of artifacts that have none.
var empty = []byte("{}")

const emptyType types.MediaType = "application/vnd.oci.empty.v1+json"

// Manifest is an artifact in a registry: a manifest with blobs, and maybe a subject.
type Manifest struct {
	v1.Manifest
	blobs []*Blob
}

// NewManifest returns an artifact. Equal blobs give equal manifests.
func NewManifest(artifactType string, subject *v1.Descriptor, annotations map[string]string, blobs ...*Blob) *Manifest {
	config := NewBlob("", emptyType, empty)
	m := &Manifest{blobs: append([]*Blob{config}, blobs...), Manifest: v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: artifactType,
		Config: config.descriptor, Annotations: annotations, Subject: subject,
	}}
	for _, b := range blobs {
		m.Layers = append(m.Layers, b.descriptor)
	}
	return m
}

// NewReferrer returns the referrer that attaches a bundle to a subject. Its annotations are those
// by which cosign finds it.
func NewReferrer(subject v1.Descriptor, predicateType string, bundle []byte) *Manifest {
	return NewManifest(BundleType, &subject, map[string]string{
		"dev.sigstore.bundle.content":       "dsse-envelope",
		"dev.sigstore.bundle.predicateType": predicateType,
	}, NewBlob("", BundleType, bundle))
}

// NewSBOM returns the referrer that attaches an SBOM to a subject.
func NewSBOM(subject v1.Descriptor, file string, sbom []byte) *Manifest {
	return NewManifest(SBOMType, &subject, nil, NewBlob(file, SBOMType, sbom))
}

func hash(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// RawManifest returns the bytes of the manifest.
func (m *Manifest) RawManifest() ([]byte, error) { return json.Marshal(m.Manifest) }

// MediaType returns the type of the manifest.
func (m *Manifest) MediaType() (types.MediaType, error) { return m.Manifest.MediaType, nil }

// Digest returns the digest of the manifest.
func (m *Manifest) Digest() (v1.Hash, error) {
	data, err := m.RawManifest()
	return hash(data), err
}

// Descriptor returns the descriptor of the manifest in a list of referrers.
func (m *Manifest) Descriptor() (v1.Descriptor, error) {
	data, err := m.RawManifest()
	return v1.Descriptor{
		MediaType: m.Manifest.MediaType, Size: int64(len(data)), Digest: hash(data), ArtifactType: m.ArtifactType, Annotations: m.Annotations,
	}, err
}

// AddTo writes the blobs and the manifest into an OCI layout, but not into its index.
func (m *Manifest) AddTo(to layout.Path) error {
	data, err := m.RawManifest()
	if err != nil {
		return err
	}
	for _, b := range append(slices.Clone(m.blobs), NewBlob("", m.Manifest.MediaType, data)) {
		if err := b.AddTo(to); err != nil {
			return err
		}
	}
	return nil
}

// Push uploads the blobs and then the manifest, by its digest or by a tag.
func (m *Manifest) Push(ctx context.Context, r Registry, ref name.Reference) error {
	for _, b := range m.blobs {
		if err := remote.WriteLayer(ref.Context(), b, r.options(ctx)...); err != nil {
			return err
		}
	}
	return remote.Put(ref, m, r.options(ctx)...)
}

// Registry is the registry of a release, and the way to reach it.
type Registry struct {
	Prefix   string // host and path, "registry.example.com/gpuready"
	Insecure bool   // without TLS; localhost needs none anyway
	// Options are added to every request.
	Options []remote.Option
}

func (r Registry) options(ctx context.Context) []remote.Option {
	return slices.Concat([]remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}, r.Options)
}

func (r Registry) nameOptions() []name.Option {
	if r.Insecure {
		return []name.Option{name.StrictValidation, name.Insecure}
	}
	return []name.Option{name.StrictValidation}
}

// Tag returns the reference of a repository below the prefix, by a tag.
func (r Registry) Tag(repository, tag string) (name.Tag, error) {
	return name.NewTag(r.Prefix+"/"+repository+":"+tag, r.nameOptions()...)
}

// Digest returns the reference of a repository below the prefix, by a digest.
func (r Registry) Digest(repository, digest string) (name.Digest, error) {
	return name.NewDigest(r.Prefix+"/"+repository+"@"+digest, r.nameOptions()...)
}

// Head returns what the registry says that a tag or a digest stands for; a registry may answer GET
// otherwise. The error is a *transport.Error with a status of 404 if there is nothing.
func (r Registry) Head(ctx context.Context, ref name.Reference) (*v1.Descriptor, error) {
	return remote.Head(ref, r.options(ctx)...)
}

// Referrers lists the referrers of a digest.
func (r Registry) Referrers(ctx context.Context, subject name.Digest) ([]v1.Descriptor, error) {
	index, err := remote.Referrers(subject, r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	return m.Manifests, nil
}

// maxManifest bounds a manifest, in bytes.
const maxManifest = 4 << 20

// Resolve returns the digest of the manifest that the registry serves under a tag. It hashes the bytes
// that a client would pull. The error is a *transport.Error with a status of 404 if there is no tag.
func (r Registry) Resolve(ctx context.Context, tag name.Tag) (v1.Hash, error) {
	d, err := remote.Get(tag, r.options(ctx)...)
	if err != nil {
		return v1.Hash{}, err
	}
	return hash(d.Manifest), nil
}

// Manifest fetches a manifest or an index by its digest. It checks the digest itself: the library
// believes the header of an answer with the media type of Docker's first schema.
func (r Registry) Manifest(ctx context.Context, ref name.Digest) ([]byte, error) {
	d, err := remote.Get(ref, r.options(ctx)...)
	if err != nil && strings.Contains(err.Error(), "does not match requested digest") {
		return nil, &DigestError{Expected: ref.DigestStr(), Found: "another digest"}
	}
	if err != nil {
		return nil, err
	}
	if len(d.Manifest) > maxManifest {
		return nil, fmt.Errorf("%s: over %d bytes", ref, maxManifest)
	}
	if found := hash(d.Manifest).String(); found != ref.DigestStr() {
		return nil, &DigestError{Expected: ref.DigestStr(), Found: found}
	}
	return d.Manifest, nil
}

// DigestError says that the registry returned other bytes than asked for.
type DigestError struct{ Expected, Found string }

func (e *DigestError) Error() string {
	return fmt.Sprintf("its digest is %s; %s expected", e.Found, e.Expected)
}

// Blob copies a blob of a repository to w, and checks its size and digest.
func (r Registry) Blob(ctx context.Context, repository name.Repository, d v1.Descriptor, w io.Writer) error {
	layer, err := remote.Layer(repository.Digest(d.Digest.String()), r.options(ctx)...)
	if err != nil {
		return err
	}
	data, err := layer.Compressed()
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(data, d.Size+1))
	closeErr := data.Close()
	got := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	whole := err == nil || n == d.Size || strings.Contains(err.Error(), "error verifying") // the layer checks it, too
	if whole && (n != d.Size || got != d.Digest.String()) {
		return &DigestError{Expected: fmt.Sprintf("%s, %d bytes", d.Digest, d.Size), Found: fmt.Sprintf("%s, %d bytes", got, n)}
	}
	if err != nil {
		return err
	}
	return closeErr
}

// Bytes fetches a small blob, of at most limit bytes.
func (r Registry) Bytes(ctx context.Context, repository name.Repository, d v1.Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, fmt.Errorf("%s has %d bytes; at most %d expected", d.Digest, d.Size, limit)
	}
	var b bytes.Buffer
	err := r.Blob(ctx, repository, d, &b)
	return b.Bytes(), err
}
