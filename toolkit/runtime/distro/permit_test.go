package distro

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/containerd"
)

// The plans of package containerd write to persistent places on each distribution, or
// are refused.
func TestPermitAllowsOnlyPersistentChanges(t *testing.T) {
	const (
		runc2 = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
		runc1 = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
		k0s   = "/run/k0s/containerd.sock"
		micro = "/var/snap/microk8s/current/args/containerd-template.toml"
	)
	for _, c := range []struct {
		name, socket, version string
		files                 tree
		writes                string // the file that is written
		refused               string // or a part of the refusal
	}{
		{name: "k3s", socket: k3sSocket, version: "v2.1.5-k3s1", files: tree{k3sDir + "config.toml": k3sConfig + runc2},
			writes: k3sDir + "config-v3.toml.d/99-gpuready.toml"},
		{name: "k3s with containerd 1.7", socket: k3sSocket, version: "v1.7.23-k3s2", files: tree{k3sDir + "config.toml": k3sOld + runc1},
			refused: "k3s writes it again at each start, so that a change would be lost; upgrade k3s to a release with containerd 2"},
		{name: "k3s that imports nothing", socket: k3sSocket, version: "v2.0.5-k3s1", files: tree{k3sDir + "config.toml": "version = 3\n" + runc2},
			refused: "reads drop-ins from " + k3sDir + "config-v3.toml.d"},
		{name: "k0s", socket: k0s, version: "v2.1.5", files: tree{
			"/etc/k0s/containerd.toml":     "# k0s_managed=true\nversion = 3\nimports = [\"/run/k0s/containerd-cri.toml\"]\n",
			"/run/k0s/containerd-cri.toml": "version = 3\n" + runc2}, writes: "/etc/k0s/containerd.d/99-gpuready.toml"},
		{name: "MicroK8s", socket: "/var/snap/microk8s/common/run/containerd.sock", version: "v1.7.27", files: tree{
			micro: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"${SNAPSHOTTER}\"\n" + runc1}, writes: micro},
		{name: "Talos", socket: plainSocket, version: "v2.1.5", files: tree{"/etc/os-release": talos, "/etc/cri/conf.d/cri.toml": "version = 3\n"},
			refused: "machine configuration"},
		{name: "Bottlerocket", socket: plainSocket, version: "v2.1.5", files: tree{"/etc/os-release": bottlerocket, "/etc/containerd/config.toml": "version = 3\n" + runc2},
			refused: "apiclient"},
		{name: "Flatcar", socket: plainSocket, version: "v2.1.5", files: tree{"/etc/os-release": flatcar,
			"/usr/lib/systemd/system/containerd.service": flatUnit, "/usr/share/containerd/config.toml": "version = 3\n" + runc2},
			refused: "copy it to /etc/containerd/config.toml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := c.files.open(t)
			p, err := Detect(root, c.socket, "")
			require.NoError(t, err)
			plan, err := containerd.Plan(root, p.Place(c.version), runtime.Want{CDI: true, CDIDirs: []string{"/var/run/cdi"}, Handlers: []runtime.Handler{{Name: "nvidia", Program: "/opt/gpu-oci-runtime"}}})
			require.NoError(t, err)
			require.NotEmpty(t, plan.Edits)
			err = p.CheckPlan(root, plan)
			if c.refused == "" {
				require.NoError(t, err)
				for _, edit := range plan.Edits {
					require.Equal(t, c.writes, edit.File)
				}
				return
			}
			refusal, is := errors.AsType[*runtime.Refusal](err)
			require.True(t, is, "%v", err)
			require.Contains(t, refusal.Message, c.refused)
			require.NotEmpty(t, refusal.Key)
		})
	}
	require.NoError(t, byName(t, "k3s").CheckPlan(tree{}.open(t), runtime.Plan{}), "nothing changes")
	p := byName(t, "k0s")
	err := p.CheckPlan(tree{}.open(t), runtime.Plan{Edits: []runtime.Edit{{File: "/run/k0s/containerd-cri.toml", Key: "x"}}})
	require.ErrorContains(t, err, "k0s generates it from /etc/k0s/containerd.toml, so that a change would be lost")
}
