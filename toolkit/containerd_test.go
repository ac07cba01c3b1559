package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// agentProbe is the program in pods: it checks what an agent with the GPUs has, or keeps a
// pod's namespaces open.
const agentProbe = `
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **args) {
	if (n > 1 && args[1][0] == 'p')
		for (;;)
			pause();
	printf("given=%s\n", getenv("GPUREADY_INJECTION"));
	for (int i = 1; i < n; i++) {
		int fd = open(args[i], args[i][1] == 'd' ? O_RDWR : O_RDONLY);
		printf("%s %s\n", args[i], fd >= 0 || errno == EIO || errno == ENXIO || errno == ENODEV ? "there" : errno == EPERM ? "not permitted" : "missing");
	}
	return 0;
}`

const probeImage = "docker.io/gpuready/probe:test"

// containerd is a real containerd in a private node.
type containerd struct {
	t    *testing.T
	bin  string
	cmd  *exec.Cmd
	log  bytes.Buffer
	conn *grpc.ClientConn
	cri  runtimeapi.RuntimeServiceClient
	pods int
}

// A real containerd creates the containers, with a real runc. GPUREADY_CLUSTER_BIN is the
// directory with containerd, containerd-shim-runc-v2, ctr and runc, as built by make cluster.
func TestRealContainerdInjectsTheGPUs(t *testing.T) {
	bin := os.Getenv("GPUREADY_CLUSTER_BIN")
	if bin == "" {
		t.Skip("GPUREADY_CLUSTER_BIN names no folder with containerd, containerd-shim-runc-v2, ctr and runc")
	}
	built.Path(t, "gpu-cdi-hook")
	if !node.Enter(t) {
		return
	}
	s := simulated{}
	c := newContainerd(t, bin)
	c.start()
	built.Start(t, "gpu-toolkit", []string{"run", "--listen="}, "POD_NAMESPACE=gpuready")
	working := func(s nodestate.State) bool {
		return s.Toolkit != nil && s.Toolkit.Injection != nil && s.Toolkit.Injection.Working && s.Toolkit.Runtime != nil
	}
	state := s.await(t, "working", working)
	require.Equal(t, "containerd", state.Toolkit.Runtime.Name)
	require.True(t, *state.Toolkit.Runtime.CDI)
	require.Contains(t, state.Toolkit.Runtime.Handlers, "runc")
	require.Empty(t, state.Toolkit.Runtime.Message)
	library := node.LibraryDir() + "/libcuda.so.1"
	paths := []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", library}
	const none = "given=expected\n/dev/nvidiactl missing\n/dev/nvidia0 missing\n/dev/nvidia1 missing\n"
	require.Equal(t, none+library+" missing\n", c.run("gpuready", paths), "without a driver there is nothing to give")

	built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", "h100-sxm", "--gpus", "2")
	state = s.await(t, "a generation", func(s nodestate.State) bool { return working(s) && s.Toolkit.Injection.Generation != "" })
	all := "given=" + state.Toolkit.Injection.Generation + "\n/dev/nvidiactl there\n/dev/nvidia0 there\n/dev/nvidia1 there\n" + library + " there\n"
	require.Equal(t, all, c.run("gpuready", paths))
	require.Equal(t, none+library+" missing\n", c.run("default", paths), "another namespace")

	for range 2 {
		c.kill()
		s.await(t, "containerd is gone", func(s nodestate.State) bool { return !working(s) })
		c.start()
		s.await(t, "containerd is back", working)
		require.Equal(t, all, c.run("gpuready", paths))
	}
}

func newContainerd(t *testing.T, bin string) *containerd {
	t.Helper()
	// Programs run from there, and the file system of a node's /run is not for that.
	require.NoError(t, os.MkdirAll("/run/content", 0o755))
	require.NoError(t, unix.Mount("tmpfs", "/run/content", "tmpfs", 0, ""))
	require.NoError(t, os.MkdirAll("/etc/containerd", 0o755))
	require.NoError(t, os.WriteFile("/etc/containerd/config.toml", []byte(`
version = 3
root = "/run/content"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "`+bin+`/runc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "`+probeImage+`"
`), 0o644))
	conn, err := grpc.NewClient("unix:///run/containerd/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	c := &containerd{t: t, bin: bin, conn: conn, cri: runtimeapi.NewRuntimeServiceClient(conn)}
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		c.kill()
		if t.Failed() {
			t.Log("containerd's log:\n" + c.log.String())
		}
	})
	return c
}

// start starts containerd and waits until it serves. The first time it also loads the image.
func (c *containerd) start() {
	c.t.Helper()
	c.cmd = exec.Command(c.bin + "/containerd")
	c.cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"))
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, c.cmd.Start())
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	c.conn.ResetConnectBackoff()
	_, err := c.cri.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	require.NoError(c.t, err)
	if c.pods > 0 {
		return
	}
	cmd := exec.CommandContext(ctx, c.bin+"/ctr", "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = bytes.NewReader(probeArchive(c.t))
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, string(out))
}

func (c *containerd) kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}

// run creates a pod as an agent's and runs the probe in it to its end.
func (c *containerd) run(namespace string, paths []string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	c.pods++
	host := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "agent", Namespace: namespace, Uid: strconv.Itoa(c.pods)},
		LogDirectory: c.t.TempDir(),
		Annotations:  map[string]string{injection.Annotation: "true"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    "/" + node.Name(),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: host},
		},
	}
	sandbox, err := c.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	require.NoError(c.t, err)
	created, err := c.cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "agent"},
			Image:    &runtimeapi.ImageSpec{Image: probeImage},
			Command:  append([]string{"/probe"}, paths...),
			Envs:     []*runtimeapi.KeyValue{{Key: injection.Variable, Value: []byte(injection.Expected)}}, // bytes since CRI of 1.37
			LogPath:  "log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: host, Capabilities: &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, NoNewPrivs: true,
			}},
		},
	})
	require.NoError(c.t, err)
	_, err = c.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool {
		status, err := c.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: created.GetContainerId()})
		return err == nil && status.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	}, patience, 10*time.Millisecond)
	log, err := os.ReadFile(filepath.Join(pod.GetLogDirectory(), "log"))
	require.NoError(c.t, err)
	_, err = c.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetPodSandboxId()})
	require.NoError(c.t, err)
	var out strings.Builder
	for line := range strings.Lines(string(log)) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 { // time, stream, F, text
			out.WriteString(parts[3])
		}
	}
	return out.String()
}

// probeArchive returns an image that only has the probe, in the format of docker save.
func probeArchive(t *testing.T) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("gcc", "-static", "-x", "c", "-", "-o", program)
	cmd.Stdin = strings.NewReader(agentProbe)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	probe, err := os.ReadFile(program)
	require.NoError(t, err)
	layer := archive(t, map[string][]byte{"probe": probe})
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/probe"}, "Cmd": []string{"pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	require.NoError(t, err)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{probeImage}, "Layers": []string{"layer.tar"}}})
	require.NoError(t, err)
	return archive(t, map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": layer})
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}))
		_, err := w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}
