package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// server is a registry that keeps the blobs of each repository apart, as real ones do, mounts them,
// and counts what is pushed.
type server struct {
	*httptest.Server
	mutex    sync.Mutex
	blobs    map[string][]byte         // by digest
	has      map[string]bool           // "repository digest"
	uploads  map[string]int            // by digest: how often its content was sent
	mounts   int                       // number of mounted blobs
	puts     map[string]int            // by path: manifests
	requests int                       // all of them
	refuse   func(*http.Request) error // makes requests fail
}

func newServer(t *testing.T) *server {
	s := &server{blobs: map[string][]byte{}, has: map[string]bool{}, uploads: map[string]int{}, puts: map[string]int{}}
	next := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithBlobHandler(s))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mutex.Lock()
		s.requests++
		var refused error
		if s.refuse != nil {
			refused = s.refuse(r)
		}
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && refused == nil {
			s.puts[r.URL.Path]++
		}
		mount := r.URL.Query().Get("mount")
		mounted := r.Method == http.MethodPost && mount != "" && s.has[r.URL.Query().Get("from")+" "+mount]
		if mounted {
			s.mounts++
			s.has[repository(r.URL.Path)+" "+mount] = true
		}
		s.mutex.Unlock()
		switch {
		case refused != nil:
			http.Error(w, refused.Error(), http.StatusForbidden)
		case mounted:
			w.WriteHeader(http.StatusCreated)
		default:
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func repository(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/v2/"), "/blobs/")
	return name
}

func (s *server) blob(repo string, h v1.Hash) ([]byte, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.has[repo+" "+h.String()] {
		return nil, ggcr.ErrNotFound
	}
	return s.blobs[h.String()], nil
}

func (s *server) Get(_ context.Context, repo string, h v1.Hash) (io.ReadCloser, error) {
	data, err := s.blob(repo, h)
	return io.NopCloser(bytes.NewReader(data)), err
}

func (s *server) Stat(_ context.Context, repo string, h v1.Hash) (int64, error) {
	data, err := s.blob(repo, h)
	return int64(len(data)), err
}

func (s *server) Put(_ context.Context, repo string, h v1.Hash, r io.ReadCloser) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	repo = strings.TrimSuffix(repo, "/blobs") // the handler's mistake for uploads
	s.blobs[h.String()], s.has[repo+" "+h.String()] = data, true
	s.uploads[h.String()]++
	return nil
}

// makeRelease writes a release with two images, of two platforms each, that share a layer.
func makeRelease(t *testing.T, registry, content string) string {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(filepath.Join(dir, contents.Layout), empty.Index)
	require.NoError(t, err)
	layer := func(text string) v1.Layer { return static.NewLayer([]byte(text), types.OCILayer) }
	base := layer(strings.Repeat("base", 300_000))
	r := contents.Release{
		Schema: contents.Schema, Version: "v1.2.3", Revision: strings.Repeat("a", 40), Created: time.Unix(0, 0).UTC(),
		Registry: registry + "/gpuready",
	}
	for _, name := range []string{"operator", "toolkit"} {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, arch := range []string{"amd64", "arm64"} {
			image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), base, layer(name+arch+content))
			require.NoError(t, err)
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		}
		require.NoError(t, path.AppendIndex(index))
		digest, err := index.Digest()
		require.NoError(t, err)
		size, err := index.Size()
		require.NoError(t, err)
		r.Artifacts = append(r.Artifacts, contents.Artifact{Name: name, Kind: contents.Image, Tag: "v1.2.3", Digest: digest.String(), MediaType: string(types.OCIImageIndex), Size: size})
	}
	data, err := r.Bytes()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, contents.File), data, 0o644))
	return dir
}

// start starts a registry and makes a release for it.
func start(t *testing.T) (*server, *Pusher) {
	t.Helper()
	s := newServer(t)
	return s, newPusher(t, makeRelease(t, s.Listener.Addr().String(), ""))
}

func newPusher(t *testing.T, dir string) *Pusher {
	t.Helper()
	p, err := New(Options{Dir: dir, Jobs: 2, Logf: func(artifact, format string, args ...any) { t.Logf(artifact+": "+format, args...) }})
	require.NoError(t, err)
	return p
}

// push plans and pushes.
func (s *server) push(ctx context.Context, p *Pusher) error {
	items, err := p.Plan(ctx, false)
	if err != nil {
		return err
	}
	return p.Push(ctx, items)
}

// requireWhole requires that the registry has the whole release, and that nothing was pushed twice.
func (s *server) requireWhole(t *testing.T, p *Pusher) {
	t.Helper()
	items, err := p.Plan(t.Context(), true)
	require.NoError(t, err)
	for _, i := range items {
		require.Equal(t, Present, i.State, i.Name)
		require.Zero(t, i.Absent)
		for _, b := range i.Blobs {
			there, err := p.exists(t.Context(), i.repository, b)
			require.NoError(t, err)
			require.True(t, there, "%s: %s", i.Name, b.Digest)
		}
	}
	for digest, n := range s.uploads {
		require.Equal(t, 1, n, "uploads of %s", digest)
	}
	for path, n := range s.puts {
		require.Equal(t, 1, n, "uploads of %s", path)
	}
}

func TestNothingIsPushedTwice(t *testing.T) {
	s, p := start(t)
	require.NoError(t, s.push(t.Context(), p))
	s.requireWhole(t, p)
	require.Equal(t, 1, s.mounts, "toolkit takes the base from operator's repository")
	before := s.requests
	require.NoError(t, s.push(t.Context(), p))
	require.Equal(t, len(p.Release.Artifacts), (s.requests-before)/2, "a ping and a HEAD of the tag for each artifact")
}

func TestAPushThatWasKilledGoesOn(t *testing.T) {
	for stop := 1; ; stop++ { // ends when a push has fewer changes of the registry
		s, p := start(t)
		p.Jobs = 1 // else an upload that the killed one did not wait for may succeed at the end
		ctx, kill := context.WithCancel(t.Context())
		changes := 0
		s.refuse = func(r *http.Request) error {
			if r.Method == http.MethodPut {
				if changes++; changes == stop {
					kill()
					return errors.New("killed")
				}
			}
			return nil
		}
		err := s.push(ctx, p)
		kill()
		if err == nil {
			require.Greater(t, stop, 8)
			return
		}
		s.mutex.Lock()
		s.refuse = nil
		s.mutex.Unlock()
		require.NoError(t, s.push(t.Context(), p), "after change %d", stop)
		s.requireWhole(t, p)
	}
}

func TestATagThatWasMovedIsRefused(t *testing.T) {
	s, p := start(t)
	require.NoError(t, s.push(t.Context(), p))
	other := newPusher(t, makeRelease(t, s.Listener.Addr().String(), "changed"))
	uploads, puts := len(s.uploads), len(s.puts)
	err := s.push(t.Context(), other)
	for _, a := range p.Release.Artifacts {
		require.ErrorContains(t, err, fmt.Sprintf("%s/gpuready/%s:v1.2.3 is %s in the registry", s.Listener.Addr(), a.Name, a.Digest))
	}
	for _, a := range other.Release.Artifacts {
		require.ErrorContains(t, err, a.Digest+" in this release: released versions do not change; raise the version")
	}
	require.Len(t, s.uploads, uploads, "nothing was pushed")
	require.Len(t, s.puts, puts)
}

func TestATagThatIsMovedDuringAPushIsRefused(t *testing.T) {
	s, p := start(t)
	items, err := p.Plan(t.Context(), false)
	require.NoError(t, err)
	other := newPusher(t, makeRelease(t, s.Listener.Addr().String(), "changed"))
	require.NoError(t, s.push(t.Context(), other))
	require.ErrorContains(t, p.Push(t.Context(), items), "released versions do not change")
}

func TestADryRunListsWhatIsMissing(t *testing.T) {
	s, p := start(t)
	items, err := p.Plan(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, s.uploads)
	require.Empty(t, s.puts)
	require.Len(t, items, 2)
	for _, i := range items {
		require.Equal(t, Missing, i.State)
		require.Equal(t, i.Bytes, i.Absent)
		require.Len(t, i.Blobs, 1+2+2+2+1, "the base, two layers, two configurations and manifests, the index")
		require.True(t, i.Blobs[len(i.Blobs)-1].Manifest)
	}
	require.NoError(t, s.push(t.Context(), p))
	// Somebody deletes the tag: the blobs are still there.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL+"/v2/gpuready/toolkit/manifests/v1.2.3", nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	items, err = p.Plan(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, Present, items[0].State)
	require.Equal(t, Missing, items[1].State)
	require.Zero(t, items[1].Absent, "its blobs and manifests are in the registry")
}

func TestADamagedLayoutIsNotPushed(t *testing.T) {
	s, p := start(t)
	damage := func(digest string) {
		file := filepath.Join(p.Dir, contents.Layout, "blobs/sha256", strings.TrimPrefix(digest, "sha256:"))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		data[len(data)/2] ^= 1
		require.NoError(t, os.WriteFile(file, data, 0o644))
	}
	items, err := p.Plan(t.Context(), false)
	require.NoError(t, err)
	damage(items[0].Blobs[0].Digest)
	require.ErrorContains(t, p.Push(t.Context(), items), "blob "+items[0].Blobs[0].Digest)
	require.Empty(t, s.puts, "no manifest refers to a blob that is not there")
	damage(items[1].Digest)
	_, err = p.Plan(t.Context(), false)
	require.ErrorContains(t, err, "toolkit: manifest "+items[1].Digest+" of the layout is damaged")
}

func TestPlainHTTPIsForThisHostOnly(t *testing.T) {
	s, local := start(t)
	_, err := local.Plan(t.Context(), false)
	require.NoError(t, err)
	// Addresses of private networks are reached by plain HTTP if the library is left alone.
	o := Options{Dir: makeRelease(t, "10.0.0.1:5000", ""), Transport: reroute{s.Listener.Addr().String()}}
	p, err := New(o)
	require.NoError(t, err)
	_, err = p.Plan(t.Context(), false)
	require.ErrorContains(t, err, "10.0.0.1:5000 would be reached without TLS")
	o.Insecure = true
	p, err = New(o)
	require.NoError(t, err)
	_, err = p.Plan(t.Context(), false)
	require.NoError(t, err)
}

// reroute sends plain requests to an address, and fails others.
type reroute struct{ to string }

func (r reroute) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "http" {
		return nil, errors.New("no TLS here")
	}
	request = request.Clone(request.Context())
	request.URL.Host = r.to
	return http.DefaultTransport.RoundTrip(request)
}
