package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// install is an installation of the program in a directory of its own, with a low-level
// runtime that records its calls.
type install struct {
	t              *testing.T
	dir            string
	program        string
	settings       request.Settings
	args, bundle   string // received by the low-level runtime
	cdi            string
	stdout, stderr bytes.Buffer
}

const standIn = `#!/bin/sh
dir=$(dirname "$0")
for arg in "$@"; do printf '%s\n' "$arg"; done >"$dir/args"
echo "$MARK" >"$dir/env"
echo out; echo err >&2
exit 7
`

func newInstall(t *testing.T) *install {
	t.Helper()
	dir := t.TempDir()
	i := &install{t: t, dir: dir, program: dir + "/gpu-oci-runtime", args: dir + "/args", bundle: dir + "/bundle", cdi: dir + "/cdi", settings: request.DefaultSettings()}
	built.Copy(t, i.program, "gpu-oci-runtime")
	require.NoError(t, built.WriteProgram(dir+"/runc", []byte(standIn), 0o755))
	for _, d := range []string{i.bundle, i.cdi} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	i.settings.Runtimes = []string{i.program, dir + "/runc"} // it skips itself
	i.settings.SpecDirs = []string{i.cdi}
	i.set()
	require.NoError(t, os.WriteFile(i.cdi+"/gpu.yaml", []byte(`
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  mounts: [{hostPath: /l, containerPath: /usr/lib/libcuda.so.570.1}]
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/null}]}
`), 0o644))
	require.NoError(t, os.WriteFile(i.cdi+"/broken.yaml", []byte("not: [yaml"), 0o644))
	i.config(`{"ociVersion":"1.0.2","process":{"args":["x"],"env":["A=b"]}}`)
	return i
}

func (i *install) set() {
	data, err := i.settings.Encode()
	require.NoError(i.t, err)
	require.NoError(i.t, os.WriteFile(i.dir+"/"+request.SettingsFile, data, 0o644))
}

func (i *install) config(content string) {
	require.NoError(i.t, os.WriteFile(i.bundle+"/config.json", []byte(content), 0o600))
}

func (i *install) read() oci.Spec {
	data, err := os.ReadFile(i.bundle + "/config.json")
	require.NoError(i.t, err)
	var spec oci.Spec
	require.NoError(i.t, json.Unmarshal(data, &spec))
	return spec
}

// call runs the program. It returns its exit code and reports whether the low-level
// runtime ran.
func (i *install) call(args ...string) (exit int, ran bool) {
	i.t.Helper()
	_ = os.Remove(i.args)
	i.stdout.Reset()
	i.stderr.Reset()
	cmd := exec.CommandContext(i.t.Context(), i.program, args...)
	cmd.Env = append(built.Environ(), "MARK=kept")
	cmd.Dir = i.bundle
	cmd.Stdout, cmd.Stderr = &i.stdout, &i.stderr
	_ = cmd.Run() // the exit code is checked
	got, err := os.ReadFile(i.args)
	if err == nil {
		require.Equal(i.t, strings.Join(args, "\n")+"\n", string(got), "the arguments are passed on as they are")
		require.Equal(i.t, "out\n", i.stdout.String())
	}
	return cmd.ProcessState.ExitCode(), err == nil
}

func TestOtherCallsArePassedOnUnchanged(t *testing.T) {
	i := newInstall(t)
	before, err := os.Stat(i.bundle + "/config.json")
	require.NoError(t, err)
	for _, args := range [][]string{
		{"--version"},
		{"-v"},
		{"help", "create"},
		{"--debug", "--help"},
		{"--root", "/r", "state", "ID"},
		{"--root", "create", "delete", "--force", "ID with space"},
		{"kill", "ID", "9"},
		{"features"},
		{"create", "--bundle", i.bundle, "ID"},
		{"--log", i.dir + "/log", "create", "ID"},
		{"create", "--bundle", "/nowhere", "--help"},
	} {
		exit, ran := i.call(args...)
		require.True(t, ran, i.stderr.String())
		require.Equal(t, 7, exit)
		require.Equal(t, "err\n", i.stderr.String())
	}
	mark, err := os.ReadFile(i.dir + "/env")
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(mark))
	after, err := os.Stat(i.bundle + "/config.json")
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "nothing was asked for")
	require.NoFileExists(t, i.dir+"/log")
}

func TestItsOwnHelp(t *testing.T) {
	i := newInstall(t)
	require.NoError(t, os.WriteFile(i.dir+"/"+request.SettingsFile, []byte("broken"), 0o644))
	for _, word := range []string{"--help", "-h", "help"} {
		exit, ran := i.call(word)
		require.False(t, ran)
		require.Zero(t, exit)
		require.Empty(t, i.stderr.String())
		require.Contains(t, i.stdout.String(), "Exit codes:")
		require.Contains(t, i.stdout.String(), "Version: gpu-oci-runtime ")
		for line := range strings.Lines(i.stdout.String()) {
			require.LessOrEqual(t, len(line), 101, line)
		}
	}
}

func TestRequestedGPUsAreInjected(t *testing.T) {
	i := newInstall(t)
	for _, command := range []string{"create", "run"} {
		i.config(`{"process":{"env":["A=b"]},"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=0"}}`)
		exit, ran := i.call("--root=/r", "--systemd-cgroup", command, "--bundle="+i.bundle, "ID")
		require.True(t, ran, i.stderr.String())
		require.Equal(t, 7, exit)
		spec := i.read()
		require.Equal(t, "/dev/nvidia0", spec.Linux.Devices[0].Path)
		require.Equal(t, "/usr/lib/libcuda.so.570.1", spec.Mounts[0].Destination)
		require.Equal(t, []string{"A=b", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
		again, err := os.Stat(i.bundle + "/config.json")
		require.NoError(t, err)
		i.call(command, "ID") // in the bundle
		after, err := os.Stat(i.bundle + "/config.json")
		require.NoError(t, err)
		require.True(t, os.SameFile(again, after), "what is there is not written again")
	}
}

func TestFailuresAreReportedToTheCaller(t *testing.T) {
	i := newInstall(t)
	log := i.dir + "/log.json"
	for _, c := range []struct{ config, want string }{
		{`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]}}`, `set "accept-nvidia-visible-devices-envvar-when-unprivileged"`},
		{`{"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=3"}}`, "there is no nvidia.com/gpu=3 on this node; of this kind there are 0"},
		{`{"process":`, i.bundle + "/config.json: ends too early"},
	} {
		_ = os.Remove(log)
		i.config(c.config)
		exit, ran := i.call("--log", log, "--log-format", "json", "create", "--bundle", i.bundle, "ID")
		require.False(t, ran)
		require.Equal(t, 1, exit)
		require.Contains(t, i.stderr.String(), c.want)
		require.Equal(t, 1, strings.Count(i.stderr.String(), "\n"))
		f, err := os.Open(log)
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		require.True(t, lines.Scan())
		var entry struct{ Level, Msg, Time string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &entry))
		require.Equal(t, "error", entry.Level)
		require.Contains(t, entry.Msg, c.want)
		require.NotEmpty(t, entry.Time)
		require.False(t, lines.Scan())
		require.NoError(t, f.Close())
	}
}

// Images for CUDA set NVIDIA_VISIBLE_DEVICES=all by themselves.
func TestAnImageThatRequestsAllStartsWithout(t *testing.T) {
	i := newInstall(t)
	i.config(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}`)
	log := i.dir + "/log"
	_, ran := i.call("--log="+log, "create", "ID")
	require.True(t, ran, i.stderr.String())
	require.Nil(t, i.read().Linux)
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(data), "level=warning")
	require.Contains(t, string(data), "accept-nvidia-visible-devices-envvar-when-unprivileged")
}

func TestBrokenSettingsStopOnlyNewContainers(t *testing.T) {
	i := newInstall(t)
	broken, err := json.Marshal(map[string]any{"runtimes": []string{i.dir + "/runc"}, "acept": true})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(i.dir+"/"+request.SettingsFile, broken, 0o644))
	for _, command := range []string{"delete", "kill", "state", "start"} {
		_, ran := i.call(command, "ID")
		require.True(t, ran, command+i.stderr.String())
	}
	exit, ran := i.call("create", "ID")
	require.False(t, ran)
	require.Equal(t, 1, exit)
	require.Contains(t, i.stderr.String(), request.SettingsFile+`: unknown field "acept"`)
}

func TestMissingRuntimeIsReported(t *testing.T) {
	i := newInstall(t)
	i.settings.Runtimes = []string{i.program, "no-such-runtime"}
	i.set()
	exit, ran := i.call("state", "ID")
	require.False(t, ran)
	require.Equal(t, 1, exit)
	require.Contains(t, i.stderr.String(), "there is no low-level runtime")
}

// If Docker runs its hook for --gpus itself, the container does not use our runtime.
func TestAsDockersHook(t *testing.T) {
	i := newInstall(t)
	hook := filepath.Join(i.dir, "nvidia-container-runtime-hook")
	require.NoError(t, os.Symlink(i.program, hook))
	out, err := exec.CommandContext(t.Context(), hook, "prestart").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "--runtime=nvidia")
}

func TestUnwritableLogIsNotAnError(t *testing.T) {
	i := newInstall(t)
	i.config(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}`)
	_, ran := i.call("--log", "/nowhere/log", "create", "ID")
	require.True(t, ran)
	require.Contains(t, i.stderr.String(), "not honoured")
}
