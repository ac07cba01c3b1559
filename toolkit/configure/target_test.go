package configure

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/distro"
)

func TestSockets(t *testing.T) {
	for name, c := range map[string]struct {
		settings distro.Settings
		want     []string
	}{
		"nothing is settings":  {distro.Settings{}, runtime.Sockets},
		"a socket alone":       {distro.Settings{Socket: "/run/a.sock"}, []string{"/run/a.sock"}},
		"docker":               {distro.Settings{Runtime: "docker"}, []string{"/run/docker.sock"}},
		"docker's socket":      {distro.Settings{DockerSocket: "/run/d.sock"}, []string{"/run/d.sock"}},
		"docker, and a socket": {distro.Settings{Runtime: "docker", Socket: "/run/d.sock"}, []string{"/run/d.sock"}},
		"containerd's socket":  {distro.Settings{ContainerdSocket: "/run/c.sock"}, []string{"/run/c.sock"}},
		"crio":                 {distro.Settings{Runtime: "crio"}, []string{"/run/crio/crio.sock"}},
		"of several runtimes":  {distro.Settings{ContainerdSocket: "/run/c.sock", CRIOSocket: "/run/o.sock", DockerSocket: "/run/d.sock"}, append([]string{"/run/c.sock", "/run/o.sock"}, runtime.Sockets...)},
		"of another runtime":   {distro.Settings{Runtime: "crio", DockerSocket: "/run/d.sock"}, []string{"/run/crio/crio.sock"}},
		"the more special one": {distro.Settings{ContainerdSocket: "/run/c.sock", Socket: "/run/a.sock"}, []string{"/run/c.sock"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Sockets(c.settings)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := Sockets(distro.Settings{Runtime: "podman"})
	require.Error(t, err)
}
