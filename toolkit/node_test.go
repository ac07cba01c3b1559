package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	if runtimetest.EnteredNRI() {
		return
	}
	m.Run()
}

// probeProgram is the program in containers: it prints which device nodes exist and can be opened,
// and which libraries can be loaded by name.
const probeProgram = `
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
int main(int n, char **names) {
	struct dirent **list;
	int count = scandir("/dev", &list, NULL, alphasort);
	for (int i = 0; i < count; i++) {
		if (strncmp(list[i]->d_name, "nvidia", 6))
			continue;
		char path[300];
		snprintf(path, sizeof path, "/dev/%s", list[i]->d_name);
		int fd = open(path, O_RDWR);
		printf("%s %s\n", path, fd < 0 && errno == EPERM ? "not permitted" : "permitted");
	}
	for (int i = 1; i < n; i++)
		printf("%s %s\n", names[i], dlopen(names[i], RTLD_NOW) ? "loaded" : dlerror());
	printf("devices=%s\n", getenv("NVIDIA_VISIBLE_DEVICES") ? getenv("NVIDIA_VISIBLE_DEVICES") : "");
	return 0;
}`

func compile(t *testing.T, source string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("gcc", "-x", "c", "-", "-o", file, "-ldl")
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return file
}

// toolkit runs a command of gpu-toolkit to its end and returns its output.
func toolkit(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(built.Path(t, "gpu-toolkit"), args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// uuids returns the UUIDs of the GPUs, by index, in the specification for people.
func uuids(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/var/run/cdi/k8s.gpuready.io-gpu.yaml")
	require.NoError(t, err)
	spec, err := cdi.Parse(data)
	require.NoError(t, err)
	var names []string
	for _, d := range spec.Devices {
		names = append(names, cdi.KindGPU+"="+d.Name)
	}
	return names
}

func TestContainerGetsOnlyTheRequestedDevices(t *testing.T) {
	built.Path(t, "gpu-cdi-hook")
	if !node.Enter(t) {
		return
	}
	built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", "a100-80gb")
	toolkit(t, "apply")
	gpus := uuids(t)
	require.Len(t, gpus, 8)
	program := compile(t, probeProgram)
	run := func(devices ...string) string {
		out, exit, err := node.RunContainer(t.Context(), node.Container{
			Args: []string{"/probe", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}, CDIDevices: devices,
			Files: map[string]string{"/probe": program},
		})
		require.NoError(t, err, out)
		require.Zero(t, exit, out)
		return out
	}
	const control = "/dev/nvidia-modeset permitted\n/dev/nvidia-uvm permitted\n/dev/nvidia-uvm-tools permitted\n"
	const libraries = "libcuda.so.1 loaded\nlibcuda.so loaded\nlibnvidia-ml.so.1 loaded\ndevices=void\n"
	require.Equal(t, control+"/dev/nvidia2 permitted\n/dev/nvidia5 permitted\n/dev/nvidiactl permitted\n"+libraries, run(gpus[2], gpus[5]))
	require.Equal(t, 8, strings.Count(run("nvidia.com/gpu=all"), "/dev/nvidia")-4)
	require.Equal(t, control+"/dev/nvidia7 permitted\n/dev/nvidiactl permitted\n"+libraries, run("nvidia.com/gpu=7"))
	none := run()
	require.NotContains(t, none, "/dev/nvidia")
	require.NotContains(t, none, " loaded")
	require.Contains(t, run(cdi.ManagementName()), "/dev/nvidia-caps permitted")
}

// CVE-2025-23266: a hook that inherits the container's environment runs code of the image as
// root, outside of the container.
func TestHooksDoNotInheritTheContainersEnvironment(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	if !node.Enter(t) {
		return
	}
	built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", "t4")
	wrapper := filepath.Join(t.TempDir(), "gpu-cdi-hook")
	built.Script(t, wrapper, "env >>/run/hook-env\necho \"$@\" >>/run/hook-args\nexec "+hook+" \"$@\"")
	toolkit(t, "apply", "--hook-program", wrapper)
	_, exit, err := node.RunContainer(t.Context(), node.Container{
		Args: []string{"/probe", "libcuda.so.1"}, CDIDevices: uuids(t),
		Env:   []string{"EVIL=1", "LD_PRELOAD=/evil.so"},
		Files: map[string]string{"/probe": compile(t, probeProgram)},
	})
	require.NoError(t, err)
	require.Zero(t, exit)
	env, err := os.ReadFile("/run/hook-env")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(env), "PATH=/usr/bin:/bin\n"), "they are one process: %s", env)
	args, err := os.ReadFile("/run/hook-args")
	require.NoError(t, err)
	for _, hook := range []string{"create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification"} {
		require.Contains(t, string(args), " -- "+hook)
	}
	require.NotContains(t, string(env), "EVIL")
	require.NotContains(t, string(env), "LD_PRELOAD")
}

func TestMIGDeviceGetsItsCapabilitiesOnly(t *testing.T) {
	built.Path(t, "gpu-cdi-hook")
	if !node.Enter(t) {
		return
	}
	built.Gpusim(t, "up", "--root", node.DriverRoot, "--profile", "a100-80gb", "--gpus", "1")
	built.Gpusim(t, "mig", "--root", node.DriverRoot, "--gpu", "0", "--layout", "1g.10gb,2g.20gb")
	toolkit(t, "apply")
	out, exit, err := node.RunContainer(t.Context(), node.Container{
		Args: []string{"/bin/ls", "/dev/nvidia-caps"}, CDIDevices: []string{"nvidia.com/gpu=0:1"},
		Files: map[string]string{"/bin/ls": "/bin/ls", node.LibraryDir() + "/libselinux.so.1": node.LibraryDir() + "/libselinux.so.1", node.LibraryDir() + "/libpcre2-8.so.0": node.LibraryDir() + "/libpcre2-8.so.0"},
	})
	require.NoError(t, err, out)
	require.Zero(t, exit, out)
	require.Len(t, strings.Fields(out), 2, "the GPU instance and the compute instance: %s", out)
}
