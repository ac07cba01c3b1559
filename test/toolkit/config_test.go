package toolkit

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
)

// configured starts a runtime with a kind of configuration files that has broken nodes, and runs
// gpu-toolkit's whole cycle on it.
func configured(t *testing.T, kind node.Kind, config func(t *testing.T) map[string]string, handlers []string, more ...string) {
	t.Helper()
	if !enter(t) {
		return
	}
	h := startWith(t, kind, config(t))
	systemd(t, h)
	require.Subset(t, status(t, h).Handlers, handlers)
	cycle(t, h, kind, more...)
}

// containerd 1.6 uses a plugin's table from only the last file that has one.
func TestContainerd16LosesNoHandlerToADropIn(t *testing.T) {
	configured(t, node.Containerd16, func(t *testing.T) map[string]string {
		return map[string]string{written[node.Containerd16].path: hand(t, node.Containerd16, "imports = [ ]", `imports = ["/etc/containerd/conf.d/*.toml"]`)}
	}, []string{"runc", "runc-batch"})
}

func TestContainerd16KeepsAForeignDropIn(t *testing.T) {
	configured(t, node.Containerd16, func(t *testing.T) map[string]string {
		return map[string]string{
			written[node.Containerd16].path: hand(t, node.Containerd16, "imports = [ ]", `imports = ["/etc/containerd/conf.d/*.toml"]`),
			"/etc/containerd/conf.d/50-farm.toml": `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "gpuready.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.farm]
  runtime_type = "io.containerd.runc.v2"
  options = { BinaryName = "/usr/local/bin/runc" }
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options = { BinaryName = "/usr/local/bin/runc" }
`,
		}
	}, []string{"runc", "farm"})
}

func TestContainerd16WithConfigurationVersion1(t *testing.T) {
	configured(t, node.Containerd16, func(*testing.T) map[string]string {
		return map[string]string{written[node.Containerd16].path: versionOne}
	}, []string{"runc", "old"})
}

func TestContainerd2WithConfigurationVersion1(t *testing.T) {
	configured(t, node.Containerd2, func(*testing.T) map[string]string {
		return map[string]string{written[node.Containerd2].path: versionOne}
	}, []string{"runc", "old"})
}

const versionOne = `# of 2018
[plugins.cri]
  sandbox_image = "gpuready.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.cri.containerd.runtimes.runc.options]
      BinaryName = "/usr/local/bin/runc"
  [plugins.cri.containerd.runtimes.old]
    runtime_type = "io.containerd.runc.v2"
    [plugins.cri.containerd.runtimes.old.options]
      BinaryName = "/usr/local/bin/runc"
`

// Files after an upgrade of containerd, with one of the new version beside the old.
func TestContainerd2WithFilesOfTwoVersions(t *testing.T) {
	configured(t, node.Containerd2, func(*testing.T) map[string]string {
		return map[string]string{
			written[node.Containerd2].path: `version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "gpuready.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    options = { BinaryName = "/usr/local/bin/runc" }
`,
			"/etc/containerd/conf.d/50-farm.toml": `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.farm]
  runtime_type = "io.containerd.runc.v2"
  options = { BinaryName = "/usr/local/bin/runc" }
`,
		}
	}, []string{"runc", "farm"})
}

func TestContainerd2WithoutAConfiguration(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := startWith(t, kind, nil)
	systemd(t, h)
	gpuToolkit(t, configuring(kind, "apply")...)
	require.Contains(t, status(t, h).Handlers, "nvidia")
	gpuToolkit(t, configuring(kind, "restore")...)
	require.NoFileExists(t, written[kind].path)
	require.NotContains(t, status(t, h).Handlers, "nvidia")
}

// An operator, or a tool, rewrites the file from a template without imports.
func TestContainerd2DroppedImportsAreRestored(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	systemd(t, h)
	was := status(t, h)
	gpuToolkit(t, configuring(kind, "apply")...)
	theirs := hand(t, kind, "imports = ['/etc/containerd/conf.d/*.toml']   # the agents' files", "# no imports")
	require.NoError(t, os.WriteFile(written[kind].path, []byte(theirs), 0o644))
	require.NoError(t, h.Restart(t.Context(), h.Unit()))
	require.NotContains(t, status(t, h).Handlers, "nvidia")
	ordinary(t, h)

	gpuToolkit(t, configuring(kind, "apply")...)
	require.ElementsMatch(t, append(slices.Clone(was.Handlers), "nvidia"), status(t, h).Handlers)
	requireHandlerGPUs(t, h, "nvidia")
	gpuToolkit(t, configuring(kind, "restore")...)
	got, err := os.ReadFile(written[kind].path)
	require.NoError(t, err)
	require.Equal(t, theirs, string(got), "it is as they left it last")
	require.ElementsMatch(t, was.Handlers, status(t, h).Handlers)
}

// The plan is computed again when it is applied.
func TestAnEditBetweenPlanAndApplyStays(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	systemd(t, h)
	gpuToolkit(t, configuring(kind, "plan")...)
	theirs := hand(t, kind, "max_concurrent_downloads = 3", "max_concurrent_downloads = 5 # meanwhile")
	require.NoError(t, os.WriteFile(written[kind].path, []byte(theirs), 0o644))
	gpuToolkit(t, configuring(kind, "apply")...)
	dump, err := h.Output(t.Context(), "containerd", "config", "dump")
	require.NoError(t, err)
	require.Contains(t, string(dump), "max_concurrent_downloads = 5")
	requireHandlerGPUs(t, h, "nvidia")
	gpuToolkit(t, configuring(kind, "restore")...)
	got, err := os.ReadFile(written[kind].path)
	require.NoError(t, err)
	require.Equal(t, theirs, string(got))
}

// CDI may have been disabled by hand, also with Docker's old name for it.
func TestCDIIsEnabledInDocker(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Docker
	h := startWith(t, kind, map[string]string{written[kind].path: hand(t, kind, `{"buildkit":true`, `{"buildkit":true, "cdi":false`)})
	s := systemd(t, h)
	require.False(t, status(t, h).CDI)
	before := contents(t, "/etc/docker")
	gpuToolkit(t, configuring(kind, "apply")...)
	require.Equal(t, []string{"restart docker.service"}, s.Calls())
	require.True(t, status(t, h).CDI)
	out, err := h.Run(t.Context(), node.Spec{CDI: []string{"nvidia.com/gpu=1"}, Args: []string{node.Probe, "/dev/nvidia1"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia1 there\ndone\n", out)
	gpuToolkit(t, configuring(kind, "restore")...)
	require.Equal(t, before, contents(t, "/etc/docker"))
	require.False(t, status(t, h).CDI)
}
