package distro

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

func TestProfilesAreComplete(t *testing.T) {
	all, err := decode(data)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, p := range all {
		require.False(t, names[p.Name], p.Name)
		names[p.Name] = true
		require.NotEmpty(t, p.Notes, p.Name)
		require.NotEmpty(t, p.Undo, p.Name)
		require.NotEmpty(t, p.Sockets, p.Name)
		for _, source := range p.Sources {
			require.True(t, strings.HasPrefix(source, "https://"), source)
		}
		if p.DropIn != "" && p.Engine == runtime.Containerd && p.Name != "talos" {
			require.Equal(t, ".toml", filepath.Ext(p.DropIn), p.Name)
		}
	}
	for _, plain := range []runtime.Kind{runtime.Containerd, runtime.Docker, runtime.CRIO} {
		require.True(t, names[string(plain)], "what RUNTIME=%s falls back to", plain)
	}
}

func TestInvalidProfilesAreRefused(t *testing.T) {
	const whole = "profiles:\n- name: a\n  title: A\n  engine: crio\n  sources: [https://a]\n  detect: {socket: /run/a.sock}\n  sockets: [/run/a.sock]\n  config: /etc/a\n  restart: {door: systemd, units: [a.service]}\n"
	_, err := decode([]byte(whole))
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"config: /etc/a", "config: etc/a", `config: "etc/a" is not a clean absolute path`},
		{"config: /etc/a", "config: /etc/../a", "not a clean absolute path"},
		{"sockets: [/run/a.sock]", "sockets: [/run/a.sock, '']", `sockets[1]`},
		{"socket: /run/a.sock", "socket: a.sock", "detect.socket"},
		{"engine: crio", "engine: podman", `engine: "podman" is none`},
		{"units: [a.service]", "units: []", "restart.units: none"},
		{"door: systemd", "door: gate", `restart.door: "gate" is none`},
		{"door: systemd", "door: none", "restart.message"},
		{"sources: [https://a]", "sources: []", "sources"},
		{"config: /etc/a", "config: /etc/a\n  confg: /etc/b", "unknown key"},
	} {
		_, err := decode([]byte(strings.Replace(whole, c.old, c.new, 1)))
		require.ErrorContains(t, err, c.want)
	}
}

func TestPlaceDependsOnTheVersion(t *testing.T) {
	k3s := byName(t, "k3s")
	const dir = "/var/lib/rancher/k3s/agent/etc/containerd/"
	require.Equal(t, runtime.Place{
		Kind: runtime.Containerd, Version: "v2.1.5-k3s1", Config: dir + "config.toml", DropIn: dir + "config-v3.toml.d/99-gpuready.toml",
	}, k3s.Place("v2.1.5-k3s1"))
	require.Equal(t, dir+"config.toml.d/99-gpuready.toml", k3s.Place("v1.7.23-k3s2").DropIn)
	require.Equal(t, dir+"config-v3.toml.d/99-gpuready.toml", k3s.Place("").DropIn, "the place that is right for all releases that read drop-ins")
	require.Equal(t, runtime.Place{
		Kind: runtime.CRIO, Version: "1.33.1", Config: "/etc/crio/crio.conf", DropIn: "/etc/crio/crio.conf.d/99-gpuready.conf", Always: true,
	}, byName(t, "crio").Place("1.33.1"))
	require.Equal(t, runtime.Place{Kind: runtime.Docker, Version: "28.5.1", Config: "/etc/docker/daemon.json"}, byName(t, "docker").Place("28.5.1"))
	require.Equal(t, runtime.Place{
		Kind: runtime.Containerd, Version: "1.7.27", Config: "/etc/containerd/config.toml", DropIn: "/etc/containerd/conf.d/99-gpuready.toml",
	}, byName(t, "containerd").Place("1.7.27"))
}

// The documentation's section is generated from the profiles.
func TestPageMatchesTheProfiles(t *testing.T) {
	golden.RequireSection(t, "../../../docs/toolkit.md",
		"<!-- distributions: made by go test ./toolkit/runtime/distro -update -->\n", "<!-- end of distributions -->\n", renderSection())
}

func byName(t *testing.T, name string) Profile {
	t.Helper()
	for _, p := range profiles() {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no profile %s", name)
	return Profile{}
}
