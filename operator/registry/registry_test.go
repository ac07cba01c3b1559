package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const tag = "nvidia/driver:535-5.15.0-1042-aws-ubuntu22.04"

// newQuietRegistry returns a registry with one image that logs nothing.
func newQuietRegistry(t *testing.T) http.Handler {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	image, err := random.Image(64, 1)
	require.NoError(t, err)
	push(t, handler, tag, image)
	return handler
}

// serve serves over TLS, and returns the server's address and its certificate.
func serve(t *testing.T, handler http.Handler) (host string, ca []byte) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return strings.TrimPrefix(server.URL, "https://"), ca
}

// trusting returns Options with an authority besides the system's.
func trusting(t *testing.T, ca []byte) Options {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o644))
	return Options{CADirs: []string{dir}}
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	return c
}

func secret(name, host, user, password string) Secret {
	return Secret{Name: name, Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil,
		`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))}}
}

func TestPresentAndAbsentOverTLSWithACustomAuthority(t *testing.T) {
	host, ca := serve(t, newQuietRegistry(t))
	o := trusting(t, ca)
	dir := o.CADirs[0]
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README"), []byte("no certificate"), 0o644))
	require.NoError(t, os.Symlink("gone", filepath.Join(dir, "broken")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "..data"), 0o755))
	for name, c := range map[string]struct {
		o Options
		a Access
	}{
		"a directory":     {o: o},
		"the question":    {a: Access{Bundle: Bundle{Name: "ns/certs", Files: map[string][]byte{"ca.crt": ca}}}},
		"not verified":    {o: Options{Insecure: []string{host}}},
		"nor by the host": {o: Options{Insecure: []string{"127.0.0.1"}}},
	} {
		c, a := client(t, c.o), c.a
		require.Equal(t, driver.Presence{State: driver.Present}, c.Lookup(t.Context(), host+"/"+tag, a), name)
		require.Equal(t, driver.Presence{State: driver.Absent, Why: "looked up without credentials"}, c.Lookup(t.Context(), host+"/"+tag+"x", a), name)
		require.Equal(t, driver.Absent, c.Lookup(t.Context(), host+"/another/driver:1", a).State, name)
	}
	got := client(t, Options{}).Lookup(t.Context(), host+"/"+tag, Access{})
	require.Equal(t, driver.Unknown, got.State)
	require.Contains(t, got.Why, "certificate")
}

// push pushes an image or an index to a registry.
func push(t *testing.T, handler http.Handler, as string, image remote.Taggable) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/"+as, name.Insecure)
	require.NoError(t, err)
	switch i := image.(type) {
	case v1.Image:
		require.NoError(t, remote.Write(ref, i))
	case v1.ImageIndex:
		require.NoError(t, remote.WriteIndex(ref, i))
	}
	server.Client().CloseIdleConnections()
	remote.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// labelledImage returns an image with a label.
func labelledImage(t *testing.T, label, value string) v1.Image {
	t.Helper()
	image, err := random.Image(64, 1)
	require.NoError(t, err)
	image, err = mutate.Config(image, v1.Config{Labels: map[string]string{label: value}})
	require.NoError(t, err)
	return image
}

func TestLabelIdentifiesOurDriverContainers(t *testing.T) {
	text, err := os.ReadFile("../../deployments/images/driver/Containerfile")
	require.NoError(t, err)
	require.Contains(t, string(text), Label+`="true"`)

	ours, theirs := labelledImage(t, Label, "580.95.05"), labelledImage(t, "maintainer", "somebody")
	attestation, err := random.Image(64, 1)
	require.NoError(t, err)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
		mutate.IndexAddendum{Add: ours, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	handler := newQuietRegistry(t)
	for as, image := range map[string]remote.Taggable{"driver:ours": ours, "driver:theirs": theirs, "driver:index": index, "driver:nothing": empty.Index} {
		push(t, handler, as, image)
	}
	var gets atomic.Int32
	host, ca := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path != "/v2/" {
			gets.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	c := client(t, trusting(t, ca))
	look := func(image string) driver.Presence { return c.Lookup(t.Context(), host+"/"+image, Access{}) }
	require.Equal(t, driver.Presence{State: driver.Present, Ours: true, Version: "580.95.05"}, look("driver:ours"))
	require.Equal(t, driver.Presence{State: driver.Present, Ours: true, Version: "580.95.05"}, look("driver:index"))
	require.Equal(t, driver.Presence{State: driver.Present}, look("driver:theirs"))
	before := gets.Load()
	require.Equal(t, driver.Presence{State: driver.Present, Ours: true, Version: "580.95.05"}, look("driver:ours"))
	require.Equal(t, before, gets.Load(), "the digest is known")
	got := look("driver:nothing")
	require.Equal(t, driver.Present, got.State)
	require.Contains(t, got.Why, "its labels cannot be read: it lists no image for Linux")
}

func TestImageWithUnreadableLabelsIsPresent(t *testing.T) {
	images := newQuietRegistry(t)
	refuse := func(pattern string, status int, body io.Reader) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, pattern) {
				w.WriteHeader(status)
				_, _ = io.Copy(w, body)
				return
			}
			images.ServeHTTP(w, r)
		})
	}
	for name, handler := range map[string]http.Handler{
		"no manifest by GET":      refuse("/manifests/", http.StatusTooManyRequests, strings.NewReader("")),
		"no configuration":        refuse("/blobs/", http.StatusForbidden, strings.NewReader("")),
		"an endless one":          refuse("/blobs/", http.StatusOK, io.LimitReader(endless{}, 64<<20)),
		"a manifest that is none": refuse("/manifests/", http.StatusOK, strings.NewReader("[]")),
	} {
		host, ca := serve(t, handler)
		got := client(t, trusting(t, ca)).Lookup(t.Context(), host+"/"+tag, Access{})
		require.Equal(t, driver.Present, got.State, "%s: %s", name, got.Why)
		require.Contains(t, got.Why, "its labels cannot be read", name)
		require.False(t, got.Ours)
		require.LessOrEqual(t, len(got.Why), maxWhy)
	}
}

// endless is an endless body.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRememberedDigestsAreBounded(t *testing.T) {
	var l labels
	for i := range 3 * maxDigests {
		l.remember(v1.Hash{Algorithm: "sha256", Hex: fmt.Sprint(i)}, "true")
	}
	require.LessOrEqual(t, len(l.values), maxDigests)
	_, known := l.recall(v1.Hash{Algorithm: "sha256", Hex: fmt.Sprint(3*maxDigests - 1)})
	require.True(t, known)
}

func TestPlainHTTPOnlyForInsecureRegistries(t *testing.T) {
	server := httptest.NewServer(newQuietRegistry(t))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	require.Equal(t, driver.Present, client(t, Options{Insecure: []string{host}}).Lookup(t.Context(), host+"/"+tag, Access{}).State)
	got := client(t, Options{}).Lookup(t.Context(), host+"/"+tag, Access{})
	require.Equal(t, driver.Unknown, got.State)
	require.Contains(t, got.Why, "HTTPS only")
}

// basic requires a user and a password, and responds 401 otherwise.
func basic(handler http.Handler, wrong *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "puller" || password != "secret" {
			if ok {
				wrong.Add(1)
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func TestPullSecrets(t *testing.T) {
	var wrong atomic.Int32
	host, ca := serve(t, basic(newQuietRegistry(t), &wrong))
	c := client(t, trusting(t, ca))
	old := Secret{Name: "old", Data: map[string][]byte{corev1.DockerConfigKey: fmt.Appendf(nil, `{%q:{"username":"puller","password":"secret"}}`, "https://"+host+"/v1/")}}
	for name, secrets := range map[string][]Secret{
		"dockerconfigjson":          {secret("a", host, "puller", "secret")},
		"dockercfg":                 {old},
		"the second one is let in":  {secret("a", host, "puller", "guess"), secret("b", host, "puller", "secret")},
		"one that cannot be read":   {{Name: "broken", Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{")}}, secret("b", host, "puller", "secret")},
		"one for another registry":  {secret("a", "elsewhere.example", "x", "y"), secret("b", host, "puller", "secret")},
		"the more special is first": {secret("a", host, "puller", "guess"), secret("b", host+"/nvidia", "puller", "secret")},
	} {
		wrong.Store(0)
		require.Equal(t, driver.Present, c.Lookup(t.Context(), host+"/"+tag, Access{Secrets: secrets}).State, name)
		if name == "the more special is first" {
			require.Zero(t, wrong.Load())
		}
		require.Equal(t, driver.Presence{State: driver.Absent}.State, c.Lookup(t.Context(), host+"/"+tag+"x", Access{Secrets: secrets}).State, name)
	}
	broken := Secret{Name: "broken", Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"a":{"auth":"hunter2"}}}`)}}
	for name, c2 := range map[string]struct {
		secrets []Secret
		why     string
	}{
		"none":           {nil, "not allowed to ask"},
		"wrong":          {[]Secret{secret("a", host, "puller", "guess")}, "not allowed to ask"},
		"unreadable":     {[]Secret{broken}, "pull secret broken: an entry cannot be decoded"},
		"of other types": {[]Secret{{Name: "tls"}}, "pull secret tls: it has neither"},
	} {
		got := c.Lookup(t.Context(), host+"/"+tag, Access{Secrets: c2.secrets})
		require.Equal(t, driver.Unknown, got.State, name)
		require.Contains(t, got.Why, c2.why, name)
		require.NotContains(t, got.Why, "hunter2")
		require.LessOrEqual(t, len(got.Why), maxWhy)
	}
}

func TestTokens(t *testing.T) {
	images := newQuietRegistry(t)
	var host string
	mux := http.NewServeMux()
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "puller" || password != "secret" || r.URL.Query().Get("scope") != "repository:nvidia/driver:pull" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "let-me-in"})
	})
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer let-me-in" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="here"`, host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	})
	host, ca := serve(t, mux)
	c := client(t, trusting(t, ca))
	require.Equal(t, driver.Present, c.Lookup(t.Context(), host+"/"+tag, Access{Secrets: []Secret{secret("a", host, "puller", "secret")}}).State)
	require.Equal(t, driver.Absent, c.Lookup(t.Context(), host+"/"+tag+"x", Access{Secrets: []Secret{secret("a", host, "puller", "secret")}}).State)
	require.Equal(t, driver.Unknown, c.Lookup(t.Context(), host+"/"+tag, Access{}).State)
}

func TestTheProxyOfTheEnvironment(t *testing.T) {
	target, ca := serve(t, newQuietRegistry(t))
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.Host)
		connect(w, target)
	}))
	defer proxy.Close()
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "inside.example.com")
	c := client(t, trusting(t, ca))
	require.Equal(t, driver.Present, c.Lookup(t.Context(), "example.com/"+tag, Access{}).State)
	require.Equal(t, "CONNECT example.com:443", asked.Load())
	asked.Store("")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, driver.Unknown, c.Lookup(ctx, "inside.example.com/"+tag, Access{}).State)
	require.Empty(t, asked.Load())
}

// connect handles CONNECT as a proxy does.
func connect(w http.ResponseWriter, target string) {
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
	_, _ = io.Copy(from, to)
}

// fixedResponse returns a registry with one response to all requests for manifests.
func fixedResponse(status int, kind, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func TestOtherServersResponsesAreUnknown(t *testing.T) {
	images := newQuietRegistry(t)
	coded := func(code string) string { return fmt.Sprintf(`{"errors":[{"code":%q,"message":"m"}]}`, code) }
	for name, c := range map[string]struct {
		handler http.Handler
		state   driver.PresenceState
		why     string
	}{
		"no such manifest":     {fixedResponse(404, "application/json", coded("MANIFEST_UNKNOWN")), driver.Absent, ""},
		"no such repository":   {fixedResponse(404, "application/json", coded("NAME_UNKNOWN")), driver.Absent, ""},
		"Harbor":               {fixedResponse(404, "application/json", coded("NOT_FOUND")), driver.Absent, ""},
		"a web server":         {fixedResponse(404, "text/html", "<h1>Not Found</h1>"), driver.Unknown, "not in a registry's words"},
		"denied":               {fixedResponse(403, "application/json", coded("DENIED")), driver.Unknown, "not allowed"},
		"too many":             {fixedResponse(429, "application/json", coded("TOOMANYREQUESTS")), driver.Unknown, "429"},
		"broken":               {fixedResponse(500, "text/plain", "oops"), driver.Unknown, "500"},
		"moving":               {fixedResponse(503, "text/plain", "later"), driver.Unknown, "503"},
		"says yes to anything": {fixedResponse(200, "text/html", "<h1>Welcome</h1>"), driver.Unknown, ""},
		"garbage":              {fixedResponse(404, "application/json", strings.Repeat("\x00", 1<<20)), driver.Unknown, ""},
		"knows no HEAD": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			images.ServeHTTP(w, r)
		}), driver.Present, ""},
		"HEAD without the digest": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				return
			}
			images.ServeHTTP(w, r)
		}), driver.Present, ""},
		"not even HTTP": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.6\r\n")
				_ = conn.Close()
			}
		}), driver.Unknown, "malformed"},
	} {
		host, ca := serve(t, c.handler)
		got := client(t, trusting(t, ca)).Lookup(t.Context(), host+"/"+tag, Access{})
		require.Equal(t, c.state, got.State, "%s: %s", name, got.Why)
		require.Contains(t, got.Why, c.why, name)
	}
}

func TestSilentRegistryHitsTheDeadline(t *testing.T) {
	release := make(chan struct{})
	host, ca := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer close(release)
	c := client(t, trusting(t, ca))
	c.deadline = 50 * time.Millisecond
	got := c.Lookup(t.Context(), host+"/"+tag, Access{})
	require.Equal(t, driver.Unknown, got.State)
	require.Contains(t, got.Why, "deadline")
}

func TestInvalidReferencesAreUnknown(t *testing.T) {
	c := client(t, Options{})
	require.Contains(t, c.Lookup(t.Context(), "No Image", Access{}).Why, "is no image")
	_, err := New(Options{CADirs: []string{"/does/not/exist"}})
	require.ErrorContains(t, err, "/does/not/exist")
}

func TestSecretEntriesThatMatchARegistry(t *testing.T) {
	for _, c := range []struct {
		key, image string
		covers     bool
	}{
		{"nvcr.io", "nvcr.io/nvidia/driver", true},
		{"https://nvcr.io/v2/", "nvcr.io/nvidia/driver", true},
		{"nvcr.io/nvidia", "nvcr.io/nvidia/driver", true},
		{"nvcr.io/other", "nvcr.io/nvidia/driver", false},
		{"nvcr.io:443", "nvcr.io/nvidia/driver", false},
		{"*.azurecr.io", "team.azurecr.io/driver", true},
		{"*.azurecr.io", "a.team.azurecr.io/driver", false},
		{"https://index.docker.io/v1/", "gpuready/driver", true},
		{"docker.io", "docker.io/gpuready/driver", true},
		{"registry:5000", "registry:5000/x", true},
		{"registry", "registry:5000/x", false},
		{"", "nvcr.io/x", false},
		{"[", "nvcr.io/x", false},
		{"nvcr.[io", "nvcr.io/x", false},
		{"::", "nvcr.io/x", false},
	} {
		repository, err := name.NewRepository(c.image)
		require.NoError(t, err)
		require.Equal(t, c.covers, parsePattern(c.key).matches(repository), "%s for %s", c.key, c.image)
	}
}

func FuzzSecretsNeverPanic(f *testing.F) {
	f.Add([]byte(`{"auths":{"nvcr.io":{"auth":"YTpi"}}}`), []byte(`{"nvcr.io":{}}`))
	f.Add([]byte(`{"auths":null}`), []byte(`{"https://[::1":{"username":"u"}}`))
	repository, err := name.NewRepository("nvcr.io/nvidia/driver")
	require.NoError(f, err)
	f.Fuzz(func(_ *testing.T, config, cfg []byte) {
		keys, _ := credentialsFor(repository, []Secret{
			{Name: "a", Data: map[string][]byte{corev1.DockerConfigJsonKey: config}}, {Name: "b", Data: map[string][]byte{corev1.DockerConfigKey: cfg}}})
		for _, key := range keys {
			_ = authn.FromConfig(key)
		}
	})
}
