package release

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/verify"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Environment variables of make verify-release: the registry of the release, and the folder with its
// list and its files, which release verify saved.
const (
	registryVariable = "GPUREADY_RELEASE_REGISTRY"
	dirVariable      = "GPUREADY_RELEASE_DIR"
)

const namespace = "gpuready"

// verified is a release that was verified.
type verified struct {
	contents.Release
	registry string // where it is now
	dir      string // release.json and files
}

// readVerified reads what was saved of the verified release. The test is skipped if none is named.
func readVerified(t *testing.T) *verified {
	t.Helper()
	v := &verified{registry: os.Getenv(registryVariable), dir: os.Getenv(dirVariable)}
	if v.registry == "" {
		t.Skipf("%s is not set: make verify-release names a release", registryVariable)
	}
	var err error
	v.Release, err = contents.Read(v.dir)
	require.NoError(t, err)
	return v
}

// artifact returns an artifact by its name.
func (v *verified) artifact(t *testing.T, name string) contents.Artifact {
	t.Helper()
	for _, a := range v.Artifacts {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("the release has no %s", name)
	return contents.Artifact{}
}

// suite is a cluster that pulls from the registry of a release.
type suite struct {
	*e2e.Suite
	release *verified
}

// run runs a program as a cluster administrator.
func (s *suite) run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (s *suite) mustRun(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := s.run(t, program, args...)
	require.NoErrorf(t, err, "%s %s:\n%s\n%s", filepath.Base(program), strings.Join(args, " "), out, s.World.Describe())
	return out
}

// connect lets the nodes pull from the registry: what listens in the control plane's network forwards
// to it, and the nodes' runtimes take that for its host.
func (s *suite) connect(t *testing.T) {
	t.Helper()
	const port = 5000
	host, _, _ := strings.Cut(s.release.registry, "/")
	registry, err := name.NewRegistry(host)
	require.NoError(t, err)
	l, err := s.Listen(t.Context(), port)
	require.NoError(t, err)
	server := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: registry.Scheme(), Host: host})
			p.Out.Host = host
		},
		Transport: &puller{registry: registry, clients: map[string]*http.Client{}},
	}}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	for _, n := range s.Nodes {
		s.WriteFile(t, n.Name, "/etc/containerd/certs.d/"+host+"/hosts.toml",
			fmt.Sprintf("server = \"http://%[1]s:%[2]d\"\n[host.\"http://%[1]s:%[2]d\"]\n  capabilities = [\"pull\", \"resolve\"]\n", cluster.PlaneIP, port))
	}
}

// puller pulls for nodes that reach no other network: it authenticates as this machine's user, and
// follows redirects.
type puller struct {
	registry name.Registry
	mu       sync.Mutex
	clients  map[string]*http.Client // by repository
}

var repositoryPath = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs|referrers)/`)

func (p *puller) RoundTrip(r *http.Request) (*http.Response, error) {
	repository := ""
	if m := repositoryPath.FindStringSubmatch(r.URL.Path); m != nil {
		repository = m[1]
	}
	client, err := p.client(r.Context(), repository)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.RequestURI = ""
	return client.Do(r)
}

func (p *puller) client(ctx context.Context, repository string) (*http.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[repository] == nil {
		who, err := authn.DefaultKeychain.Resolve(p.registry)
		if err != nil {
			return nil, err
		}
		authenticated, err := transport.NewWithContext(ctx, p.registry, who, remote.DefaultTransport, []string{p.registry.Repo(repository).Scope(transport.PullScope)})
		if err != nil {
			return nil, err
		}
		p.clients[repository] = &http.Client{Transport: authenticated}
	}
	return p.clients[repository], nil
}

// TestVerifiedReleaseRuns installs the release that was verified on a cluster which runs nothing else
// in its namespace, and runs a CUDA job on a simulated GPU.
func TestVerifiedReleaseRuns(t *testing.T) {
	v := readVerified(t)
	s := &suite{e2e.Start(t, cluster.Config{Nodes: 1}), v}
	s.connect(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"TheChartIsLinted", s.chartIsLinted},
		{"ThePolicyRefusesOtherImages", s.policyRefusesOthers},
		{"TheChartInstalls", s.chartInstalls},
		{"ACUDAJobPasses", s.jobPasses},
		{"KubectlGPURuns", s.kubectlGPURuns},
		{"NothingElseRan", func(t *testing.T) { s.nothingElseRan(t) }},
	} {
		if !t.Run(scenario.name, scenario.run) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
}

// chart returns the chart's reference and version.
func (s *suite) chart(t *testing.T) []string {
	a := s.release.artifact(t, "charts/gpuready")
	args := []string{"oci://" + s.release.registry + "/" + a.Name, "--version", a.Tag}
	if strings.HasPrefix(s.release.registry, "localhost:") {
		args = append(args, "--plain-http")
	}
	return args
}

func (s *suite) chartIsLinted(t *testing.T) {
	dir := t.TempDir()
	out := s.mustRun(t, tool(t, "helm"), append([]string{"pull", "--untar", "--untardir", dir}, s.chart(t)...)...)
	require.Contains(t, out, s.release.artifact(t, "charts/gpuready").Digest, "helm pulled the chart that was verified")
	t.Log(s.mustRun(t, tool(t, "helm"), "lint", "--strict", filepath.Join(dir, "gpuready")))
}

// policyRefusesOthers applies the policy that release verify prints, and tries pods that it refuses.
func (s *suite) policyRefusesOthers(t *testing.T) {
	policy, err := verify.Policy(s.release.Release, namespace)
	require.NoError(t, err)
	s.Kubectl(t, "create", "namespace", namespace)
	s.Kubectl(t, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	s.ApplyText(t, string(policy))
	samples := s.release.artifact(t, "cuda-samples")
	repository := s.release.registry + "/cuda-samples"
	try := func(pod, image string) (string, error) {
		return s.TryKubectl(t, "-n", namespace, "run", pod, "--restart=Never", "--dry-run=server", "--image", image)
	}
	// No event tells when the API server has compiled the policy.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		out, err := try("other", "registry.example.com/other@sha256:"+strings.Repeat("0", 64))
		if err != nil && strings.Contains(out, "is not of the verified release "+s.release.Version) {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the policy refuses nothing: %v: %s", err, out)
		}
	}
	out, err := try("by-tag", repository+":"+samples.Tag)
	require.Error(t, err, out)
	require.Contains(t, out, "not named by its digest")
	out, err = try("by-digest", repository+"@"+samples.Digest)
	require.NoError(t, err, out)
}

// chartInstalls installs the chart with simulated GPUs, and waits until the node is proven.
func (s *suite) chartInstalls(t *testing.T) {
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	began := time.Now()
	args := append([]string{"install", "gpuready"}, s.chart(t)...)
	s.mustRun(t, tool(t, "helm"), append(args, "--namespace", namespace, "--set", "nfd.enabled=false",
		"--set", "driver.simulated.enabled=true", "--set", "driver.simulated.profile=h100-sxm", "--wait", "--timeout", "4m")...)
	s.World.Until(t, "the node's GPUs are proven", func() error {
		if c := s.World.Condition("n1", "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	t.Logf("%.1f s from helm install to proven GPUs, images pulled", time.Since(began).Seconds())
}

func (s *suite) jobPasses(t *testing.T) {
	image := s.release.registry + "/cuda-samples@" + s.release.artifact(t, "cuda-samples").Digest
	s.Kubectl(t, "run", "vectoradd", "--restart=Never", "--image", image, "--overrides", `{"spec":{"containers":[{"name":"vectoradd","image":"`+image+`","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}`)
	s.World.Until(t, "the CUDA job has ended", func() error {
		p := s.World.Pod("default", "vectoradd")
		if p == nil || p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	out := s.Kubectl(t, "logs", "vectoradd")
	t.Log(out)
	require.Contains(t, out, "Test PASSED")
}

// kubectlGPURuns runs kubectl-gpu from the archive of the release.
func (s *suite) kubectlGPURuns(t *testing.T) {
	dir := t.TempDir()
	archives, err := filepath.Glob(filepath.Join(s.release.dir, contents.Files, "kubectl-gpu*linux*amd64*.tar.gz"))
	require.NoError(t, err)
	require.Len(t, archives, 1)
	s.mustRun(t, "tar", "-xzf", archives[0], "-C", dir)
	program := filepath.Join(dir, "kubectl-gpu")
	require.Contains(t, s.mustRun(t, program, "version"), s.release.Version)
	out := s.mustRun(t, program, "status")
	t.Log(out)
	require.Contains(t, out, "n1")
}

// nothingElseRan checks the images that the node ran: those of the release, and images of the test.
func (s *suite) nothingElseRan(t *testing.T, more ...string) {
	allowed := map[string]bool{}
	for _, a := range s.release.Artifacts {
		for _, d := range a.Digests() {
			allowed[d] = true
		}
	}
	pods := s.World.Pods(namespace, "")
	require.NotEmpty(t, pods)
	for _, p := range pods {
		for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
			if slices.Contains(more, c.Image) {
				continue
			}
			_, digest, byDigest := strings.Cut(c.Image, "@")
			require.True(t, byDigest && allowed[digest], "%s runs %s", p.Name, c.Image)
		}
	}
}
