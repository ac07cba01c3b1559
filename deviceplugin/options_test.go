package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestTheCommandLineWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	path := write(t, "version: v1\nflags:\n  failOnInitError: false\n  nvidiaDriverRoot: /from/file\n  nvidiaDevRoot: /from/file\n")
	o, err := parse([]string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/from/file", o.driverRoot)
	require.False(t, o.failOnInitError)

	t.Setenv("NVIDIA_DRIVER_ROOT", "/from/environment")
	t.Setenv("KUBELET_TIMEOUT", "3s")
	t.Setenv("CONFIG_FILE", path)
	o, err = parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/from/environment", o.driverRoot)
	require.Equal(t, "/from/file", o.devRoot)
	require.Equal(t, 3*time.Second, o.kubeletTimeout)

	o, err = parse([]string{"--nvidia-driver-root", "/from/line"}, io.Discard) // as the reference spells it
	require.NoError(t, err)
	require.Equal(t, "/from/line", o.driverRoot)
}

func TestTheReferencesFileIsTakenOrRefusedByTheFieldsName(t *testing.T) {
	for text, want := range map[string]string{
		// Its defaults, as its documentation shows them, but for what is not served.
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
		"flags: {}":   `version: "" is not known; write v1`,
		"version: v2": `version: "v2" is not known; write v1`,
		"version: v1\nflags: {migStrategy: mixed}":                                                `flags.migStrategy: "mixed" is not served yet; remove it, or write "none"`,
		"version: v1\nflags: {gdsEnabled: true}":                                                  "flags.gdsEnabled: true is not served yet",
		"version: v1\nflags: {plugin: {deviceListStrategy: envvar}}":                              `flags.plugin.deviceListStrategy: "envvar" is not served yet; remove it, or write "cdi-cri"`,
		"version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri, envvar]}}":                   `flags.plugin.deviceListStrategy: "cdi-cri,envvar" is not served yet`,
		"version: v1\nflags: {plugin: {deviceIDStrategy: index}}":                                 "flags.plugin.deviceIDStrategy",
		"version: v1\nflags: {plugin: {passDeviceSpecs: true}}":                                   "flags.plugin.passDeviceSpecs",
		"version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}": "sharing.timeSlicing: not served yet",
		"version: v1\nresources: {gpus: [{pattern: '*', name: gpu}]}":                             "resources.gpus: not served yet",
		"version: v1\nimex: {required: true}":                                                     "imex.required: not served yet",
		"version: v1\nflags: {failOnInitErorr: true}":                                             `flags.failOnInitErorr: unknown key`,
		"version: v1\nflags: {failOnInitError: maybe}":                                            "failOnInitError",
	} {
		_, err := parse([]string{"--config-file", write(t, text)}, io.Discard)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, "config.yaml: ")
		require.ErrorContains(t, err, want)
	}
}

func TestWhatIsNotServedIsRefused(t *testing.T) {
	for _, arg := range []string{
		"--mig-strategy=single", "--device-list-strategy=envvar", "--device-list-strategy=cdi-cri,cdi-annotations",
		"--device-id-strategy=index", "--pass-device-specs", "--log-format=xml", "--output=yaml", "--kubelet-timeout=-1s", "argument",
	} {
		_, err := parse([]string{arg}, io.Discard)
		require.Error(t, err, arg)
	}
}

func TestHelpNamesEnvironmentExamplesAndExitCodes(t *testing.T) {
	var help bytes.Buffer
	require.Zero(t, run(t.Context(), time.Now(), []string{"--help"}, io.Discard, &help))
	for _, want := range []string{"Examples:", "Exit codes:", "[$KUBELET_SOCKET]", "[$DEVICE_LIST_STRATEGY]", "command line before environment"} {
		require.Contains(t, help.String(), want)
	}
	for flag, variable := range environment {
		require.Contains(t, help.String(), "--"+flag)
		require.Contains(t, help.String(), variable)
	}
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), time.Now(), []string{"--version"}, &out, io.Discard))
	require.Contains(t, out.String(), "gpu-device-plugin ")
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("version: v1\nflags: {migStrategy: none, plugin: {deviceListStrategy: cdi-cri}}"))
	f.Add([]byte("version: v1\nsharing: {timeSlicing: {resources: [{name: a, replicas: 2}]}}"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseFile(data, "fuzz.yaml")
		if err == nil {
			require.Equal(t, "v1", c.Version)
			require.Contains(t, []string{"", "none"}, value(c.Flags.MigStrategy))
		} else {
			require.ErrorContains(t, err, "fuzz.yaml: ")
		}
	})
}
