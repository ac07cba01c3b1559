package image

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/registry"
)

// maxCost is the memory that an answer of a registry may cost, in bytes.
const maxCost = 64 << 20

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// compressZeros returns n zeros, compressed.
func compressZeros(t *testing.T, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.CopyN(z, zeros{}, n)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

// requireCheap runs f and bounds what it allocates.
func requireCheap(t *testing.T, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxCost))
}

func TestAnAnswerOfARegistryCostsLittleMemory(t *testing.T) {
	bomb := compressZeros(t, 1<<30)
	manifest := func(config []byte, size int64) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"size":%d,"digest":"sha256:%x"},"layers":[]}`,
			types.OCIManifestSchema1, types.OCIConfigJSON, size, sha256.Sum256(config))
	}
	for name, c := range map[string]struct {
		manifest, config []byte
		encoded          bool // the configuration is sent compressed, though nobody asked for that
		token            bool
		size             int64 // of the configuration, by the manifest
	}{
		"a manifest":                      {manifest: bomb},
		"a token":                         {token: true},
		"a configuration":                 {config: bomb, size: 1 << 30},
		"a configuration of another size": {config: bomb, encoded: true, size: 1000},
		"a compressed configuration":      {config: bomb, encoded: true, size: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			var server *httptest.Server
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				send := func(data []byte, encoded bool) {
					if encoded {
						w.Header().Set("Content-Encoding", "gzip")
						_, _ = w.Write(data)
						return
					}
					z, err := gzip.NewReader(bytes.NewReader(data))
					if err == nil {
						_, _ = io.Copy(w, z)
					}
				}
				switch {
				case q.URL.Path == "/token":
					send(bomb, false)
				case c.token:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
				case strings.Contains(q.URL.Path, "/manifests/"):
					w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
					if c.manifest != nil {
						send(c.manifest, false)
						return
					}
					_, _ = w.Write(manifest(c.config, c.size))
				case strings.Contains(q.URL.Path, "/blobs/"):
					send(c.config, c.encoded)
				}
			}))
			t.Cleanup(server.Close)
			host := strings.TrimPrefix(server.URL, "http://")
			requireCheap(t, func() {
				_, err := Registry{Insecure: []string{host}}.HasModules(t.Context(), host+"/driver:1", Modules{})
				require.Error(t, err)
				require.NotErrorIs(t, err, ErrAbsent)
				if c.manifest != nil || c.size > registry.MaxDocument {
					require.ErrorIs(t, err, registry.ErrTooLarge)
				}
			})
		})
	}
}

// TestALayerAsksForLittleMemory has a layer of one frame of zstd that asks for a window of 512 MiB.
func TestALayerAsksForLittleMemory(t *testing.T) {
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(zstd.MaxWindowSize), zstd.WithSingleSegment(false))
	require.NoError(t, err)
	_, err = io.CopyN(z, zeros{}, 1<<20)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	layer := static.NewLayer(b.Bytes(), types.OCILayerZStd)
	requireCheap(t, func() {
		content, err := uncompress(layer)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, content)
		require.ErrorIs(t, err, zstd.ErrWindowSizeExceeded)
		require.NoError(t, content.Close())
	})
}
