package quickstart

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// goal limits the time from the first command of the page to the end of the CUDA job.
const goal = 5 * time.Minute

// registryPort is the port at which nodes reach the registry.
const registryPort = 5000

// TestQuickstart runs the commands of docs/install.md as they are printed, and with the names of a release,
// on clusters whose nodes have no image. Names of hosts lead to this process.
func TestQuickstart(t *testing.T) {
	bin := os.Getenv("GPUREADY_E2E")
	if bin == "" {
		t.Skip("make e2e-quickstart runs this")
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	printed := string(text)
	released := renamed(t, printed)
	for _, c := range []struct {
		name, page string
		sections   []string                                      // the first one ends with the CUDA job
		then       func(t *testing.T, s *e2e.Suite, p published) // may be nil
	}{
		{"HelmFromAClone", printed, []string{"Five minutes without a GPU", "Remove the trial"}, nil},
		{"Helm", released, []string{"Five minutes without a GPU", "Remove the trial"}, nil},
		{"Manifests", released, []string{"The same by manifests"}, runsFromAnArchive},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := e2e.Start(t, cluster.Config{})
			defer describeFailure(t, s)
			p := publish(t, bin)
			pulled := serveNodes(t, s, p.Registry)
			env := environment(t, s, p, bin)
			began := time.Now()
			s.PlayText(t, c.page, "install.md", c.sections[0], env...)
			took := time.Since(began)
			require.Positive(t, pulled.Load(), "the nodes pull from the registry")
			t.Logf("quickstart, %s: %.0f s from the first command to the CUDA job; goal: %.0f s", c.name, took.Seconds(), goal.Seconds())
			require.Less(t, took, goal)
			for _, section := range c.sections[1:] {
				s.PlayText(t, c.page, "install.md", section, env...)
			}
			if c.then != nil {
				c.then(t, s, p)
			}
		})
	}
}

// describeFailure prints what a cluster says about its pods, if the test has failed.
func describeFailure(t *testing.T, s *e2e.Suite) {
	if t.Failed() {
		events, err := s.TryKubectl(t, "get", "events", "--all-namespaces")
		t.Logf("%v\n%s\n%s", err, events, s.World.Describe())
	}
}

// environment returns variables by which kubectl and helm reach this process by the names of hosts.
func environment(t *testing.T, s *e2e.Suite, p published, bin string) []string {
	t.Helper()
	server, err := url.Parse(s.Server)
	require.NoError(t, err)
	n := startInternet(t, map[string]http.Handler{registryHost: p.Registry, filesHost: p.Files}, server.Hostname())
	home := t.TempDir()
	env := append(n.Env, "HOME="+home, "PATH="+strings.Join([]string{filepath.Dir(s.KubectlPath()), bin, filepath.Join(bin, "tools"), os.Getenv("PATH")}, ":"))
	for _, folder := range []string{"CACHE", "CONFIG", "DATA"} {
		env = append(env, fmt.Sprintf("HELM_%s_HOME=%s", folder, home))
	}
	return env
}

// serveNodes makes the nodes pull what they want of the registry from this process, over plain HTTP. It
// returns how many blobs they have pulled.
func serveNodes(t *testing.T, s *e2e.Suite, handler http.Handler) *atomic.Int64 {
	t.Helper()
	l, err := s.Listen(t.Context(), registryPort)
	require.NoError(t, err)
	var pulled atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			pulled.Add(1)
		}
		handler.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	for _, n := range s.Nodes {
		for _, host := range []string{registryHost, treeHost} {
			s.WriteFile(t, n.Name, "/etc/containerd/certs.d/"+host+"/hosts.toml",
				fmt.Sprintf("server = \"https://%s\"\n[host.\"http://%s:%d\"]\n  capabilities = [\"pull\", \"resolve\"]\n", host, cluster.PlaneIP, registryPort))
		}
	}
	return &pulled
}
