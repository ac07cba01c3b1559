package sign

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// files signs release.json and the files beside the registry: the list of their checksums, and
// their provenance.
func (s *signer) files(ctx context.Context) error {
	for _, f := range []string{contents.File, filepath.Join(contents.Files, contents.Sums)} {
		if err := s.file(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	if len(s.release.Files) == 0 {
		return nil
	}
	provenance, err := attest.Describe(s.release, s.run, attest.FileSubjects(s.release), nil)
	if err != nil {
		return err
	}
	_, err = s.statement(ctx, contents.Files, "provenance", provenance)
	return err
}

// readTag records whether the release is published.
func (s *signer) readTag(ctx context.Context) error {
	if s.DryRun {
		return nil
	}
	tag, err := s.Registry.Tag(contents.Repository, s.release.Version)
	if err != nil {
		return err
	}
	d, err := s.Registry.Head(ctx, tag)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.at = tag.String() + " (" + d.Digest.String() + ")"
	return nil
}

// checkUnpublished returns an error if the release is published. A signature that is made again would
// replace the one that was published, which nobody can make again.
func (s *signer) checkUnpublished(path string) error {
	if s.at == "" {
		return nil
	}
	return fmt.Errorf("%s is not there, or by another key or about something else, and %s is published: a published release does not change; use the key and the folder with which it was published, or publish what is new under a new version", path, s.at)
}

// file signs a file of the release, unless its bundle is there.
func (s *signer) file(ctx context.Context, file string) error {
	data, err := os.ReadFile(filepath.Join(s.Dir, file))
	if err != nil {
		return err
	}
	path := s.path(filepath.Base(file), "signature")
	sum := sha256.Sum256(data)
	b, _, err := readBundle(path)
	if err != nil {
		return err
	}
	kept := bytes.Equal(b.Digest, sum[:]) && b.KeyHint == s.hint
	if !kept && !s.DryRun {
		if err := s.checkUnpublished(path); err != nil {
			return err
		}
		if err := s.Cosign.SignFile(ctx, filepath.Join(s.Dir, file), path); err != nil {
			return err
		}
	}
	s.add("sign", "signature", file, kept)
	return nil
}

// statement signs a statement, unless its bundle is there, and returns the bundle. In a dry run it
// is nil if it would have to be signed.
func (s *signer) statement(ctx context.Context, subject, what string, statement []byte) ([]byte, error) {
	path := s.path(subject, what)
	b, data, err := readBundle(path)
	if err != nil {
		return nil, err
	}
	kept := bytes.Equal(b.Statement, statement) && b.KeyHint == s.hint
	s.add("sign", what, subject, kept)
	if kept {
		return data, nil
	}
	if s.DryRun {
		return nil, nil
	}
	if err := s.checkUnpublished(path); err != nil {
		return nil, err
	}
	if err := s.Cosign.SignStatement(ctx, statement, path); err != nil {
		return nil, fmt.Errorf("sign its %s: %w", what, err)
	}
	return os.ReadFile(path)
}

// readBundle reads a bundle; it is empty if there is none, or a damaged one.
func readBundle(path string) (attest.Bundle, []byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return attest.Bundle{}, nil, nil
	}
	if err != nil {
		return attest.Bundle{}, nil, err
	}
	b, err := attest.ReadBundle(data)
	if err != nil {
		return attest.Bundle{}, nil, nil //nolint:nilerr // it is signed anew
	}
	return b, data, nil
}

// publish pushes the artifact with the list of the release, signs it, and gives it its tag.
func (s *signer) publish(ctx context.Context) error {
	tag, err := s.Registry.Tag(contents.Repository, s.release.Version)
	if err != nil {
		return err
	}
	if s.DryRun {
		s.add("publish", "release", tag.String(), false)
		return nil
	}
	m, err := s.manifest()
	if err != nil {
		return err
	}
	digest, err := m.Digest()
	if err != nil {
		return err
	}
	published, err := s.isPublished(ctx, tag, digest)
	if err != nil {
		return err
	}
	ref := tag.Context().Digest(digest.String())
	if !published {
		if err := m.Push(ctx, s.Registry, ref); err != nil {
			return err
		}
	}
	statement, err := attest.Sign([]attest.Subject{{Name: s.release.Registry + "/" + contents.Repository, Digest: map[string]string{"sha256": digest.Hex}}})
	if err != nil {
		return err
	}
	bundle, err := s.statement(ctx, contents.Repository, "signature", statement)
	if err != nil {
		return err
	}
	if err := s.attachAll(ctx, contents.Repository, digest.String(), []referrer{{"signature", attest.SignatureType, bundle}}); err != nil {
		return err
	}
	if !published {
		if err := m.Push(ctx, s.Registry, tag); err != nil {
			return err
		}
	}
	s.add("publish", "release", tag.String(), published)
	if err := m.AddTo(s.layout()); err != nil {
		return err
	}
	d, err := m.Descriptor()
	if err != nil {
		return err
	}
	s.keepArtifact(contents.Artifact{Name: contents.Repository, Kind: contents.List, Tag: s.release.Version, Digest: digest.String(), MediaType: string(d.MediaType), Size: d.Size})
	return nil
}

// isPublished reports whether the tag stands for a digest. It fails if it stands for another one.
func (s *signer) isPublished(ctx context.Context, tag name.Tag, digest v1.Hash) (bool, error) {
	d, err := s.Registry.Head(ctx, tag)
	switch {
	case isMissing(err):
		return false, nil
	case err != nil:
		return false, err
	case d.Digest != digest:
		return false, fmt.Errorf("%s was published as %s, and this is %s: a published release does not change; publish what is new under a new version", tag, d.Digest, digest)
	}
	return true, nil
}

// manifest returns the artifact with release.json, the files and the bundles.
func (s *signer) manifest() (*attest.Manifest, error) {
	names := []string{contents.File, filepath.Join(contents.Files, contents.Sums)}
	for _, f := range s.release.Files {
		names = append(names, filepath.Join(contents.Files, f.Name))
	}
	for _, bundle := range []string{s.path(contents.File, "signature"), s.path(contents.Sums, "signature"), s.path(contents.Files, "provenance")} {
		names = append(names, filepath.Join(contents.Signatures, filepath.Base(bundle)))
	}
	slices.Sort(names[1:])
	var blobs []*attest.Blob
	for i, n := range names {
		mediaType := types.MediaType("application/octet-stream")
		if i == 0 {
			mediaType = contents.ArtifactType + "+json"
		}
		b, err := attest.OpenBlob(filepath.ToSlash(n), mediaType, filepath.Join(s.Dir, n))
		if errors.Is(err, fs.ErrNotExist) && len(s.release.Files) == 0 {
			continue // no files, so no provenance of them
		}
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, b)
	}
	return attest.NewManifest(contents.ArtifactType, nil, map[string]string{
		"org.opencontainers.image.version":  s.release.Version,
		"org.opencontainers.image.revision": s.release.Revision,
		"org.opencontainers.image.created":  s.release.Created.UTC().Format(time.RFC3339),
	}, blobs...), nil
}
