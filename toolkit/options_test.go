package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// clearVariables clears all variables that are read.
func clearVariables(t *testing.T) {
	t.Helper()
	names := []string{"NO_RUNTIME_CONFIG", "CONTAINERD_CONFIG", "CONTAINERD_SOCKET", "DOCKER_CONFIG", "DOCKER_SOCKET", "CRIO_CONFIG", "CRIO_SOCKET"}
	for flag, name := range environment {
		names = append(append(names, name), aliases[flag]...)
	}
	for _, s := range nvidia.ToolkitSettings() {
		if s.Variable != "" && !strings.HasSuffix(s.Variable, "*") {
			names = append(names, s.Variable)
		}
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
		{"", "", "no command (known here: plan, apply, verify, restore, run, status, audit, completion, help, version)"},
		{"aply", "", `unknown command "aply", did you mean "apply"?`},
		{"apply now", "", `apply takes flags only, not "now"`},
		{"apply --bogus", "", "unknown flag --bogus"},
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
		{"apply --runtime-restart-mode=kill", "", "--runtime-restart-mode=kill: it is auto, systemd, signal, none, or empty"},
		{"apply --nvidia-runtime-name=nvidia", "", "--nvidia-runtime-name needs --runtime-restart-mode"},
		{"apply --nvidia-runtime-set-as-default --runtime-restart-mode=auto", "", "--nvidia-runtime-set-as-default needs --nvidia-runtime-name"},
		{"apply --nvidia-runtime-name=NV --runtime-restart-mode=auto", "", "lower-case letters, digits and dashes"},
		{"apply", "CDI_ENABLED=perhaps", `environment variable CDI_ENABLED, for --cdi-enabled: "perhaps" is neither true nor false`},
		{"apply --set-as-default --restart-mode=auto", "", "--nvidia-runtime-set-as-default needs --nvidia-runtime-name"},
		{"apply --runtime-class=nvidia", "", "--nvidia-runtime-name needs --runtime-restart-mode"},
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

// The names of the variables and flags that people's files have are those of NVIDIA's toolkit
// 1.15 to 1.20. None of them ends the program; one that is not followed is named.
func TestEveryVariableOfTheReferenceInstallerIsAccepted(t *testing.T) {
	const nothing = ""
	for _, c := range []struct{ variables, unserved string }{ // unserved: parts of name and message; "": followed
		{"ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS=true", nothing},
		{"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=false", nothing},
		{"CDI_ENABLED=true", nothing},
		{"CDI_KIND=management.nvidia.com/gpu", "kinds are always"},
		{"CDI_OUTPUT_DIR=/etc/cdi", nothing},
		{"CONTAINERD_CONFIG=/var/lib/rancher/k3s/agent/etc/containerd/config.toml CONTAINERD_SOCKET=/run/k3s/containerd/containerd.sock", nothing},
		{"CONTAINERD_CONFIG=/a DOCKER_CONFIG=/b CRIO_CONFIG=/c CRIO_SOCKET=/d", nothing},
		{"CONTAINERD_CONFIG=/a DOCKER_CONFIG=/b RUNTIME=containerd", "DOCKER_CONFIG=/b: RUNTIME=containerd is set"},
		{"CONTAINERD_RESTART_MODE=systemd", nothing},
		{"CONTAINERD_RESTART_MODE=systemd DOCKER_RESTART_MODE=signal", "DOCKER_RESTART_MODE=signal: CONTAINERD_RESTART_MODE=systemd counts"},
		{"CONTAINERD_RUNTIME_CLASS=nvidia", "CONTAINERD_RUNTIME_CLASS=nvidia: no handler is added"},
		{"CONTAINERD_RUNTIME_CLASS=nvidia RUNTIME_RESTART_MODE=auto", nothing},
		{"CONTAINERD_RUNTIME_CLASS=nvidia CRIO_RUNTIME_CLASS=nvidia DOCKER_RUNTIME_NAME=nvidia NVIDIA_RUNTIME_NAME=nvidia RUNTIME_RESTART_MODE=auto", nothing},
		{"CONTAINERD_RUNTIME_CLASS=a NVIDIA_RUNTIME_NAME=b RUNTIME_RESTART_MODE=auto", "CONTAINERD_RUNTIME_CLASS=a: NVIDIA_RUNTIME_NAME=b counts"},
		{"CONTAINERD_RUNTIME_CLASS=nvidia CONTAINERD_SET_AS_DEFAULT=true", "CONTAINERD_RUNTIME_CLASS=nvidia: no handler|CONTAINERD_SET_AS_DEFAULT=true: no handler is added that could be the default"},
		{"CONTAINERD_RUNTIME_CLASS=nvidia CONTAINERD_SET_AS_DEFAULT=true RUNTIME_RESTART_MODE=auto", nothing},
		{"CONTAINERD_SET_AS_DEFAULT=false NVIDIA_RUNTIME_SET_AS_DEFAULT=true NVIDIA_RUNTIME_NAME=nvidia RUNTIME_RESTART_MODE=auto", "CONTAINERD_SET_AS_DEFAULT=false: NVIDIA_RUNTIME_SET_AS_DEFAULT=true counts"},
		{"CONTAINERD_SET_AS_DEFAULT=false", nothing},
		{"CRIO_SET_AS_DEFAULT=true", "CRIO_SET_AS_DEFAULT=true: no handler"},
		{"DOCKER_SET_AS_DEFAULT=true", "DOCKER_SET_AS_DEFAULT=true: no handler"},
		{"CONTAINERD_RUNTIME_CONFIG_OVERRIDE={}", nothing},
		{`CONTAINERD_RUNTIME_CONFIG_OVERRIDE={"x":1}`, "only the handler is added"},
		{"CONTAINERD_RUNTIME_TYPE=io.containerd.runc.v2", nothing},
		{"CONTAINERD_RUNTIME_TYPE=io.containerd.runc.v1", "always io.containerd.runc.v2"},
		{"CONTAINERD_USE_LEGACY_CONFIG=true", "keeps its version"},
		{"CREATE_DEVICE_NODES=control", nothing},
		{"CREATE_DEVICE_NODES=none", "always created"},
		{"CRIO_CONFIG_MODE=hook", "no hook"},
		{"CRIO_HOOKS_DIR=/x", "no hook"},
		{"CRIO_HOOK_FILENAME=x", "no hook"},
		{"DEV_ROOT=/a", nothing},
		{"DEV_ROOT_CTR_PATH=/a", "the host is mounted at HOST_ROOT"},
		{"DOCKER_CONFIG=/etc/docker/daemon.json DOCKER_SOCKET=/run/docker.sock DOCKER_RESTART_MODE=signal DOCKER_RUNTIME_NAME=nvidia", nothing},
		{"DRIVER_ROOT=/a NVIDIA_DRIVER_ROOT=/a NVIDIA_DEV_ROOT=/b", nothing},
		{"DRIVER_ROOT_CTR_PATH=/a", "the host is mounted at HOST_ROOT"},
		{"ENABLE_CDI=true", nothing},
		{"CDI_ENABLED=true ENABLE_CDI=false", "ENABLE_CDI=false: CDI_ENABLED=true counts"},
		{"ENABLE_NRI_PLUGIN=true", nothing},
		{"ENABLE_NRI_PLUGIN=false", "by NRI wherever the runtime has it"},
		{"HOST_ROOT_MOUNT=/host", nothing},
		{"HOST_ROOT=/a HOST_ROOT_MOUNT=/b", "HOST_ROOT_MOUNT=/b: HOST_ROOT=/a counts"},
		{"NO_DAEMON=false", nothing},
		{"NO_DAEMON=true", "the command apply"},
		{"NO_RUNTIME_CONFIG=true", nothing},
		{"NO_RUNTIME_CONFIG=true RUNTIME_RESTART_MODE=auto", "RUNTIME_RESTART_MODE=auto: NO_RUNTIME_CONFIG=true forbids"},
		{"NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES=a", "POD_NAMESPACE alone"},
		{"NRI_NAMESPACE=gpu-operator NRI_SOCKET=/s", nothing},
		{"NRI_PLUGIN_INDEX=5", "fixed"},
		{"NVIDIA_CONTAINER_CLI_DEBUG=/x", "no nvidia-container-cli"},
		{"NVIDIA_CONTAINER_RUNTIME_DEBUG=/x", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION=true", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL=debug", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_MODE=cdi", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES=nvidia.cdi.k8s.io/", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=management.nvidia.com/gpu", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_RUNTIME_RUNTIMES=runc", "gpu-oci-runtime"},
		{"NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES=x", "NVIDIA's toolkit"},
		{"NVIDIA_RUNTIME_DIR=/x", "TOOLKIT_INSTALL_DIR"},
		{"PID_FILE=/x", "the lock"},
		{"TOOLKIT_PID_FILE=/x", "the lock"},
		{"ROOT=/usr/local/nvidia", "the directory itself"},
		{"TOOLKIT_ROOT=/x", "the directory itself"},
		{"RUNTIME=containerd", nothing},
		{"RUNTIME_ARGS=--socket=/x", "as a variable"},
		{"RUNTIME_CONFIG=/a RUNTIME_DROP_IN_CONFIG=/b RUNTIME_SOCKET=/c", nothing},
		{"RUNTIME_CONFIG_SOURCE=command,file", nothing},
		{"RUNTIME_CONFIG_SOURCES=command", "over its socket"},
		{"RUNTIME_DROP_IN_CONFIG_HOST_PATH=/x", "the host's path"},
		{"RUNTIME_ENABLE_CDI=true", nothing},
		{"RUNTIME_ENABLE_CDI=false", "CDI_ENABLED"},
		{"RUNTIME_EXECUTABLE_PATH=/x", "over its socket"},
		{"RUNTIME_RESTART_MODE=systemd", nothing},
		{"RUNTIME_RESTART_MODE=signal", "RUNTIME_RESTART_MODE=signal: Docker alone"},
		{"RUNTIME_RESTART_MODE=signal RUNTIME=docker", nothing},
		{"TOOLKIT_DEBUG=true", "one level"},
		{"TOOLKIT_INSTALL_DIR=/usr/local/nvidia", nothing},
		{"TOOLKIT_PACKAGE_TYPE=auto", nothing},
		{"TOOLKIT_PACKAGE_TYPE=deb", "of the image"},
		{"TOOLKIT_SOURCE_ROOT=/x", "of the image"},
	} {
		t.Run(c.variables, func(t *testing.T) {
			o, err := parsed(t, "run", strings.Fields(c.variables)...)
			require.NoError(t, err)
			var want []string
			if c.unserved != "" {
				want = strings.Split(c.unserved, "|")
			}
			require.Len(t, o.config.Unserved, len(want), "%v", o.config.Unserved)
			for i, u := range o.config.Unserved {
				require.Contains(t, u.Name+": "+u.Message, want[i])
			}
			require.Equal(t, o.config.Unserved, o.config.State(setup.Wanted{}, nil).Unserved, "others read it in the state")
		})
	}
}

func TestEveryFlagOfTheReferenceInstallerIsAccepted(t *testing.T) {
	o, err := parsed(t, "run --restart-mode=systemd --runtime-class=nvidia --set-as-default=false --socket=/s --config=/c --drop-in-config=/d --enable-cdi=false --nvidia-driver-root=/r --nri-namespace=gpus --runtime=containerd --host-root=/host")
	require.NoError(t, err)
	require.Empty(t, o.config.Unserved)
	require.Equal(t, []string{"systemd", "nvidia", "/s", "/c", "/d", "/r", "gpus"},
		[]string{o.config.Runtime.RestartMode, o.config.Handler, o.config.Runtime.Socket, o.config.Runtime.Config, o.config.Runtime.DropIn, o.config.DriverRoot, o.config.Namespace})
	o, err = parsed(t, "run --no-daemon --pid-file /run/toolkit.pid --enable-nri-plugin --nvidia-container-runtime.mode cdi --toolkit-package-type=auto --use-legacy-config=false --no-runtime-config")
	require.NoError(t, err)
	require.Equal(t, []string{"--no-daemon", "--nvidia-container-runtime.mode", "--pid-file"}, []string{o.config.Unserved[0].Name, o.config.Unserved[1].Name, o.config.Unserved[2].Name})
	require.Len(t, o.config.Unserved, 3)
	require.NotContains(t, o.usage(), "pid-file")
}

func TestFollowedAndUnfollowedVariablesDiffer(t *testing.T) {
	for _, s := range nvidia.ToolkitSettings() {
		for flag, own := range environment {
			require.NotContains(t, append([]string{own}, aliases[flag]...), s.Variable, "it is read")
		}
	}
}

// --- docs/toolkit.md ---

const page = "../docs/toolkit.md"

// requireSection requires that a generated section of the page has a content.
func requireSection(t *testing.T, name, content string) {
	t.Helper()
	golden.RequireSection(t, page, "<!-- "+name+": made by go test ./toolkit -update -->\n", "<!-- end of "+name+" -->\n", "\n"+content+"\n")
}

// codes returns names as code spans.
func codes(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}

var (
	inBrackets  = regexp.MustCompile(` \[\$\w+\]`)
	defaultText = regexp.MustCompile(` \(default ([^)]*)\)`)
)

func TestDocumentedFlagsMatchTheProgram(t *testing.T) {
	o, err := parsed(t, "plan")
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("| flag | variables | default | meaning |\n|---|---|---|---|\n")
	o.flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return // a flag of the reference installer's
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		var variables []string
		if first := environment[f.Name]; first != "" {
			variables = append([]string{first}, aliases[f.Name]...)
		}
		usage, value := inBrackets.ReplaceAllString(f.Usage, ""), ""
		switch text := defaultText.FindStringSubmatch(usage); {
		case text != nil:
			usage, value = strings.Replace(usage, text[0], "", 1), text[1]
		case f.DefValue != "":
			value = "`" + f.DefValue + "`"
		}
		require.NotContains(t, usage, "|")
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, codes(variables), value, usage)
	})
	requireSection(t, "flags", b.String())
}

func TestReferenceInstallersVariablesAreDocumented(t *testing.T) {
	var b strings.Builder
	b.WriteString("| variables | flags | why they have no effect, and what to do |\n|---|---|---|\n")
	all := nvidia.ToolkitSettings()
	for len(all) > 0 {
		why := all[0].Why
		var variables, flags []string
		all = slices.DeleteFunc(all, func(s nvidia.Setting) bool {
			if s.Why != why {
				return false
			}
			if s.Variable != "" {
				variables = append(variables, s.Variable)
			}
			for _, name := range s.Flags {
				flags = append(flags, "--"+name)
			}
			return true
		})
		fmt.Fprintf(&b, "| %s | %s | %s |\n", codes(variables), codes(flags), why)
	}
	requireSection(t, "settings without effect", b.String())
}
