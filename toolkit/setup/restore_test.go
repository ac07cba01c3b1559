package setup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
)

const (
	theirConfig = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	ourHandler  = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.gpu]\n  runtime_type = \"io.containerd.runc.v2\"\n"
)

// configured returns a host on which we have configured a handler in containerd.
func configured(t *testing.T) (toolkit *Toolkit, dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/containerd"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/containerd/config.toml"), []byte(theirConfig), 0o600))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	c := config
	c.DriverRoot, c.DevRoot = "/", "/"
	toolkit = &Toolkit{Config: c, Root: root, Store: &apply.Store{Root: root, Dir: c.InstallDir, BootID: "0f0e0d0c-0b0a-4909-8807-060504030201"}}
	j := toolkit.Store
	changes, err := j.Plan([]apply.Item{{Path: "/etc/containerd/config.toml", File: &apply.File{Data: []byte(theirConfig + ourHandler), Mode: 0o600}}})
	require.NoError(t, err)
	require.NoError(t, j.Begin(changes, nil))
	require.NoError(t, j.Commit())
	return toolkit, dir
}

// A person may have restarted the runtime meanwhile, so it has to load the restored
// configuration also if the change was unfinished.
func TestRestoreOfAnUnfinishedChangeRestartsTheRuntime(t *testing.T) {
	toolkit, dir := configured(t)
	j := toolkit.Store
	changes, err := j.Plan([]apply.Item{{Path: "/etc/containerd/conf.d/x.toml", File: &apply.File{Data: []byte("# ours\n"), Mode: 0o600}}})
	require.NoError(t, err)
	_, _, err = toolkit.Uninstall(false)
	require.NoError(t, err)
	require.NoError(t, j.Begin(changes, nil))
	restored, err := toolkit.RestoreRuntime(t.Context(), false, nil)
	require.NoError(t, err)
	require.NoFileExists(t, dir+"/etc/containerd/conf.d/x.toml")
	require.Len(t, restored.Left, 1)
	require.Contains(t, restored.Left[0], "the container runtime does not respond, so it was not restarted")
}

// A container that was created with the handler's program can only be stopped with it.
func TestRestoreLeavesTheProgramThatContainersNeed(t *testing.T) {
	toolkit, dir := configured(t)
	_, err := toolkit.Store.Apply([]apply.Item{
		{Path: "/usr/local/nvidia/gpuready/gpu-oci-runtime", File: &apply.File{Data: []byte("program"), Mode: 0o755}},
		{Path: "/usr/local/nvidia/gpuready/gpu-cdi-hook", File: &apply.File{Data: []byte("hook"), Mode: 0o755}},
	})
	require.NoError(t, err)
	bundle := filepath.Join(dir, "run/containerd/io.containerd.runtime.v2.task/k8s.io/0123")
	require.NoError(t, os.MkdirAll(bundle, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "runtime"), []byte("/usr/local/nvidia/gpuready/gpu-oci-runtime"), 0o644))
	for range 2 {
		_, left, err := toolkit.Uninstall(false)
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.Contains(t, left[0], "gpu-oci-runtime: the container runtime needs it to stop the containers that were created with it (1, such as 0123)")
		require.FileExists(t, dir+"/usr/local/nvidia/gpuready/gpu-oci-runtime")
		require.NoFileExists(t, dir+"/usr/local/nvidia/gpuready/gpu-cdi-hook")
	}
	require.NoError(t, os.RemoveAll(bundle))
	_, left, err := toolkit.Uninstall(false)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, dir+"/usr")
}

func TestRestoreRemovesAllOurFiles(t *testing.T) {
	toolkit, dir := configured(t)
	require.NoError(t, toolkit.Store.SetNote("refused.json", []byte("{}")))
	require.FileExists(t, dir+"/usr/local/nvidia/gpuready/refused.json")
	_, left, err := toolkit.Uninstall(false)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, dir+"/usr")
	data, err := os.ReadFile(dir + "/etc/containerd/config.toml")
	require.NoError(t, err)
	require.Equal(t, theirConfig, string(data))
}
