package distro

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

func TestSettingsOverrideTheDetectedProfile(t *testing.T) {
	for _, c := range []struct {
		name     string
		profile  string
		settings Settings
		change   func(*Profile) // the expected change to that profile, or to want
		want     string         // the name of the resulting profile, if another one
	}{
		{name: "nothing", profile: "k3s"},
		{name: "the same as detected", profile: "k3s", settings: Settings{Runtime: "containerd"}},
		{name: "the runtime's counts more than the general", profile: "containerd", settings: Settings{Config: "/a", ContainerdConfig: "/b", Socket: "/c", ContainerdSocket: "/d"},
			change: func(p *Profile) { p.Config, p.Sockets = "/b", []string{"/d"} }},
		{name: "the general", profile: "crio", settings: Settings{Config: "/a", Socket: "/c"},
			change: func(p *Profile) { p.Config, p.Sockets = "/a", []string{"/c"} }},
		{name: "Docker's API", profile: "docker", settings: Settings{DockerSocket: "/srv/docker.sock", DockerConfig: "/srv/daemon.json"},
			change: func(p *Profile) { p.API, p.Config = "/srv/docker.sock", "/srv/daemon.json" }},
		{name: "another runtime on the same system", profile: "flatcar", settings: Settings{Runtime: "docker"}, want: "docker",
			change: func(p *Profile) { p.InstallDir, p.ReadOnly = "/opt/gpuready/toolkit", []string{"/usr"} }},
		{name: "another runtime by its setting", profile: "containerd", settings: Settings{CRIOConfig: "/etc/crio/own.conf"}, want: "crio",
			change: func(p *Profile) { p.Config = "/etc/crio/own.conf" }},
		{name: "another configuration has its own imports", profile: "k0s", settings: Settings{ContainerdConfig: "/etc/k0s/own.toml"},
			change: func(p *Profile) {
				p.Config, p.Generated, p.Managed, p.Owner, p.Always = "/etc/k0s/own.toml", nil, "", "", false
			}},
		{name: "k0s's own advice for the reference", profile: "k0s", settings: Settings{ContainerdConfig: "/run/k0s/containerd-cri.toml", DropIn: "/etc/k0s/containerd.d/nvidia.toml", ContainerdSocket: "/run/k0s/containerd.sock"},
			change: func(p *Profile) { p.DropIn = "/etc/k0s/containerd.d/nvidia.toml" }},
		{name: "a drop-in that may not be read", profile: "k0s", settings: Settings{DropIn: "/srv/nvidia.toml"},
			change: func(p *Profile) { p.DropIn, p.Always = "/srv/nvidia.toml", false }},
		{name: "a drop-in of another name in CRI-O's directory", profile: "crio", settings: Settings{DropIn: "/etc/crio/crio.conf.d/99-nvidia.toml"},
			change: func(p *Profile) { p.DropIn = "/etc/crio/crio.conf.d/99-nvidia.toml" }},
		{name: "Docker by systemd", profile: "docker", settings: Settings{RestartMode: "systemd"}, change: func(p *Profile) { p.Restart.Method = Systemd }},
		{name: "containerd by signal, which ends it", profile: "containerd", settings: Settings{RestartMode: "signal"}},
		{name: "CRI-O by signal, which loads no handlers", profile: "crio", settings: Settings{RestartMode: "signal"}},
		{name: "settings of several runtimes: the detected one's count", profile: "containerd", settings: Settings{ContainerdConfig: "/a", DockerConfig: "/b", CRIOSocket: "/c"},
			change: func(p *Profile) { p.Config = "/a" }},
		{name: "settings of other runtimes than the selected one", profile: "containerd", settings: Settings{Runtime: "containerd", DockerConfig: "/b"}},
		{name: "Docker by signal", profile: "docker", settings: Settings{RestartMode: "signal"}},
		{name: "by nobody", profile: "containerd", settings: Settings{RestartMode: "none"}, change: func(p *Profile) {
			p.Restart = Restart{Method: Manual, Message: "nothing is restarted, since RUNTIME_RESTART_MODE=none is set; restart containerd.service for the change to take effect"}
		}},
		{name: "by nobody, where nobody may", profile: "talos", settings: Settings{RestartMode: "none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := byName(t, c.profile)
			got, err := Override(was, c.settings)
			require.NoError(t, err)
			want := was
			if c.want != "" {
				want = byName(t, c.want)
				require.Contains(t, got.Reason, "is set, where "+was.Title+" was detected")
			}
			if c.change != nil {
				c.change(&want)
			}
			got.Reason = ""
			require.Equal(t, want, got)
		})
	}
}

func TestUnusableSettingsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		profile  string
		settings Settings
		want     []string
	}{
		{"containerd", Settings{Runtime: "podman"}, []string{`RUNTIME="podman"`, "containerd, docker or crio"}},
		{"containerd", Settings{Config: "etc/config.toml"}, []string{"RUNTIME_CONFIG", "etc/config.toml"}},
		{"crio", Settings{CRIOSocket: "unix:///run/crio/crio.sock"}, []string{"CRIO_SOCKET"}},
		{"containerd", Settings{RestartMode: "always"}, []string{`RUNTIME_RESTART_MODE="always"`}},
		{"talos", Settings{RestartMode: "systemd"}, []string{"RUNTIME_RESTART_MODE=systemd", "Talos", "machine configuration"}},
	} {
		_, err := Override(byName(t, c.profile), c.settings)
		require.Error(t, err)
		for _, part := range c.want {
			require.ErrorContains(t, err, part)
		}
	}
}

func TestOverrideMakesAProfileIfNoneIsDetected(t *testing.T) {
	p, err := Override(Profile{}, Settings{Runtime: "crio", Socket: "/srv/crio.sock"})
	require.NoError(t, err)
	require.Equal(t, runtime.CRIO, p.Engine)
	require.Equal(t, []string{"/srv/crio.sock"}, p.Sockets)
	require.Equal(t, "RUNTIME=crio is set", p.Reason)
	_, err = Override(Profile{}, Settings{Config: "/etc/own"})
	require.ErrorContains(t, err, "name it with RUNTIME")
}
