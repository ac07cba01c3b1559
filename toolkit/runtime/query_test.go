package runtime_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

func TestMain(m *testing.M) { leak.Main(m) }

const at = "/run/containerd/containerd.sock"

var on, off = true, false

func newHost(t *testing.T) *host.Root {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

func queryOne(t *testing.T, conf runtimetest.CRIConfig) (runtime.Info, error) {
	t.Helper()
	root := newHost(t)
	require.Empty(t, runtime.FindSocket(root, runtime.Sockets))
	cri, err := runtimetest.StartCRI(root.Path(at), conf)
	require.NoError(t, err)
	defer func() { require.NoError(t, cri.Stop()) }()
	require.Equal(t, at, runtime.FindSocket(root, runtime.Sockets))
	if conf.Hangs {
		return runtime.QueryWithin(t.Context(), root, at, time.Second)
	}
	return runtime.QueryWithin(t.Context(), root, at, time.Minute)
}

func TestQueryReturnsTheAbilities(t *testing.T) {
	dirs := []string{"/etc/cdi", "/var/run/cdi"}
	for _, c := range []struct {
		name string
		conf runtimetest.CRIConfig
		want runtime.Info
	}{
		{"containerd 2", runtimetest.CRIConfig{Name: "containerd", Version: "v2.2.1", CDI: &on, Dirs: dirs, Handlers: []string{"runc", "nvidia"}},
			runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: "v2.2.1", CDI: &on, CDIDirs: dirs, Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "runc"}, Default: "runc"}},
		{"containerd 2 with CDI turned off", runtimetest.CRIConfig{Name: "containerd", Version: "v2.2.1", CDI: &off},
			runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: "v2.2.1", CDI: &off}}},
		{"containerd 2.4, which has no switch", runtimetest.CRIConfig{Name: "containerd", Version: "v2.4.2", Dirs: dirs},
			runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: "v2.4.2", CDI: &on, CDIDirs: dirs}}},
		{"containerd 1.6, which has no CDI", runtimetest.CRIConfig{Name: "containerd", Version: "1.6.20"},
			runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: "1.6.20", CDI: &off}}},
		{"CRI-O", runtimetest.CRIConfig{Name: "cri-o", Version: "1.34.0", Dirs: dirs, Handlers: []string{"crun"}},
			runtime.Info{Runtime: nodestate.Runtime{Name: "cri-o", Version: "1.34.0", CDIDirs: dirs, Handlers: []string{"crun"}, GPUHandlers: []string{}, DefaultHandler: "crun"}, Default: "crun"}},
		{"one that tells little", runtimetest.CRIConfig{Name: "x", Config: "{}"}, runtime.Info{Runtime: nodestate.Runtime{Name: "x"}}},
	} {
		got, err := queryOne(t, c.conf)
		require.NoError(t, err, c.name)
		c.want.Socket = at
		require.Equal(t, c.want, got, c.name)
	}
}

func TestUnusableResponsesAreErrorsWithARemedy(t *testing.T) {
	for _, c := range []struct {
		name string
		conf runtimetest.CRIConfig
		want string
	}{
		{"hangs", runtimetest.CRIConfig{Hangs: true}, "does not answer within 1s; see its log"},
		{"huge", runtimetest.CRIConfig{Name: "containerd", Huge: true}, "larger than max"},
		{"nonsense", runtimetest.CRIConfig{Name: "containerd", Config: "nonsense"}, "its reported configuration"},
		{"another type", runtimetest.CRIConfig{Name: "containerd", Config: `{"enableCDI": "yes"}`}, "its reported configuration"},
		{"no name", runtimetest.CRIConfig{}, "its name"},
		{"no CRI, as Docker's", runtimetest.CRIConfig{NoCRI: true}, "disabled_plugins"},
	} {
		got, err := queryOne(t, c.conf)
		require.Error(t, err, c.name)
		require.Contains(t, got.Message, c.want, c.name)
		require.Contains(t, got.Message, at, c.name)
		require.Equal(t, nodestate.Runtime{Socket: at, Message: got.Message}, got.Runtime, c.name)
	}
	root := newHost(t)
	got, err := runtime.Query(t.Context(), root, at)
	require.Error(t, err)
	require.Contains(t, got.Message, "no such file")
	// As left by a killed runtime, or by one that is no longer used.
	require.NoError(t, os.MkdirAll(root.Path("/run/containerd"), 0o755))
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: root.Path(at), Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	got, err = runtime.Query(t.Context(), root, at)
	require.Error(t, err)
	require.Contains(t, got.Message, "connection refused")
	require.Contains(t, got.Message, "say with --runtime-socket which runtime the kubelet uses")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = runtime.Query(ctx, root, at)
	require.Error(t, err)
}

func TestAdviceNamesFileTableAndKey(t *testing.T) {
	answer := func(name, version, socket string, cdi *bool, dirs ...string) runtime.Info {
		return runtime.Info{Runtime: nodestate.Runtime{Socket: socket, Name: name, Version: version, CDI: cdi, CDIDirs: dirs}}
	}
	const k3s = "/run/k3s/containerd/containerd.sock"
	for _, c := range []struct {
		answer runtime.Info
		reason gpu.Reason
		want   []string
	}{
		{answer("containerd", "v2.2.1", at, &on, "/etc/cdi", "/run/cdi"), "", nil},
		{answer("cri-o", "1.34.0", "/run/crio/crio.sock", nil), "", nil},
		{answer("containerd", "v2.2.1", at, &off, "/etc/cdi", "/run/cdi"), runtime.ReasonDisabled, []string{
			`enable_cdi = true`, `cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]`, `[plugins."io.containerd.cri.v1.runtime"]`, "/etc/containerd/config.toml", "restart"}},
		{answer("containerd", "1.7.24", at, &off), runtime.ReasonDisabled, []string{
			`cdi_spec_dirs = ["/var/run/cdi"]`, `[plugins."io.containerd.grpc.v1.cri"]`, "/etc/containerd/config.toml"}},
		{answer("containerd", "1.6.20", at, &off), runtime.ReasonDisabled, []string{"containerd 1.6.20 has no CDI", "upgrade"}},
		{answer("containerd", "v2.0.5-k3s1", k3s, &off), runtime.ReasonDisabled, []string{"config-v3.toml.d", "/var/lib/rancher/rke2"}},
		{answer("containerd", "v1.7.20-k3s1", k3s, &off), runtime.ReasonDisabled, []string{"/config.toml.d", "io.containerd.grpc.v1.cri"}},
		{answer("containerd", "v2.2.1", at, &on, "/etc/cdi"), runtime.ReasonDirectory, []string{
			"from /etc/cdi and not from /var/run/cdi", `cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`, "--cdi-output-dir"}},
		{answer("cri-o", "1.34.0", "/run/crio/crio.sock", nil, "/opt/cdi"), runtime.ReasonDirectory, []string{
			`cdi_spec_dirs = ["/opt/cdi", "/var/run/cdi"]`, "[crio.runtime]", "/etc/crio/crio.conf.d"}},
	} {
		reason, text := runtime.Advise(c.answer, "/var/run/cdi", func(a, b string) bool {
			return strings.TrimPrefix(a, "/var") == strings.TrimPrefix(b, "/var")
		})
		require.Equal(t, c.reason, reason, c.answer)
		require.Equal(t, c.want == nil, text == "")
		for _, w := range c.want {
			require.Contains(t, text, w)
		}
	}
	for _, c := range []struct {
		answer runtime.Info
		want   []string
	}{
		{answer("containerd", "v2.2.1", at, &on), []string{"remove disable = true", `[plugins."io.containerd.nri.v1.nri"]`, "/etc/containerd/config.toml"}},
		{answer("containerd", "1.7.24", at, &on), []string{"set disable = false", `[plugins."io.containerd.nri.v1.nri"]`}},
		{answer("containerd", "1.6.20", at, &on), []string{"has no NRI"}},
		{answer("cri-o", "1.27.0", "/run/crio/crio.sock", nil), []string{"enable_nri = true", "[crio.nri]"}},
		{answer("", "", at, nil), []string{at, "turn NRI on"}},
		{runtime.Info{}, []string{"--runtime-socket"}},
	} {
		text := runtime.AdviseNRI(c.answer, "/var/run/nri/nri.sock")
		for _, w := range append(c.want, "privileged variant") {
			require.Contains(t, text, w)
		}
	}
}
