package registry

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpuready/gpuready/operator/driver"
)

// Label is the label of this product's driver containers: the driver's version, or "true".
const Label = "io.gpuready.driver"

// maxDigests bounds the remembered digests.
const maxDigests = 512

// labels caches the values of Label by digest, as a digest's content never changes.
type labels struct {
	mu     sync.Mutex
	values map[v1.Hash]string
}

// read returns the Presence of an image that exists. It calls get to fetch its manifest if the
// digest is new.
func (l *labels) read(digest v1.Hash, get func() (*remote.Descriptor, error)) driver.Presence {
	value, known := l.recall(digest)
	if known {
		return labelled(value)
	}
	whole, err := get()
	if err == nil {
		value, err = readLabel(whole)
	}
	if err != nil {
		return driver.Presence{State: driver.Present, Why: formatWhy("its labels cannot be read: %v", err)}
	}
	l.remember(whole.Digest, value)
	return labelled(value)
}

// labelled returns the Presence of an image with a value of Label; "" means that it has none.
func labelled(value string) driver.Presence {
	return driver.Presence{State: driver.Present, Ours: value != "", Version: driver.Version(value)}
}

func (l *labels) recall(digest v1.Hash) (value string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	value, known = l.values[digest]
	return value, known
}

func (l *labels) remember(digest v1.Hash, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.values == nil || len(l.values) >= maxDigests {
		l.values = map[v1.Hash]string{} // they are read again when needed
	}
	l.values[digest] = value
}

// readLabel returns the value of Label, for a multi-platform image that of the first one.
func readLabel(d *remote.Descriptor) (string, error) {
	if d.MediaType.IsSchema1() {
		return "", nil // this format is older than the label
	}
	image, err := firstImage(d)
	if err != nil {
		return "", err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", fmt.Errorf("read its configuration: %w", err)
	}
	return config.Config.Labels[Label], nil
}

func firstImage(d *remote.Descriptor) (v1.Image, error) {
	if !d.MediaType.IsIndex() {
		return d.Image()
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read its list of platforms: %w", err)
	}
	first := slices.IndexFunc(list.Manifests, func(m v1.Descriptor) bool {
		// Attestations are listed as images for an unknown platform.
		return m.MediaType.IsImage() && (m.Platform == nil || m.Platform.OS == "linux")
	})
	if first < 0 {
		return nil, errors.New("it lists no image for Linux")
	}
	return index.Image(list.Manifests[first].Digest)
}
