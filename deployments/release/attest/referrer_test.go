package attest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
)

// lyingRegistry serves one manifest, and says in the headers that it has another digest.
func lyingRegistry(t *testing.T, manifest, digest string) Registry {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return
		}
		w.Header().Set("Content-Type", string(types.DockerManifestSchema1Signed))
		w.Header().Set("Docker-Content-Digest", digest)
		_, err := w.Write([]byte(manifest))
		if err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(s.Close)
	return Registry{Prefix: strings.TrimPrefix(s.URL, "http://") + "/gpuready"}
}

func TestTheDigestInAHeaderIsNotBelieved(t *testing.T) {
	claimed := hash([]byte("{}")).String()
	other := `{"schemaVersion":2}`
	r := lyingRegistry(t, other, claimed)
	ref, err := r.Digest("operator", claimed)
	require.NoError(t, err)
	_, err = r.Manifest(t.Context(), ref)
	var wrong *DigestError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, DigestError{Expected: claimed, Found: hash([]byte(other)).String()}, *wrong)

	tag, err := r.Tag("operator", "v0.2.0")
	require.NoError(t, err)
	found, err := r.Resolve(t.Context(), tag)
	require.NoError(t, err)
	require.Equal(t, hash([]byte(other)), found)
}
