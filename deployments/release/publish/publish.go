// Package publish pushes a release to its registry.
//
// A plan lists the artifacts of the release with their manifests and blobs, and what the registry has
// of them. Released versions do not change: a tag that the registry has with another digest is an
// error, and then nothing is pushed. What the registry has is not pushed again, so a run that was
// killed goes on. Of each artifact, the tag is pushed last.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// State tells what the registry has of an artifact.
type State string

// The states of artifacts.
const (
	Present State = "present" // the tag has the release's digest
	Missing State = "missing" // the tag does not exist
	Moved   State = "moved"   // the tag has another digest
)

// Item is an artifact of the plan.
type Item struct {
	Name   string `json:"name"`
	Tag    string `json:"tag"`
	Digest string `json:"digest"`
	State  State  `json:"state"`
	Found  string `json:"found,omitempty"` // the tag's digest in the registry if State is Moved
	Blobs  []Blob `json:"blobs"`           // without duplicates, manifests after what they refer to
	Bytes  int64  `json:"bytes"`           // of Blobs
	Absent int64  `json:"absentBytes"`     // of the Blobs to push

	repository name.Repository
}

// Blob is a blob or a manifest of an artifact.
type Blob struct {
	Digest   string `json:"digest"`
	Size     int64  `json:"size"` // in bytes
	Present  bool   `json:"present"`
	Manifest bool   `json:"manifest,omitempty"`

	descriptor v1.Descriptor
}

// Options are the settings of a Pusher.
type Options struct {
	Dir      string // the folder of the release
	Insecure bool   // allows plain HTTP to other hosts than this one
	Jobs     int    // number of concurrent uploads
	// Logf reports progress, with the name of an artifact.
	Logf func(artifact, format string, args ...any)
	// Transport is the HTTP transport; nil: the default with deadlines.
	Transport http.RoundTripper
}

// Pusher pushes one release.
type Pusher struct {
	Options
	Release contents.Release
	layout  layout.Path
	remote  []remote.Option
}

// New reads the release in a folder.
func New(o Options) (*Pusher, error) {
	release, err := contents.Read(o.Dir)
	if err != nil {
		return nil, err
	}
	if o.Transport == nil {
		o.Transport = newTransport()
	}
	return &Pusher{
		Options: o, Release: release, layout: layout.Path(filepath.Join(o.Dir, contents.Layout)),
		remote: []remote.Option{
			remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("gpuready-release"),
			remote.WithTransport(&plainGuard{next: o.Transport, insecure: o.Insecure}),
		},
	}, nil
}

// Plan compares the release with its registry. With blobs, it queries each blob of the artifacts that
// the registry does not have under their tag. It pushes nothing.
func (p *Pusher) Plan(ctx context.Context, blobs bool) ([]Item, error) {
	var items []Item
	for _, a := range p.Release.Artifacts {
		item, err := p.planArtifact(ctx, a, blobs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.Name, err)
		}
		items = append(items, item)
	}
	return items, nil
}

// MovedError returns an error that names the artifacts whose tag has another digest, or nil.
func MovedError(items []Item) error {
	var problems []error
	for _, i := range items {
		if i.State == Moved {
			problems = append(problems, fmt.Errorf("%s:%s is %s in the registry, and %s in this release: released versions do not change; raise the version (or, if nobody has used it, delete the tag in the registry)",
				i.repository, i.Tag, i.Found, i.Digest))
		}
	}
	return errors.Join(problems...)
}

func (p *Pusher) planArtifact(ctx context.Context, a contents.Artifact, blobs bool) (Item, error) {
	item := Item{Name: a.Name, Tag: a.Tag, Digest: a.Digest}
	var options []name.Option
	if p.Insecure {
		options = append(options, name.Insecure)
	}
	var err error
	if item.repository, err = name.NewRepository(p.Release.Registry+"/"+a.Name, options...); err != nil {
		return item, err
	}
	root, err := v1.NewHash(a.Digest)
	if err != nil {
		return item, err
	}
	if item.Blobs, err = p.walk(v1.Descriptor{Digest: root, Size: a.Size, MediaType: types.MediaType(a.MediaType)}, map[v1.Hash]bool{}); err != nil {
		return item, err
	}
	found, err := p.head(ctx, item.repository.Tag(a.Tag))
	if err != nil {
		return item, err
	}
	item.State = Missing
	switch found {
	case "":
	case a.Digest:
		item.State = Present
	default:
		if !contents.ReferrersTag.MatchString(a.Tag) { // of which a registry may have more
			item.State, item.Found = Moved, found
		}
	}
	for i := range item.Blobs {
		b := &item.Blobs[i]
		b.Present = item.State == Present
		if item.State == Missing && blobs {
			if b.Present, err = p.exists(ctx, item.repository, *b); err != nil {
				return item, err
			}
		}
		item.Bytes += b.Size
		if !b.Present && item.State == Missing {
			item.Absent += b.Size
		}
	}
	return item, nil
}

// maxManifest bounds the size of a manifest, in bytes.
const maxManifest = 4 << 20

// walk returns a manifest, after all that it refers to.
func (p *Pusher) walk(d v1.Descriptor, seen map[v1.Hash]bool) (all []Blob, err error) {
	if seen[d.Digest] {
		return nil, nil
	}
	seen[d.Digest] = true
	data, err := p.readManifest(d)
	if err != nil {
		return nil, err
	}
	var m struct {
		Manifests []v1.Descriptor `json:"manifests"`
		Config    *v1.Descriptor  `json:"config"`
		Layers    []v1.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	for _, child := range m.Manifests {
		below, err := p.walk(child, seen)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	if m.Config != nil {
		m.Layers = append(m.Layers, *m.Config)
	}
	for _, blob := range m.Layers {
		if !seen[blob.Digest] {
			seen[blob.Digest] = true
			all = append(all, Blob{Digest: blob.Digest.String(), Size: blob.Size, descriptor: blob})
		}
	}
	return append(all, Blob{Digest: d.Digest.String(), Size: d.Size, Manifest: true, descriptor: d}), nil
}

// head returns the digest of a tag, or "" if the registry does not have it.
func (p *Pusher) head(ctx context.Context, ref name.Reference) (string, error) {
	d, err := remote.Head(ref, append(p.remote, remote.WithContext(ctx))...)
	if isNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return d.Digest.String(), nil
}

// exists reports whether a repository has a blob or a manifest.
func (p *Pusher) exists(ctx context.Context, r name.Repository, b Blob) (bool, error) {
	ref := r.Digest(b.Digest)
	if b.Manifest {
		found, err := p.head(ctx, ref)
		return found != "", err
	}
	layer, err := remote.Layer(ref, append(p.remote, remote.WithContext(ctx))...)
	if err != nil {
		return false, err
	}
	_, err = layer.Size() // a HEAD request
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// isNotFound reports whether a registry answered that it does not have something.
func isNotFound(err error) bool {
	answer, is := errors.AsType[*transport.Error](err)
	return is && answer.StatusCode == http.StatusNotFound
}
