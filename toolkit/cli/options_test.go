package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// clearVariables clears all variables that are read.
func clearVariables(t *testing.T) {
	t.Helper()
	names := []string{"NO_RUNTIME_CONFIG", "CONTAINERD_CONFIG", "CONTAINERD_SOCKET", "DOCKER_CONFIG", "DOCKER_SOCKET", "CRIO_CONFIG", "CRIO_SOCKET"}
	for flag, name := range environment {
		names = append(append(names, name), aliases[flag]...)
	}
	for _, name := range names {
		t.Setenv(name, "")
	}
}

func parsed(t *testing.T, line string, variables ...string) (*options, error) {
	t.Helper()
	clearVariables(t)
	for _, one := range variables {
		name, value, _ := strings.Cut(one, "=")
		t.Setenv(name, value)
	}
	return parse(strings.Fields(line))
}

func TestIncorrectUseIsRefusedWithARemedy(t *testing.T) {
	for _, c := range []struct {
		line, environ string
		want          string
	}{
		{"", "", "say what to do: plan, apply, verify, restore, run, status, audit"},
		{"aply", "", `there is no command "aply"; there are plan, apply,`},
		{"apply now", "", `apply takes flags only, not "now"`},
		{"apply --bogus", "", "unknown flag: --bogus"},
		{"apply --host-root=host", "", "--host-root=host: it must be an absolute path"},
		{"apply --cdi-output-dir=/", "", "cannot be the root directory"},
		{"verify --dry-run", "", "--dry-run is for apply, run and restore; verify changes nothing"},
		{"status -o yaml", "", "--output=yaml: it is table or json"},
		{"run --log-format=xml", "", "--log-format=xml: it is text or json"},
		{"apply --runtime=podman", "", `RUNTIME="podman" is unknown; use containerd, docker or crio`},
		{"apply --runtime-config=x", "", "--runtime-config=x: it must be an absolute path of the host"},
		{"apply", "CONTAINERD_CONFIG=x", "CONTAINERD_CONFIG=x: it must be an absolute path of the host"},
		{"apply", "RUNTIME_CONFIG=/runtime/config-dir/config.toml", "that is a path in the container of NVIDIA's toolkit; use the host's"},
		{"apply", "RUNTIME_SOCKET=/runtime/sock-dir/containerd.sock", "that is a path in the container of NVIDIA's toolkit"},
		{"apply", "CONTAINERD_CONFIG=/a DOCKER_CONFIG=/b", "CONTAINERD_CONFIG is for containerd and DOCKER_CONFIG for docker"},
		{"apply --runtime-restart-mode=kill", "", "--runtime-restart-mode=kill: it is auto, systemd, signal, none, or empty"},
		{"apply --nvidia-runtime-name=nvidia", "", "--nvidia-runtime-name needs --runtime-restart-mode"},
		{"apply --nvidia-runtime-set-as-default --runtime-restart-mode=auto", "", "--nvidia-runtime-set-as-default needs --nvidia-runtime-name"},
		{"apply --nvidia-runtime-name=NV --runtime-restart-mode=auto", "", "lower-case letters, digits and dashes"},
		{"apply", "CDI_ENABLED=perhaps", `environment variable CDI_ENABLED="perhaps": not a bool, as --cdi-enabled wants`},
		{"apply", "CDI_ENABLED=true ENABLE_CDI=false", "CDI_ENABLED=true and ENABLE_CDI=false: both are for --cdi-enabled; leave one of them out"},
		{"apply", "HOST_ROOT=/a HOST_ROOT_MOUNT=/b", "HOST_ROOT=/a and HOST_ROOT_MOUNT=/b: both are for --host-root"},
		{"apply", "CONTAINERD_RUNTIME_CLASS=a DOCKER_RUNTIME_NAME=b", "CONTAINERD_RUNTIME_CLASS=a and DOCKER_RUNTIME_NAME=b: both are for --nvidia-runtime-name"},
		{"apply --runtime-restart-mode=auto", "NO_RUNTIME_CONFIG=true", "NO_RUNTIME_CONFIG=true and --runtime-restart-mode=auto"},
		{"apply", "NO_RUNTIME_CONFIG=maybe", "NO_RUNTIME_CONFIG=maybe: it is true or false"},
	} {
		t.Run(c.line+" "+c.environ, func(t *testing.T) {
			_, err := parsed(t, c.line, strings.Fields(c.environ)...)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestVariablesOfTheReferenceInstallerAreRead(t *testing.T) {
	o, err := parsed(t, "run", "HOST_ROOT_MOUNT=/host", "DRIVER_ROOT=/d", "DEV_ROOT=/e", "CONTAINERD_RUNTIME_CLASS=nvidia", "DOCKER_RUNTIME_NAME=nvidia",
		"CONTAINERD_SET_AS_DEFAULT=true", "ENABLE_CDI=false", "RUNTIME_RESTART_MODE=systemd", "RUNTIME=containerd", "CONTAINERD_SOCKET=/s", "NO_RUNTIME_CONFIG=false")
	require.NoError(t, err)
	require.Equal(t, []string{"/host", "/d", "/e", "nvidia", "containerd", "/s", "systemd"},
		[]string{o.config.HostRoot, o.config.DriverRoot, o.config.DevRoot, o.config.Handler, o.config.Runtime.Runtime, o.config.Runtime.ContainerdSocket, o.config.Runtime.RestartMode})
	require.True(t, o.config.HandlerDefault)
	require.True(t, o.config.Configure)
	require.False(t, o.config.CDI)
}

func TestFlagsOverrideVariables(t *testing.T) {
	o, err := parsed(t, "plan --host-root=/c", "HOST_ROOT=/a", "HOST_ROOT_MOUNT=/b")
	require.NoError(t, err)
	require.Equal(t, "/c", o.config.HostRoot)
}

func TestCommandAliases(t *testing.T) {
	for line, want := range map[string]string{"uninstall": "restore", "apply --dry-run": "plan", "run --dry-run": "plan", "restore --dry-run": "restore"} {
		o, err := parsed(t, line)
		require.NoError(t, err)
		require.Equal(t, want, o.command, line)
	}
}

func TestUnreadVariablesAreReported(t *testing.T) {
	require.Empty(t, unread([]string{"PATH=/bin", "CDI_KIND=", "ROOTS=/a", "NVIDIA_CONTAINER=1", "HOST_ROOT_MOUNT=/host"}))
	found := unread([]string{"ROOT=/usr/local/nvidia", "NO_DAEMON=true", "NVIDIA_CONTAINER_RUNTIME_DEBUG=/x"})
	require.Len(t, found, 3)
	require.Contains(t, found[0], "NO_DAEMON: the command apply does it once")
	require.Contains(t, found[1], "NVIDIA_CONTAINER_RUNTIME_DEBUG: the settings of gpu-oci-runtime are in a file next to it")
	require.Contains(t, found[2], "ROOT: TOOLKIT_INSTALL_DIR is the directory itself")
	for name := range foreign {
		for flag, own := range environment {
			require.NotContains(t, append([]string{own}, aliases[flag]...), name, "it is read")
		}
	}
}

// --- docs/toolkit.md ---

// tableOf returns the rows of the table below a heading of docs/toolkit.md, by the first code
// span in each.
func tableOf(t *testing.T, heading string) map[string][]string {
	t.Helper()
	docs, err := os.ReadFile("../../docs/toolkit.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(docs), "\n"+heading+"\n")
	require.True(t, found, heading)
	text, _, _ = strings.Cut(text, "\n## ")
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		key := code(cells[0])[0]
		require.NotContains(t, rows, key)
		rows[key] = cells
	}
	return rows
}

// code returns the code spans of a cell.
func code(cell string) (all []string) {
	for i, word := range strings.Split(cell, "`") {
		if i%2 == 1 {
			all = append(all, word)
		}
	}
	return all
}

func TestDocumentedFlagsMatchTheProgram(t *testing.T) {
	o, err := parsed(t, "plan")
	require.NoError(t, err)
	rows := tableOf(t, "## Every flag")
	o.flags.VisitAll(func(f *pflag.Flag) {
		cells := rows["--"+f.Name]
		delete(rows, "--"+f.Name)
		require.Len(t, cells, 4, "--%s has no row", f.Name)
		var variables []string
		if name := environment[f.Name]; name != "" {
			variables = append([]string{name}, aliases[f.Name]...)
		}
		require.Equal(t, variables, code(cells[1]), "--%s", f.Name)
		if words := code(cells[2]); len(words) > 0 {
			require.Equal(t, f.DefValue, words[0], "--%s", f.Name)
		} else {
			require.Contains(t, []string{"", "false"}, f.DefValue, "--%s", f.Name)
		}
	})
	require.Empty(t, rows, "rows that are of no flag")
}

func TestReferenceInstallersVariablesAreDocumented(t *testing.T) {
	rows := tableOf(t, "## Coming from NVIDIA's installer")
	var written []string
	for _, cells := range rows {
		written = append(written, code(cells[0])...)
	}
	for name := range foreign {
		require.True(t, slices.ContainsFunc(written, func(w string) bool { return strings.TrimSuffix(w, "*") == name }), name)
	}
	for _, names := range aliases {
		require.Subset(t, written, names)
	}
}
