package quickstart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// Names under which a release is published.
const (
	registryHost = "ghcr.io"
	repository   = registryHost + "/gpuready"
	filesHost    = "github.com"
	filesPath    = "/gpuready/gpuready/releases/download/"
)

// treeHost is the registry in the names of the images that chart and manifests of a clone have.
const treeHost = "docker.io"

// published is this tree as it is published: a registry with images and chart, and files.
type published struct {
	Version         string // "v0.2.0"
	Registry, Files http.Handler
}

// publish publishes the images, chart and manifests that were built in a folder.
func publish(t *testing.T, bin string) published {
	t.Helper()
	p := published{Registry: registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())))}
	local := httptest.NewServer(p.Registry)
	defer local.Close()
	to := local.Listener.Addr().String() + "/gpuready/"
	archives, err := filepath.Glob(filepath.Join(bin, "images", "*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, archives, "make images")
	for _, archive := range archives {
		image, err := tarball.ImageFromPath(archive, nil)
		require.NoError(t, err)
		manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
		require.NoError(t, err)
		require.NotEmpty(t, manifest)
		built, err := name.NewTag(manifest[0].RepoTags[0])
		require.NoError(t, err)
		p.Version = built.TagStr()
		push(t, to+path.Base(built.RepositoryStr())+":"+p.Version, image)
	}
	number := strings.TrimPrefix(p.Version, "v")
	pushChart(t, to+"charts/gpuready:"+number, filepath.Join(bin, "charts/gpuready-"+number+".tgz"))
	p.Files = files(p.Version)
	return p
}

func push(t *testing.T, to string, image v1.Image) {
	t.Helper()
	ref, err := name.NewTag(to, name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, image))
}

// ownImage matches an image of this tree in a manifest: of a container, or as the value of a variable.
var ownImage = regexp.MustCompile(`((?:image|value): "?)(gpuready/[a-z-]+:v)`)

// files serves the manifests of a version as files of its release.
func files(version string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		folder, file := path.Split(r.URL.Path)
		for _, dir := range []string{"", "examples"} {
			text, err := os.ReadFile(filepath.Join("../../deployments/static", dir, file))
			if err == nil && folder == filesPath+version+"/" {
				_, _ = w.Write(ownImage.ReplaceAll(text, []byte("${1}"+registryHost+"/${2}")))
				return
			}
		}
		http.NotFound(w, r)
	})
}

// pushChart pushes a packaged chart, with the repository of the published images, as `helm push` does.
func pushChart(t *testing.T, to, file string) {
	t.Helper()
	definition, packed := publishedChart(t, file)
	config, err := yaml.YAMLToJSON(definition)
	require.NoError(t, err)
	ref, err := name.NewTag(to, name.Insecure)
	require.NoError(t, err)
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, layer := range []v1.Layer{
		static.NewLayer(config, "application/vnd.cncf.helm.config.v1+json"),
		static.NewLayer(packed, "application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
	} {
		require.NoError(t, remote.WriteLayer(ref.Repository, layer))
		d, err := partial.Descriptor(layer)
		require.NoError(t, err)
		m.Layers = append(m.Layers, *d)
	}
	m.Config, m.Layers = m.Layers[0], m.Layers[1:]
	text, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, remote.Put(ref, manifest(text)))
}

// manifest is the text of the manifest of an OCI artifact.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)        { return m, nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// publishedChart returns the Chart.yaml of a packaged chart, and the chart packed again with the repository
// of the published images.
func publishedChart(t *testing.T, file string) (definition, packed []byte) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err, "make chart")
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	in := tar.NewReader(unzipped)
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	out := tar.NewWriter(zipped)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		switch h.Name {
		case "gpuready/Chart.yaml":
			definition = text
		case "gpuready/values.yaml":
			const tree = "\n  repository: gpuready\n"
			require.Equal(t, 1, bytes.Count(text, []byte(tree)))
			text = bytes.Replace(text, []byte(tree), []byte("\n  repository: "+repository+"\n"), 1)
		}
		h.Size = int64(len(text))
		require.NoError(t, out.WriteHeader(h))
		_, err = out.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, out.Close())
	require.NoError(t, zipped.Close())
	require.NotEmpty(t, definition)
	return definition, b.Bytes()
}
