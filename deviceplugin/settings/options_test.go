package settings

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestPrecedenceOfCommandLineEnvironmentAndFile(t *testing.T) {
	path := write(t, "version: v1\nflags:\n  failOnInitError: false\n  nvidiaDriverRoot: /from/file\n  nvidiaDevRoot: /from/file\n")
	o, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/from/file", *o.Config.Flags.NvidiaDriverRoot)
	require.False(t, *o.Config.Flags.FailOnInitError)

	t.Setenv("NVIDIA_DRIVER_ROOT", "/from/environment")
	t.Setenv("KUBELET_TIMEOUT", "3s")
	t.Setenv("CONFIG_FILE", path)
	o, err = Parse(Command{}, nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/from/environment", *o.Config.Flags.NvidiaDriverRoot)
	require.Equal(t, "/from/file", *o.Config.Flags.NvidiaDevRoot)
	require.Equal(t, 3*time.Second, o.KubeletTimeout)

	o, err = Parse(Command{}, []string{"--nvidia-driver-root", "/from/line"}, io.Discard) // as the reference spells it
	require.NoError(t, err)
	require.Equal(t, "/from/line", *o.Config.Flags.NvidiaDriverRoot)
}

func TestReferenceFilesAreAcceptedOrRefusedByField(t *testing.T) {
	for text, want := range map[string]string{
		// Its documented defaults, except for unsupported settings.
		`
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  gdsEnabled: false
  mofedEnabled: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: ["cdi-cri"]
    deviceIDStrategy: "uuid"
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
  gfd:
    oneshot: false
    sleepInterval: 60s
sharing:
  timeSlicing: {}
resources: {}
`: "",
		"version: v1": "",
		"flags: {}":   "",
		"version: v2": `version: "v2" is not known, did you mean "v1"?`,
		"version: v1\nflags: {migStrategy: mixed, gdsEnabled: true, plugin: {deviceListStrategy: [envvar, cdi-annotations], passDeviceSpecs: true}}": "",
		"version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}":                                                    "",
		"version: v1\nresources: {gpus: [{pattern: '*', name: gpu}]}\nimex: {required: true}":                                                        "",
		"version: v1\nflags: {deviceDiscoveryStrategy: tegra}":                                                                                       `flags.deviceDiscoveryStrategy: "tegra" is not supported: NVML does not know integrated GPUs; remove it, or write "auto"`,
		"version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri, envvar]}}":                                                                      "",
		"version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}":                                                            "",
		"version: v1\nflags: {failOnInitErorr: true}":                                                                                                `flags.failOnInitErorr: unknown key`,
		"version: v1\nflags: {failOnInitError: maybe}":                                                                                               "failOnInitError",
	} {
		_, err := Parse(Command{}, []string{"--config-file", write(t, text)}, io.Discard)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, "config.yaml: ")
		require.ErrorContains(t, err, want)
	}
}

func TestUnsupportedSettingsAreRefused(t *testing.T) {
	for _, arg := range []string{
		"--mig-strategy=singel", "--device-list-strategy=cdi", "--device-list-strategy=volume-mounts,mounts",
		"--device-discovery-strategy=tegra", "--cdi-feature-flags=x", "--imex-channel-ids=1", "--unknown-keys=maybe", "--driver-root=relative", "--log-format=xml", "--output=yaml", "--kubelet-timeout=-1s", "argument",
	} {
		_, err := Parse(Command{}, []string{arg}, io.Discard)
		require.Error(t, err, arg)
	}
}

func TestRefusedSettingIsNamedByItsOrigin(t *testing.T) {
	path := write(t, "version: v1\nflags: {deviceDiscoveryStrategy: tegra}")
	_, err := Parse(Command{}, []string{"--config-file", path, "--device-list-strategy=cdi-cry", "--pass-device-specs=false"}, io.Discard)
	require.EqualError(t, err, `--device-list-strategy: "cdi-cry" is not known, did you mean "cdi-cri"?`)
	t.Setenv("DEVICE_LIST_STRATEGY", "cdi-cri,volume-mount")
	_, err = Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.EqualError(t, err, `$DEVICE_LIST_STRATEGY: "volume-mount" is not known, did you mean "volume-mounts"?`)
	t.Setenv("DEVICE_LIST_STRATEGY", "cdi-cri,volume-mounts")
	_, err = Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.EqualError(t, err, path+`: flags.deviceDiscoveryStrategy: "tegra" is not supported: NVML does not know integrated GPUs; remove it, or write "auto"`)
}

func TestTooLongSocketPathIsRefused(t *testing.T) {
	folder := "/" + strings.Repeat("x", 80)
	args := []string{"--kubelet-socket", folder + "/kubelet.sock"}
	_, err := Parse(Command{}, args, io.Discard)
	require.NoError(t, err)
	_, err = Parse(Command{}, append(args, "--mig-strategy=mixed"), io.Discard)
	require.ErrorContains(t, err, folder+"/nvidia-mig-")
	require.ErrorContains(t, err, "a unix socket can have 107")
	path := write(t, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: a-name-that-is-not-all-that-short}]}}")
	_, err = Parse(Command{}, append(args, "--config-file", path), io.Discard)
	require.ErrorContains(t, err, folder+"/nvidia-a-name-that-is-not-all-that-short.sock")
}

func TestEveryFlagAndVariableOfTheReferenceIsAccepted(t *testing.T) {
	for _, variable := range []string{"NVIDIA_CTK_PATH", "NVIDIA_CDI_HOOK_PATH"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, "/from/"+variable)
			o, err := Parse(Command{}, nil, io.Discard)
			require.NoError(t, err)
			require.Equal(t, "/from/"+variable, *o.Config.Flags.Plugin.NvidiaCTKPath)
			require.Equal(t, []string{"nvidia-cdi-hook-path=/from/" + variable + " ($" + variable + ")"}, o.NonDefaults)
		})
	}
	o, err := Parse(Command{}, []string{
		"--nvidia-driver-root=/a", "--nvidia-dev-root=/b", "--nvidia-ctk-path=/c", "--container-driver-root=/d", "--mps-root=/e",
		"--device-discovery-strategy=nvml", "--gds-enabled=false", "--mofed-enabled=false", "--gdrcopy-enabled=false", "--imex-required=false",
		"--device-list-strategy=cdi-cri", "--cdi-annotation-prefix=cdi.k8s.io/", "--shared-devices-allocation-policy=distributed",
	}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/d", *o.Config.Flags.Plugin.ContainerDriverRoot)
	require.Contains(t, o.NonDefaults, "driver-root=/a (--driver-root)")
	for flag, path := range filePaths {
		require.Contains(t, Environment, flag, path)
	}
}

func TestUnknownKeysAreIgnoredOnRequest(t *testing.T) {
	path := write(t, "version: v1\nflags: {migStrategi: none, plugin: {deviceIDstrategy: uuid}}")
	_, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.ErrorContains(t, err, `flags.migStrategi: unknown key, did you mean "migStrategy"?`)

	t.Setenv("UNKNOWN_KEYS", "warn")
	o, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	var log bytes.Buffer
	o.LogIgnoredKeys(slog.New(slog.NewTextHandler(&log, nil)))
	require.Contains(t, log.String(), `key=flags.migStrategi`)
	require.Contains(t, log.String(), `key=flags.plugin.deviceIDstrategy`)
	require.Equal(t, []string{"config-file=" + path + " (--config-file)", "unknown-keys=warn ($UNKNOWN_KEYS)"}, o.NonDefaults)
}

func TestXIDPolicyFromFileAndVariables(t *testing.T) {
	path := write(t, "health:\n  xids: [{xid: 79, recovery: never}, {xid: 31, action: unhealthy}, {xid: 48, action: ignore}]\n  quietPeriod: 90s")
	o, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, gpu.RecoveryNever, o.Policy.Rule(79).Recovery)
	require.Equal(t, gpu.ActionUnhealthy, o.Policy.Rule(31).Action)
	require.Equal(t, gpu.ActionIgnore, o.Policy.Rule(48).Action)
	require.Equal(t, 90*time.Second, o.Policy.QuietPeriod())

	t.Setenv("DP_DISABLE_HEALTHCHECKS", "all")
	t.Setenv("DP_ENABLE_HEALTHCHECKS", "48")
	o, err = Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, gpu.ActionIgnore, o.Policy.Rule(79).Action)
	require.Equal(t, gpu.ActionUnhealthy, o.Policy.Rule(48).Action, "the environment wins over the file")
	require.Contains(t, o.NonDefaults, "DP_DISABLE_HEALTHCHECKS=all")

	t.Setenv("DP_ENABLE_HEALTHCHECKS", "some")
	_, err = Parse(Command{}, nil, io.Discard)
	require.EqualError(t, err, `environment variable DP_ENABLE_HEALTHCHECKS: "some" is not an XID: write XIDs separated by commas, as in 48,79, or all`)
}

func TestDocumentationExamplesAreValid(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	served := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)```yaml\n(version: v1\n.*?)```").FindAllSubmatch(text, -1) {
			_, err := ParseFile(page, m[1], "refuse")
			require.NoError(t, err, "%s: %s", page, m[1])
			served++
		}
	}
	require.Greater(t, served, 4, "examples are looked for")
}

func TestConfigurationIsChosenByName(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), sliced(2))
	writeFile(t, filepath.Join(dir, "b"), sliced(3))
	o, err := Parse(Command{Mode: PrintDevices}, []string{"--config-dir", dir, "--config", "b", "--host-root", host}, io.Discard)
	require.NoError(t, err)
	o, err = o.Resolve()
	require.NoError(t, err)
	require.Equal(t, 3, o.Config.Sharing.TimeSlicing.Resources[0].Replicas)
	for _, args := range [][]string{
		{"--config", "a"}, {"--config-dir", dir, "--config-file", "x"}, {"--config-dir", dir, "--node-label", "x"}, {"--config-dir", dir, "--fallback-strategies", "x"},
	} {
		_, err := Parse(Command{Mode: PrintDevices}, args, io.Discard)
		require.Error(t, err, args)
	}
}

func TestModeIsTheCommandsUnlessAFlagOrVariableAsks(t *testing.T) {
	mode := func(command Mode, args ...string) Mode {
		t.Helper()
		o, err := Parse(Command{Mode: command}, args, io.Discard)
		require.NoError(t, err)
		return o.Mode
	}
	require.Equal(t, Serve, mode(Serve))
	require.Equal(t, PrintDevices, mode(Serve, "--dry-run"))
	require.Equal(t, Shadow, mode(Serve, "--shadow"))
	require.Equal(t, PrintDevices, mode(Shadow, "--dry-run"))
	t.Setenv("SHADOW", "true")
	require.Equal(t, Shadow, mode(Serve))
	require.Equal(t, PrintDevices, mode(PrintDevices))
}
