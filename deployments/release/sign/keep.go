package sign

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// keepReferrers writes the referrers of a digest into the layout of the release, with the index that lists them
// where a registry has no API for referrers. So a copy of the layout can be verified as well.
func (s *signer) keepReferrers(repository, digest string, referrers []*attest.Manifest) error {
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, m := range referrers {
		if err := m.AddTo(s.layout()); err != nil {
			return err
		}
		d, err := m.Descriptor()
		if err != nil {
			return err
		}
		index.Manifests = append(index.Manifests, d)
	}
	slices.SortFunc(index.Manifests, func(a, b v1.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	b := attest.NewBlob("", index.MediaType, data)
	if err := b.AddTo(s.layout()); err != nil {
		return err
	}
	h, err := b.Digest()
	if err != nil {
		return err
	}
	s.keepArtifact(contents.Artifact{
		Name: repository, Kind: contents.Referrers, Tag: strings.ReplaceAll(digest, ":", "-"), Digest: h.String(), MediaType: string(index.MediaType), Size: int64(len(data)),
	})
	return nil
}

func (s *signer) keepArtifact(a contents.Artifact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, a)
}

// layout returns the OCI layout of the release.
func (s *signer) layout() layout.Path { return layout.Path(filepath.Join(s.Dir, contents.Layout)) }
