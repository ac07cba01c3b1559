package quickstart

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/mirror"
	"github.com/gpuready/gpuready/test/e2e"
)

// runsFromAnArchive imports the archive of release mirror on a node. A pod that names an image by its digest
// must start from it without a registry.
func runsFromAnArchive(t *testing.T, s *e2e.Suite, p published) {
	t.Helper()
	r, path := makeLayout(t, p)
	images, err := mirror.List(r, path)
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "gpuready.tar")
	f, err := os.Create(archive)
	require.NoError(t, err)
	require.NoError(t, mirror.Write(f, r, images, path))
	require.NoError(t, f.Close())
	n := s.Nodes[0]
	require.NoError(t, n.Import(t.Context(), archive))
	listed, err := n.Exec(t.Context(), "ctr", "--namespace=k8s.io", "images", "ls", "--quiet")
	require.NoError(t, err)
	for _, i := range images {
		if !i.Foreign && i.Kind == contents.Image {
			require.Contains(t, strings.Fields(string(listed)), i.Reference())
		}
		if i.Kind != contents.Image {
			require.NotContains(t, string(listed), i.Digest)
		}
	}
	s.Kubectl(t, "run", "imported", "--image="+images[0].Reference(), "--image-pull-policy=Never", "--restart=Never", "--command", "--", "vectoradd", "--version")
	s.Kubectl(t, "wait", "pod/imported", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	t.Log(s.Kubectl(t, "logs", "imported"))
}

// makeLayout makes a release of the published CUDA samples and chart, with an image for another
// architecture, which the node must pass over.
func makeLayout(t *testing.T, p published) (contents.Release, layout.Path) {
	t.Helper()
	local := httptest.NewServer(p.Registry)
	defer local.Close()
	pull := func(path string) v1.Image {
		ref, err := name.ParseReference(local.Listener.Addr().String() + "/gpuready/" + path)
		require.NoError(t, err)
		image, err := remote.Image(ref)
		require.NoError(t, err)
		return image
	}
	path, err := layout.Write(t.TempDir(), empty.Index)
	require.NoError(t, err)
	other, err := random.Image(1000, 1)
	require.NoError(t, err)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for arch, image := range map[string]v1.Image{runtime.GOARCH: pull("cuda-samples:" + p.Version), "s390x": other} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	require.NoError(t, path.AppendIndex(index))
	chart := pull("charts/gpuready:" + strings.TrimPrefix(p.Version, "v"))
	require.NoError(t, path.AppendImage(chart))
	digest, err := index.Digest()
	require.NoError(t, err)
	chartDigest, err := chart.Digest()
	require.NoError(t, err)
	return contents.Release{
		Schema: contents.Schema, Version: p.Version, Revision: strings.Repeat("0", 40), Created: time.Unix(0, 0), Registry: repository,
		Artifacts: []contents.Artifact{
			{Name: "cuda-samples", Kind: contents.Image, Tag: p.Version, Digest: digest.String()},
			{Name: "charts/gpuready", Kind: contents.Chart, Tag: strings.TrimPrefix(p.Version, "v"), Digest: chartDigest.String()},
		},
	}, path
}
