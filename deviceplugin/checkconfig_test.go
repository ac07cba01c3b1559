package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/program"
)

// execute runs the program in this process.
func execute(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = runProgram(ctx, time.Now(), args, &out, &err)
	return code, out.String(), err.String()
}

func check(args ...string) (code int, stdout, stderr string) {
	return execute(context.Background(), append([]string{"check-config"}, args...)...)
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// configs makes a folder of two configurations, of which one is wrong.
func configs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good":          "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
		"bad":           "flags: {migStrategy: mix}\n",
		"..data/hidden": "x",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

func TestCheckConfigPrintsSettingsAndTheirOrigin(t *testing.T) {
	path := write(t, "version: v1\nflags:\n  failOnInitError: false\n  plugin: {deviceListStrategy: cdi-cri}\nimex: {channelIDs: []}\n")
	code, out, stderr := check(path)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `(?m)^flags\.failOnInitError +false +`+path+`$`, out)
	require.Regexp(t, `(?m)^flags\.plugin\.deviceListStrategy +\["cdi-cri"\] +`+path+`$`, out)
	require.Regexp(t, `(?m)^flags\.migStrategy +"none" +default$`, out)

	code, out, _ = check(path, "-o", "json")
	require.Zero(t, code)
	var c config.Config
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Equal(t, "none", *c.Flags.MigStrategy)
	require.False(t, *c.Flags.FailOnInitError)
}

func TestCheckConfigIgnoresTheEnvironment(t *testing.T) {
	t.Setenv("MIG_STRATEGY", "mixed")
	t.Setenv("DP_DISABLE_HEALTHCHECKS", "all")
	code, out, stderr := check(write(t, "version: v1"))
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^flags\.migStrategy +"none" +default$`, out)
}

func TestCheckConfigReportsAllErrors(t *testing.T) {
	path := write(t, "flags: {migStrategy: mix}\nimex: {channelIDs: [3]}")
	code, out, stderr := check(path)
	require.Equal(t, program.Failed, code)
	require.Empty(t, out)
	require.Equal(t, "gpu-device-plugin: "+path+`: flags.migStrategy: "mix" is not known, did you mean "mixed"?
gpu-device-plugin: `+path+`: imex.channelIDs: [3]: there is only channel 0 yet, as in the reference; write [] or [0]
`, stderr)

	code, _, stderr = check(write(t, "flags: {deviceDiscoveryStrategy: tegra}"))
	require.Equal(t, program.Failed, code)
	require.Contains(t, stderr, `flags.deviceDiscoveryStrategy: "tegra" is not supported`)

	path = write(t, "flag: {}")
	code, _, stderr = check(path)
	require.Equal(t, program.Failed, code)
	require.Contains(t, stderr, `flag: unknown key, did you mean "flags"?`)
	code, _, stderr = check(path, "--unknown-keys=warn")
	require.Zero(t, code)
	require.Contains(t, stderr, `flag: unknown key, did you mean "flags"?; ignored`)
}

func TestCheckConfigUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"a", "b"}, {"/no/such/file"}, {"x", "--output=xml"}, {"x", "--unknown-keys=no"}, {"--bad"}} {
		code, _, stderr := check(args...)
		require.Equal(t, program.Usage, code, args)
		require.NotEmpty(t, stderr)
	}
	code, help, _ := check("--help")
	require.Zero(t, code)
	for _, want := range []string{"Examples:", "Exit codes:", "--unknown-keys"} {
		require.Contains(t, help, want)
	}
}

func TestCheckConfigChecksEachFileOfAFolder(t *testing.T) {
	dir := configs(t)
	code, out, stderr := check("--config-dir", dir)
	require.Equal(t, 1, code)
	require.Equal(t, filepath.Join(dir, "good")+": would be served\n", out)
	require.Contains(t, stderr, filepath.Join(dir, "bad")+": flags.migStrategy")

	code, out, _ = check("--config-dir", dir, "--config", "good")
	require.Zero(t, code)
	require.Contains(t, out, "sharing.timeSlicing.resources[0].replicas")
	for _, args := range [][]string{{"--config", "none"}, {"file"}} {
		code, _, _ = check(append([]string{"--config-dir", dir}, args...)...)
		require.Equal(t, 2, code)
	}
}
