package nvidia

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

func TestRegistryHasTheImagesAtTheirSizes(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "driver.tar")
	image, err := random.Image(1000, 2)
	require.NoError(t, err)
	tag, err := name.NewTag("gpuready.test/theirs/driver:1")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(archive, tag, image))

	r := newRegistry("registry.test:5000", t.TempDir())
	require.NoError(t, r.fill(t.Context(), []string{archive}, Pad{"driver": 50_000}))
	require.Equal(t, []string{"registry.test:5000/theirs/driver:1"}, r.images)

	ref, err := name.ParseReference(r.images[0], name.Insecure)
	require.NoError(t, err)
	there, err := remote.Image(ref, remote.WithTransport(r))
	require.NoError(t, err)
	layers, err := there.Layers()
	require.NoError(t, err)
	for _, l := range layers {
		data, err := l.Compressed()
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, data) // its digest is verified
		require.NoError(t, err)
		require.NoError(t, data.Close())
	}
	size, err := pulled(there)
	require.NoError(t, err)
	require.InDelta(t, 50_000, size, 5_000)
}
