package release

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

const revision = "0123456789abcdef0123456789abcdef01234567"

// writeSmall writes and pushes a small release: an image for two platforms, a chart, and a file.
func writeSmall(t *testing.T, dir, registry, version string) contents.Release {
	t.Helper()
	for _, d := range []string{contents.SBOMs, contents.Files} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	r := contents.Release{
		Schema: contents.Schema, Version: version, Revision: revision, Created: time.Unix(1_700_000_000, 0).UTC(), Registry: registry,
		Materials: []contents.Material{{URI: "git+https://github.com/gpuready/gpuready", Digest: map[string]string{"gitCommit": revision}}},
	}
	image := contents.Artifact{Name: "operator", Kind: contents.Image, Tag: version, MediaType: string(types.OCIImageIndex)}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range []string{"amd64", "arm64"} {
		img, sbom := smallImage(t, image.Name, version, arch)
		file := image.Name + "-" + arch + ".spdx.json"
		require.NoError(t, os.WriteFile(filepath.Join(dir, contents.SBOMs, file), sbom, 0o644))
		digest, err := img.Digest()
		require.NoError(t, err)
		size, err := img.Size()
		require.NoError(t, err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		image.Platforms = append(image.Platforms, contents.Platform{Platform: "linux/" + arch, Digest: digest.String(), Size: size, SBOM: file})
	}
	ref := tag(t, registry, image.Name, version)
	require.NoError(t, remote.WriteIndex(ref, index))
	digest, err := index.Digest()
	require.NoError(t, err)
	size, err := index.Size()
	require.NoError(t, err)
	image.Digest, image.Size = digest.String(), size
	kept, err := layout.Write(filepath.Join(dir, contents.Layout), empty.Index)
	require.NoError(t, err)
	require.NoError(t, kept.AppendIndex(index))

	chart := contents.Artifact{Name: "charts/gpuready", Kind: contents.Chart, Tag: strings.TrimPrefix(version, "v"), MediaType: string(types.OCIManifestSchema1)}
	packed, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json"),
		static.NewLayer([]byte("chart "+version), "application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
	require.NoError(t, err)
	require.NoError(t, remote.Write(tag(t, registry, chart.Name, chart.Tag), packed))
	digest, err = packed.Digest()
	require.NoError(t, err)
	chart.Digest = digest.String()
	require.NoError(t, kept.AppendImage(packed))
	r.Artifacts = []contents.Artifact{image, chart}

	manifest := []byte("kind: Namespace\n")
	sum := sha256.Sum256(manifest)
	r.Files = []contents.Blob{{Name: "gpuready.yaml", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(manifest))}}
	require.NoError(t, os.WriteFile(filepath.Join(dir, contents.Files, "gpuready.yaml"), manifest, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, contents.Files, contents.Sums), fmt.Appendf(nil, "%x  gpuready.yaml\n", sum), 0o644))
	writeList(t, dir, r)
	require.NoError(t, contents.WriteRun(dir, contents.Run{ID: "test", Builder: "https://example.com/builder", Started: r.Created, Finished: r.Created.Add(time.Minute)}))
	return r
}

func writeList(t *testing.T, dir string, r contents.Release) {
	t.Helper()
	data, err := r.Bytes()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, contents.File), data, 0o644))
}

func tag(t *testing.T, registry, repository, tag string) name.Tag {
	t.Helper()
	ref, err := name.NewTag(registry + "/" + repository + ":" + tag)
	require.NoError(t, err)
	return ref
}

// smallImage returns an image with a base, a file and its SBOM, and the SBOM.
func smallImage(t *testing.T, image, version, arch string) (v1.Image, []byte) {
	t.Helper()
	files := map[string]string{
		"/usr/lib/os-release":               "ID=debian\nVERSION_ID=\"12\"\n",
		"/var/lib/dpkg/status.d/tzdata":     "Package: tzdata\nVersion: 2026a-0+deb12u1\nArchitecture: " + arch + "\nMaintainer: GNU Libc Maintainers <x@example.org>\n",
		"/usr/share/zoneinfo/UTC":           "UTC " + arch,
		"/usr/share/doc/" + image + "/HELP": "for " + arch,
	}
	tree := rootfs.Tree{}
	for path, text := range files {
		f, err := rootfs.Regular(path, 0o644, []byte(text))
		require.NoError(t, err)
		tree[path] = f
	}
	sbom, err := rootfs.SBOM(rootfs.Description{Name: image, Version: version, Revision: revision, Arch: arch, Tree: tree, At: time.Unix(0, 0)})
	require.NoError(t, err)
	files[rootfs.SBOMPath(image)] = string(sbom)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for path, text := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: path[1:], Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	require.NoError(t, err)
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: time.Unix(0, 0).UTC()}
	img, err = mutate.ConfigFile(img, config)
	require.NoError(t, err)
	return img, sbom
}
