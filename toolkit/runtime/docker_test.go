package runtime

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

func daemon(t *testing.T, answer http.HandlerFunc) *host.Root {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	require.NoError(t, err)
	server := &http.Server{Handler: answer} //nolint:gosec // it serves this test
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { require.NoError(t, server.Close()); <-done })
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

func respond(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(text)) }
}

func TestDockerReturnsItsAbilities(t *testing.T) {
	root := daemon(t, respond(`{"ServerVersion": "28.5.1", "DefaultRuntime": "runc", "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "/x"}}, "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}`))
	a, err := QueryDocker(t.Context(), root, "/docker.sock")
	require.NoError(t, err)
	require.Equal(t, []string{"nvidia", "runc"}, a.Handlers)
	require.Equal(t, "runc", a.Default)
	require.Equal(t, "docker", a.Name)
	require.Equal(t, "28.5.1", a.Version)
	require.True(t, *a.CDI)
	require.Equal(t, []string{"/etc/cdi", "/var/run/cdi"}, a.CDIDirs)
}

func TestADaemonWithoutDirectoriesHasNoCDI(t *testing.T) {
	for _, text := range []string{`{"ServerVersion": "27.0.1"}`, `{"CDISpecDirs": null}`, `{"CDISpecDirs": []}`} {
		a, err := QueryDocker(t.Context(), daemon(t, respond(text)), "/docker.sock")
		require.NoError(t, err)
		require.False(t, *a.CDI)
	}
}

func TestUnusableDockerResponsesAreErrorsWithARemedy(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no JSON":  respond("<html>"),
		"too long": respond(`{"ServerVersion": "` + strings.Repeat("1", maxResponse) + `"}`),
		"an error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			a, err := QueryDocker(t.Context(), daemon(t, answer), "/docker.sock")
			require.Error(t, err)
			require.Contains(t, a.Message, "--runtime-socket")
			require.Equal(t, "/docker.sock", a.Socket)
		})
	}
	_, err := QueryDocker(t.Context(), daemon(t, respond("{}")), "/other.sock")
	require.Error(t, err)
}

func TestHostileNamesAreIgnored(t *testing.T) {
	a := convertDocker(dockerInfo{ServerVersion: "1\n2", DefaultRuntime: "\x1b[31m", CDISpecDirs: []string{"relative", "/a\nb", "/etc/cdi"}})
	require.NotContains(t, a.Version, "\n")
	require.Empty(t, a.Default)
	require.Equal(t, []string{"/etc/cdi"}, a.CDIDirs)
}
