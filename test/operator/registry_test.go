package operator

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

const registryPort = 5000

// hub is a registry that nodes, pods and this process can reach.
type hub struct {
	Host    string // "10.88.0.1:5000"
	handler http.Handler
	image   v1.Image // the image to push; stands in for driver containers and the Driver Toolkit
}

// startRegistry starts a registry in the control plane's network, and configures the nodes'
// runtimes to pull from it. It serves plain HTTP.
func (s *suite) startRegistry(t *testing.T) *hub {
	t.Helper()
	l, err := s.Listen(t.Context(), registryPort)
	require.NoError(t, err)
	h := &hub{Host: fmt.Sprintf("%s:%d", cluster.PlaneIP, registryPort), image: standin(t),
		handler: registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))}
	server := &http.Server{Handler: h.handler}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	for _, n := range s.Nodes {
		s.WriteFile(t, n.Name, "/etc/containerd/certs.d/"+h.Host+"/hosts.toml",
			fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", h.Host))
	}
	return h
}

// RoundTrip connects this process, which is in another network, to the registry.
func (h *hub) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &memoryResponse{header: http.Header{}, status: http.StatusOK}
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	h.handler.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body), Request: r, ContentLength: int64(w.body.Len())}, nil
}

// memoryResponse is an http.ResponseWriter that writes into memory.
type memoryResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *memoryResponse) Header() http.Header         { return a.header }
func (a *memoryResponse) WriteHeader(status int)      { a.status = status }
func (a *memoryResponse) Write(p []byte) (int, error) { return a.body.Write(p) }

// push pushes the stand-in to the registry by a name such as "nvidia/driver:580.1-…".
func (h *hub) push(t *testing.T, image string) string {
	t.Helper()
	return h.pushImage(t, image, h.image)
}

// pushImage pushes an image to the registry by a name.
func (h *hub) pushImage(t *testing.T, image string, content v1.Image) string {
	t.Helper()
	full := h.Host + "/" + image
	ref, err := name.ParseReference(full, name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, content, remote.WithTransport(h)))
	return full
}

// load imports the stand-in on every node by a name that no registry has.
func (h *hub) load(t *testing.T, s *suite, image string) {
	t.Helper()
	tag, err := name.NewTag(image)
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "standin.tar")
	require.NoError(t, tarball.WriteToFile(archive, tag, h.image))
	for _, n := range s.Nodes {
		require.NoError(t, n.Import(t.Context(), archive))
	}
}

// standin returns the driver simulator's image plus a driver container's programs and a
// shell, which the Driver Toolkit's image has too.
func standin(t *testing.T) v1.Image {
	t.Helper()
	bin := os.Getenv("GPUREADY_E2E")
	base, err := tarball.ImageFromPath(filepath.Join(bin, "images/driver-simulator.tar"), nil)
	require.NoError(t, err)
	program, err := os.ReadFile(filepath.Join(bin, "standin"))
	require.NoError(t, err)
	shell, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err, "install busybox-static")
	layer := layerOf(t, map[string][]byte{
		"usr/local/bin/nvidia-driver": program, "usr/local/bin/ocp_dtk_entrypoint": program, "usr/bin/bash": program, "usr/bin/busybox": shell,
	}, map[string]string{"usr/bin/sh": "busybox", "usr/bin/sleep": "busybox", "usr/bin/echo": "busybox"})
	image, err := mutate.AppendLayers(base, layer)
	require.NoError(t, err)
	return image
}

// layerOf returns a layer of programs and links, by their paths.
func layerOf(t *testing.T, files map[string][]byte, links map[string]string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o755, Size: int64(len(files[path]))}))
		_, err := w.Write(files[path])
		require.NoError(t, err)
	}
	for _, path := range slices.Sorted(maps.Keys(links)) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: links[path]}))
	}
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	require.NoError(t, err)
	return layer
}
