package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/program"
)

func TestHelpHasEnvironmentExamplesAndExitCodes(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"run", "--help"}, {"--listen=", "--help"}, {"devices", "--help"}} {
		code, help, _ := execute(t.Context(), args...)
		require.Zero(t, code)
		for _, want := range []string{"Examples:", "Exit codes:", "[$KUBELET_SOCKET]", "[$DEVICE_LIST_STRATEGY]", "command line before environment"} {
			require.Contains(t, help, want)
		}
		for flag, variable := range settings.Environment {
			if flag == "shadow" { // an alias, which the help leaves out
				continue
			}
			require.Contains(t, help, "--"+flag)
			require.Contains(t, help, variable)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"--listen=", "--version"}, {"devices", "--version"}, {"mps-daemon", "--version"}} {
		code, out, _ := execute(t.Context(), args...)
		require.Zero(t, code)
		require.Contains(t, out, "gpu-device-plugin ")
	}
}

func TestUnknownCommandIsRefused(t *testing.T) {
	code, _, stderr := execute(t.Context(), "device")
	require.Equal(t, program.Usage, code)
	require.Equal(t, "gpu-device-plugin: unknown command \"device\", did you mean \"devices\"? See gpu-device-plugin --help\n", stderr)
}

func TestDevicesNeedsAConfigurationName(t *testing.T) {
	code, _, stderr := execute(t.Context(), "devices", "--config-dir", configs(t), "--host-root", t.TempDir())
	require.Equal(t, program.Usage, code)
	require.Contains(t, stderr, "name one with --config: there are bad, good")
}
