package publish

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Push pushes what the registry lacks of the planned items. It pushes nothing if a tag was moved.
func (p *Pusher) Push(ctx context.Context, items []Item) error {
	if err := MovedError(items); err != nil {
		return err
	}
	to, err := remote.NewPusher(p.remote...)
	if err != nil {
		return err
	}
	w := &work{Pusher: p, to: to, at: map[string]name.Repository{}}
	for _, i := range items {
		w.total += i.Absent
		if i.State == Present {
			w.note(i.repository, i.Blobs...)
		}
	}
	for _, i := range items {
		if i.State == Present {
			p.Logf(i.Name, "is in the registry: %s:%s", i.repository, i.Tag)
			continue
		}
		if err := w.pushItem(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", i.Name, err)
		}
	}
	return nil
}

// work is one run of Push.
type work struct {
	*Pusher
	to    *remote.Pusher
	total int64

	mutex sync.Mutex
	done  int64
	at    map[string]name.Repository // by digest, a repository that has the blob
}

// note records that a repository has blobs, which others can mount from there.
func (w *work) note(r name.Repository, blobs ...Blob) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, b := range blobs {
		if _, known := w.at[b.Digest]; !known {
			w.at[b.Digest] = r
		}
	}
}

// pushItem pushes blobs, then manifests, those of platforms before their index, then the tag.
func (w *work) pushItem(ctx context.Context, i Item) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(max(w.Jobs, 1))
	for _, b := range i.Blobs {
		if !b.Manifest {
			group.Go(func() error { return w.pushBlob(inner, i, b) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, b := range i.Blobs {
		if !b.Manifest {
			continue
		}
		data, err := w.readManifest(b.descriptor)
		if err != nil {
			return err
		}
		var ref name.Reference = i.repository.Digest(b.Digest)
		if b.Digest == i.Digest {
			ref = i.repository.Tag(i.Tag)
			if err := w.checkTag(ctx, &i); err != nil {
				return err
			}
			if i.Found != "" && i.Found != i.Digest {
				if err := w.mergeReferrers(ctx, i, data); err != nil {
					return err
				}
				continue
			}
		}
		if err := w.to.Push(ctx, ref, manifest{data, b.descriptor.MediaType}); err != nil {
			return err
		}
		w.count(b.Size)
	}
	w.Logf(i.Name, "pushed %s:%s, %s", i.repository, i.Tag, i.Digest)
	return nil
}

// checkTag returns an error if somebody has pushed the tag since the plan was made.
func (w *work) checkTag(ctx context.Context, i *Item) (err error) {
	if i.Found, err = w.head(ctx, i.repository.Tag(i.Tag)); err != nil || i.Found == "" || i.Found == i.Digest || contents.ReferrersTag.MatchString(i.Tag) {
		return err
	}
	i.State = Moved
	return MovedError([]Item{*i})
}

// slowest is the rate in bytes per second below which an upload has failed.
const slowest = 32 << 10

func (w *work) pushBlob(ctx context.Context, i Item, b Blob) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(b.Size/slowest)*time.Second)
	defer cancel()
	layer, err := partial.CompressedToLayer(blob{w.Pusher, b.descriptor})
	if err != nil {
		return err
	}
	w.mutex.Lock()
	from, known := w.at[b.Digest]
	w.mutex.Unlock()
	if known && from != i.repository {
		layer = &remote.MountableLayer{Layer: layer, Reference: from.Digest(b.Digest)}
	}
	if err := w.to.Upload(ctx, i.repository, layer); err != nil {
		return fmt.Errorf("blob %s (%d bytes): %w", b.Digest, b.Size, err)
	}
	w.note(i.repository, b)
	if done := w.count(b.Size); b.Size >= 1<<20 {
		w.Logf(i.Name, "%.19s, %s; %s of %s", b.Digest, FormatBytes(b.Size), FormatBytes(done), FormatBytes(w.total))
	}
	return nil
}

// count adds to the bytes that are in the registry, and returns them.
func (w *work) count(n int64) int64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.done += n
	return w.done
}

// FormatBytes returns a size for people: "12.3 MB".
func FormatBytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// readManifest returns a manifest of the layout, whose size and digest it checks.
func (p *Pusher) readManifest(d v1.Descriptor) ([]byte, error) {
	if d.Size > maxManifest {
		return nil, fmt.Errorf("manifest %s has %d bytes, over %d", d.Digest, d.Size, maxManifest)
	}
	data, err := p.layout.Bytes(d.Digest)
	if err != nil {
		return nil, fmt.Errorf("%w: run release build again", err)
	}
	if sum, size, err := v1.SHA256(bytes.NewReader(data)); err != nil || sum != d.Digest || size != d.Size {
		return nil, fmt.Errorf("manifest %s of the layout is damaged: it has %d bytes and the digest %s: run release build again", d.Digest, size, sum)
	}
	return data, nil
}

// manifest is the text of a manifest or index.
type manifest struct {
	data []byte
	kind types.MediaType
}

func (m manifest) RawManifest() ([]byte, error)        { return m.data, nil }
func (m manifest) MediaType() (types.MediaType, error) { return m.kind, nil }

// blob is a blob of the layout.
type blob struct {
	*Pusher
	d v1.Descriptor
}

func (b blob) Digest() (v1.Hash, error)            { return b.d.Digest, nil }
func (b blob) Size() (int64, error)                { return b.d.Size, nil }
func (b blob) MediaType() (types.MediaType, error) { return b.d.MediaType, nil }
func (b blob) Compressed() (io.ReadCloser, error)  { return b.layout.Blob(b.d.Digest) }
