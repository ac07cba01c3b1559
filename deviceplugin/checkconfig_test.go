package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
)

func check(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = checkConfig(args, &out, &err)
	return code, out.String(), err.String()
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
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Equal(t, "gpu-device-plugin: "+path+`: flags.migStrategy: "mix" is not known, did you mean "mixed"?
gpu-device-plugin: `+path+`: imex.channelIDs: [3]: there is only channel 0 yet, as in the reference; write [] or [0]
`, stderr)

	code, _, stderr = check(write(t, "flags: {deviceDiscoveryStrategy: tegra}"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, `flags.deviceDiscoveryStrategy: "tegra" is not supported`)

	path = write(t, "flag: {}")
	code, _, stderr = check(path)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, `flag: unknown key, did you mean "flags"?`)
	code, _, stderr = check(path, "--unknown-keys=warn")
	require.Zero(t, code)
	require.Contains(t, stderr, `flag: unknown key, did you mean "flags"?; ignored`)
}

func TestCheckConfigUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"a", "b"}, {"/no/such/file"}, {"x", "--output=xml"}, {"x", "--unknown-keys=no"}, {"--bad"}} {
		code, _, stderr := check(args...)
		require.Equal(t, exitUsage, code, args)
		require.NotEmpty(t, stderr)
	}
	code, _, help := check("--help")
	require.Zero(t, code)
	for _, want := range []string{"Examples:", "Exit codes:", "--unknown-keys"} {
		require.Contains(t, help, want)
	}
}
