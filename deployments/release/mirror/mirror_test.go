package mirror

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/publish"
)

// newRegistry starts a registry in this process, and returns its host.
func newRegistry(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// makeRelease makes a release of two images for two platforms, a chart and a catalog. The chart installs
// an image of another registry.
func makeRelease(t *testing.T, other string) (contents.Release, layout.Path) {
	t.Helper()
	path, err := layout.Write(filepath.Join(t.TempDir(), contents.Layout), empty.Index)
	require.NoError(t, err)
	r := contents.Release{
		Schema: contents.Schema, Version: "v1.2.3", Revision: strings.Repeat("a", 40), Created: time.Unix(1_000_000_000, 0).UTC(), Registry: "ghcr.io/gpuready",
	}
	shared, err := random.Layer(100_000, types.OCILayer)
	require.NoError(t, err)
	for _, name := range []string{"operator", "toolkit", "catalog"} {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, arch := range []string{"amd64", "arm64"} {
			image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), shared, static.NewLayer([]byte(name+arch), types.OCILayer))
			require.NoError(t, err)
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		}
		require.NoError(t, path.AppendIndex(index))
		kind := contents.Image
		if name == "catalog" {
			kind = contents.Catalog
		}
		r.Artifacts = append(r.Artifacts, artifact(t, index, name, kind))
	}
	chart := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json")
	chart, err = mutate.AppendLayers(chart, static.NewLayer(makeChart(t, other), "application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
	require.NoError(t, err)
	require.NoError(t, path.AppendImage(chart))
	r.Artifacts = append(r.Artifacts, artifact(t, chart, "charts/gpuready", contents.Chart))
	r.Artifacts[3].Tag = "1.2.3"
	return r, path
}

func artifact(t *testing.T, m interface {
	Digest() (v1.Hash, error)
	Size() (int64, error)
	MediaType() (types.MediaType, error)
}, name string, kind contents.Kind) contents.Artifact {
	t.Helper()
	digest, err := m.Digest()
	require.NoError(t, err)
	size, err := m.Size()
	require.NoError(t, err)
	media, err := m.MediaType()
	require.NoError(t, err)
	return contents.Artifact{Name: name, Kind: kind, Tag: "v1.2.3", Digest: digest.String(), Size: size, MediaType: string(media)}
}

func makeChart(t *testing.T, other string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	out := tar.NewWriter(zipped)
	for _, f := range [][2]string{
		{"gpuready/Chart.yaml", "appVersion: v1.2.3\n"},
		{nfdFolder + "Chart.yaml", "appVersion: v0.19.0\n"},
		{nfdFolder + "values.yaml", "image:\n  repository: " + other + "/nfd/node-feature-discovery\n  tag:\n"},
	} {
		require.NoError(t, out.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}))
		_, err := out.Write([]byte(f[1]))
		require.NoError(t, err)
	}
	require.NoError(t, out.Close())
	require.NoError(t, zipped.Close())
	return b.Bytes()
}

// pushForeign pushes an image of another project, and returns its digest.
func pushForeign(t *testing.T, host string) string {
	t.Helper()
	index, err := random.Index(1000, 1, 2)
	require.NoError(t, err)
	ref, err := name.ParseReference(host + "/nfd/node-feature-discovery:v0.19.0")
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(ref, index))
	digest, err := index.Digest()
	require.NoError(t, err)
	return digest.String()
}

func TestAnArchiveFillsARegistryWithTheSameDigests(t *testing.T) {
	other, target := newRegistry(t), newRegistry(t)
	digest := pushForeign(t, other)
	r, path := makeRelease(t, other)
	images, err := List(r, path)
	require.NoError(t, err)
	require.Len(t, images, 5)
	fetched, err := layout.Write(t.TempDir(), empty.Index)
	require.NoError(t, err)
	images, err = Fetch(t.Context(), images, fetched)
	require.NoError(t, err)
	require.Equal(t, other+"/nfd/node-feature-discovery@"+digest, images[4].Reference())

	var b, again bytes.Buffer
	require.NoError(t, Write(&b, r, images, path, fetched))
	require.NoError(t, Write(&again, r, images, path, fetched))
	require.True(t, bytes.Equal(b.Bytes(), again.Bytes()), "the same images make the same bytes")

	dir := t.TempDir()
	_, err = Unpack(&b, dir, target+"/mirror")
	require.NoError(t, err)
	p, err := publish.New(publish.Options{Dir: dir, Jobs: 2, Logf: func(string, string, ...any) {}})
	require.NoError(t, err)
	items, err := p.Plan(t.Context(), false)
	require.NoError(t, err)
	require.NoError(t, p.Push(t.Context(), items))

	for _, i := range images {
		_, path, _ := strings.Cut(i.Repository, "/") // the host goes, the path stays
		for _, suffix := range []string{":" + i.Tag, "@" + i.Digest} {
			ref, err := name.ParseReference(target + "/mirror/" + path + suffix)
			require.NoError(t, err)
			found, err := remote.Get(ref)
			require.NoError(t, err)
			require.Equal(t, i.Digest, found.Digest.String())
			if index, err := found.ImageIndex(); err == nil && found.MediaType.IsIndex() {
				requireLayers(t, index)
			}
		}
	}
}

// requireLayers reads all blobs of an index; the library checks their digests.
func requireLayers(t *testing.T, index v1.ImageIndex) {
	t.Helper()
	m, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 2)
	for _, d := range m.Manifests {
		image, err := index.Image(d.Digest)
		require.NoError(t, err)
		layers, err := image.Layers()
		require.NoError(t, err)
		require.NotEmpty(t, layers)
		for _, l := range layers {
			content, err := l.Compressed()
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, content)
			require.NoError(t, err)
		}
	}
}

// A runtime imports images by tag and by digest, and nothing else.
func TestTheIndexNamesImagesForRuntimes(t *testing.T) {
	r, path := makeRelease(t, "registry.k8s.io")
	images, err := List(r, path)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, Write(&b, r, images, path))
	var index v1.IndexManifest
	for in := tar.NewReader(&b); ; {
		h, err := in.Next()
		require.NoError(t, err)
		if h.Name == indexFile {
			require.NoError(t, json.NewDecoder(in).Decode(&index))
			break
		}
	}
	var imported, pushed []string
	for _, d := range index.Manifests {
		if one := d.Annotations[importName]; one != "" {
			imported = append(imported, one)
		}
		if one := d.Annotations[reference]; one != "" {
			pushed = append(pushed, one)
		}
		require.Equal(t, d.Annotations[refName] == "", d.Annotations[reference] == "" || d.Annotations[importName] == "")
	}
	require.Equal(t, []string{
		"ghcr.io/gpuready/operator:v1.2.3", "ghcr.io/gpuready/operator@" + images[0].Digest,
		"ghcr.io/gpuready/toolkit:v1.2.3", "ghcr.io/gpuready/toolkit@" + images[1].Digest,
	}, imported)
	require.Equal(t, []string{
		"ghcr.io/gpuready/operator:v1.2.3", "ghcr.io/gpuready/toolkit:v1.2.3", "ghcr.io/gpuready/catalog:v1.2.3", "ghcr.io/gpuready/charts/gpuready:1.2.3",
	}, pushed)
}

func TestLists(t *testing.T) {
	r, path := makeRelease(t, "registry.k8s.io")
	images, err := List(r, path)
	require.NoError(t, err)
	require.Equal(t, `# The artifacts of gpuready v1.2.3.
ghcr.io/gpuready/operator@`+images[0].Digest+`
ghcr.io/gpuready/toolkit@`+images[1].Digest+`
ghcr.io/gpuready/catalog@`+images[2].Digest+`
ghcr.io/gpuready/charts/gpuready@`+images[3].Digest+`
# Other projects' images that the chart installs unless nfd.enabled is false.
registry.k8s.io/nfd/node-feature-discovery:v0.19.0
# Not listed: driver images, and NVIDIA's operands, if you turn them on (docs/install.md).
`, string(Text(r.Version, images)))
	text, err := ImageSet(images)
	require.NoError(t, err)
	var have, want any
	require.NoError(t, yaml.Unmarshal(text, &have))
	require.NoError(t, yaml.Unmarshal([]byte(`
kind: ImageSetConfiguration
apiVersion: mirror.openshift.io/v2alpha1
mirror:
  operators:
  - catalog: ghcr.io/gpuready/catalog@`+images[2].Digest+`
    targetTag: v1.2.3
    packages: [{ name: gpuready, channels: [{ name: stable }] }]
  additionalImages:
  - name: ghcr.io/gpuready/operator@`+images[0].Digest+`
  - name: ghcr.io/gpuready/toolkit@`+images[1].Digest+`
  - name: registry.k8s.io/nfd/node-feature-discovery:v0.19.0
`), &want))
	require.Equal(t, want, have)
}

func TestADamagedReleaseMakesNoArchive(t *testing.T) {
	r, path := makeRelease(t, "registry.k8s.io")
	images, err := List(r, path)
	require.NoError(t, err)
	file := filepath.Join(string(path), "blobs/sha256")
	entries, err := os.ReadDir(file)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		if info.Size() < 50_000 {
			continue // the shared layer
		}
		text, err := os.ReadFile(filepath.Join(file, e.Name()))
		require.NoError(t, err)
		text[17] ^= 1
		require.NoError(t, os.WriteFile(filepath.Join(file, e.Name()), text, 0o600))
	}
	require.ErrorContains(t, Write(io.Discard, r, images, path), "the release is damaged")
}

func TestArchivesThatAreWrongAreRefused(t *testing.T) {
	r, path := makeRelease(t, "registry.k8s.io")
	images, err := List(r, path)
	require.NoError(t, err)
	var good bytes.Buffer
	require.NoError(t, Write(&good, r, images, path))
	changed := bytes.Clone(good.Bytes())
	at := bytes.Index(changed, []byte("toolkitarm64"))
	require.Positive(t, at)
	changed[at] ^= 1
	for name, test := range map[string]struct {
		archive []byte
		want    string
	}{
		"a changed byte":  {changed, "its digest is sha256:"},
		"cut short":       {good.Bytes()[:good.Len()/2], "unexpected EOF"},
		"no archive":      {nil, "an archive of release mirror is required"},
		"a path":          {packed(t, tar.Header{Name: "../x", Typeflag: tar.TypeReg}), `"../x": an archive of a release has no such file`},
		"a link":          {packed(t, tar.Header{Name: "index.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "neither a file nor a folder"},
		"an entry twice":  {packed(t, tar.Header{Name: "index.json", Typeflag: tar.TypeReg}, tar.Header{Name: "index.json", Typeflag: tar.TypeReg}), "index.json"},
		"an empty index":  {packed(t, tar.Header{Name: "index.json", Typeflag: tar.TypeReg}, tar.Header{Name: "oci-layout", Typeflag: tar.TypeReg}), "index.json"},
		"a sparse blob":   {sparse(t, blobsFolder+strings.Repeat("0", 64), 64<<20), "a sparse file"},
		"another path":    {layoutOf(t, referring("ghcr.io/../other/operator:v1.2.3", images[0].Digest)), `artifacts[0].name: "../other/operator"`},
		"no tag":          {layoutOf(t, referring("ghcr.io/gpuready/operator:", images[0].Digest)), `artifacts[0].tag: ""`},
		"a large index":   {packed(t, tar.Header{Name: "index.json", Typeflag: tar.TypeReg, Size: maxIndex + 1}), "at most"},
		"a foreign index": {layoutOf(t, `{"schemaVersion":2,"annotations":{"org.opencontainers.image.created":"2026-01-01T00:00:00Z"}}`), "names no images"},
		"a bad reference": {layoutOf(t, `{"schemaVersion":2,"annotations":{"org.opencontainers.image.created":"2026-01-01T00:00:00Z"},"manifests":[{"mediaType":"x","size":1,"digest":"`+images[0].Digest+`","annotations":{"io.gpuready.reference":"operator"}}]}`), "not an image with a tag"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Unpack(bytes.NewReader(test.archive), t.TempDir(), "registry.example.com/mirror")
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "archive: ")
		})
	}
	_, err = Unpack(bytes.NewReader(good.Bytes()), t.TempDir(), "registry.example.com")
	require.ErrorContains(t, err, "not a host and a path")
}

// packed returns an archive of entries, with zeros as their content.
func packed(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, h := range entries {
		require.NoError(t, out.WriteHeader(&h))
		_, err := out.Write(make([]byte, h.Size))
		require.NoError(t, err)
	}
	require.NoError(t, out.Close())
	return b.Bytes()
}

// sparse returns an archive of one file, which is a hole of the given size.
func sparse(t *testing.T, name string, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	records := ""
	for _, r := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", name}, {"GNU.sparse.realsize", strconv.FormatInt(size, 10)}} {
		rest := " " + r[0] + "=" + r[1] + "\n"
		length := len(rest) + 2 // each record has 10 to 99 bytes, or more than 100
		if length >= 100 {
			length++
		}
		records += strconv.Itoa(length) + rest
	}
	// The writer refuses such records, so the header that carries them is written as a file, and then retyped.
	block := func(h tar.Header, content string) {
		var part bytes.Buffer
		out := tar.NewWriter(&part)
		kind := h.Typeflag
		h.Typeflag, h.Size, h.Format = tar.TypeReg, int64(len(content)), tar.FormatUSTAR
		require.NoError(t, out.WriteHeader(&h))
		_, err := out.Write([]byte(content))
		require.NoError(t, err)
		require.NoError(t, out.Flush())
		raw := part.Bytes()
		raw[156] = kind
		copy(raw[148:156], "        ")
		sum := 0
		for _, c := range raw[:512] {
			sum += int(c)
		}
		copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
		b.Write(raw)
	}
	block(tar.Header{Name: "PaxHeaders/x", Typeflag: tar.TypeXHeader}, records)
	sparseMap := make([]byte, 512)
	copy(sparseMap, "1\n"+strconv.FormatInt(size, 10)+"\n0\n")
	block(tar.Header{Name: "x", Typeflag: tar.TypeReg}, string(sparseMap))
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

// referring returns an index with one image under a name.
func referring(reference, digest string) string {
	return `{"schemaVersion":2,"annotations":{"org.opencontainers.image.created":"2026-01-01T00:00:00Z","org.opencontainers.image.version":"v1.2.3","org.opencontainers.image.revision":"` +
		strings.Repeat("a", 40) + `"},"manifests":[{"mediaType":"x","size":1,"digest":"` + digest + `","annotations":{"io.gpuready.reference":"` + reference + `"}}]}`
}

// layoutOf returns an archive with an index.
func layoutOf(t *testing.T, index string) []byte {
	t.Helper()
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, f := range [][2]string{{layoutFile, layoutText}, {indexFile, index}} {
		require.NoError(t, writeFile(out, f[0], int64(len(f[1])), strings.NewReader(f[1])))
	}
	require.NoError(t, out.Close())
	return b.Bytes()
}

// FuzzUnpack checks that no archive writes outside its folder, or yields a release that does not parse.
func FuzzUnpack(f *testing.F) {
	for _, name := range []string{indexFile, "../x", "/x", blobsFolder + strings.Repeat("0", 64)} {
		var b bytes.Buffer
		out := tar.NewWriter(&b)
		if writeFile(out, name, 2, strings.NewReader("{}")) == nil && out.Close() == nil {
			f.Add(b.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		around := t.TempDir()
		dir := filepath.Join(around, "in")
		_, err := Unpack(bytes.NewReader(data), dir, "registry.example.com/mirror")
		entries, readErr := os.ReadDir(around)
		require.NoError(t, readErr)
		require.Len(t, entries, 1)
		if err == nil {
			_, err = contents.Read(dir)
			require.NoError(t, err)
		}
	})
}
