package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// mergeReferrers adds the entries of ours, an index of referrers, to the index under the item's tag, which
// must exist. Registries without the OCI referrers API keep an image's referrers, such as signatures and
// SBOMs, in an index under the tag sha256-DIGEST. Others may have added entries, so they are merged.
func (w *work) mergeReferrers(ctx context.Context, i Item, ours []byte) error {
	tag := i.repository.Tag(i.Tag)
	found, err := remote.Get(tag, append(w.remote, remote.WithContext(ctx))...)
	if err != nil {
		return err
	}
	var theirs, own v1.IndexManifest
	for _, m := range []struct {
		text []byte
		into *v1.IndexManifest
	}{{found.Manifest, &theirs}, {ours, &own}} {
		if len(m.text) > maxManifest {
			return fmt.Errorf("%s: over %d bytes", tag, maxManifest)
		}
		if err := json.Unmarshal(m.text, m.into); err != nil {
			return fmt.Errorf("%s: not a list of referrers: %w", tag, err)
		}
	}
	for _, d := range own.Manifests {
		if !slices.ContainsFunc(theirs.Manifests, func(t v1.Descriptor) bool { return t.Digest == d.Digest }) {
			theirs.Manifests = append(theirs.Manifests, d)
		}
	}
	slices.SortFunc(theirs.Manifests, func(a, b v1.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	merged, err := json.Marshal(theirs)
	if err != nil {
		return err
	}
	return w.to.Push(ctx, tag, manifest{merged, own.MediaType})
}
