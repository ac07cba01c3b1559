package cli

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/config"
)

// environment maps flags to their environment variables.
var environment = map[string]string{
	"host-root":                     "HOST_ROOT",
	"driver-root":                   "NVIDIA_DRIVER_ROOT",
	"dev-root":                      "NVIDIA_DEV_ROOT",
	"cdi-output-dir":                "CDI_OUTPUT_DIR",
	"toolkit-install-dir":           "TOOLKIT_INSTALL_DIR",
	"state-dir":                     "GPUREADY_STATE_DIR",
	"hook-program":                  "GPUREADY_HOOK_PROGRAM",
	"runtime-socket":                "RUNTIME_SOCKET",
	"nri-socket":                    "NRI_SOCKET",
	"runtime":                       "RUNTIME",
	"runtime-config":                "RUNTIME_CONFIG",
	"runtime-drop-in-config":        "RUNTIME_DROP_IN_CONFIG",
	"runtime-restart-mode":          "RUNTIME_RESTART_MODE",
	"nvidia-runtime-name":           "NVIDIA_RUNTIME_NAME",
	"nvidia-runtime-set-as-default": "NVIDIA_RUNTIME_SET_AS_DEFAULT",
	"cdi-enabled":                   "CDI_ENABLED",
	"accept-nvidia-visible-devices-envvar-when-unprivileged": "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED",
	"accept-nvidia-visible-devices-as-volume-mounts":         "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",
	"nri-workload-namespaces":                                "GPUREADY_NRI_WORKLOAD_NAMESPACES",
	"namespace":                                              "POD_NAMESPACE",
	"listen":                                                 "LISTEN_ADDRESS",
	"log-format":                                             "LOG_FORMAT",
}

// aliases are further variables that the reference installer has for a flag.
var aliases = map[string][]string{
	"host-root":                     {"HOST_ROOT_MOUNT"},
	"driver-root":                   {"DRIVER_ROOT"},
	"dev-root":                      {"DEV_ROOT"},
	"nvidia-runtime-name":           {"CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"},
	"nvidia-runtime-set-as-default": {"CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"},
	"cdi-enabled":                   {"ENABLE_CDI"},
}

// foreign maps variables of the reference installer that are not read to their equivalent
// here. A name that ends in _ is a prefix.
var foreign = map[string]string{
	"CDI_KIND":                         "the kinds are always those of docs/toolkit-cdi.md",
	"CREATE_DEVICE_NODES":              "missing control device nodes are always created",
	"DEV_ROOT_CTR_PATH":                "the host is mounted at HOST_ROOT, and NVIDIA_DEV_ROOT is the host's path",
	"DRIVER_ROOT_CTR_PATH":             "the host is mounted at HOST_ROOT, and NVIDIA_DRIVER_ROOT is the host's path",
	"NO_DAEMON":                        "the command apply does it once",
	"NVIDIA_CONTAINER_RUNTIME_":        "the settings of gpu-oci-runtime are in a file next to it, see docs/oci-runtime.md",
	"ROOT":                             "TOOLKIT_INSTALL_DIR is the directory itself, not the one above it",
	"RUNTIME_DROP_IN_CONFIG_HOST_PATH": "RUNTIME_DROP_IN_CONFIG is the host's path",
	"RUNTIME_ENABLE_CDI":               "CDI_ENABLED makes the runtime resolve CDI names; specifications are always written",
}

// describe adds to each flag the names of its variables, for --help.
func describe(f *pflag.FlagSet) {
	config.Describe(f, environment)
	for flag, names := range aliases {
		for _, name := range names {
			config.Describe(f, map[string]string{flag: name})
		}
	}
}

// fromEnvironment sets flags that are not on the command line from their variables. It
// refuses two variables of one flag with different values.
func fromEnvironment(f *pflag.FlagSet) error {
	chosen := map[string]string{}
	for flag, first := range environment {
		chosen[flag] = first
		for _, name := range aliases[flag] {
			was, is := os.Getenv(chosen[flag]), os.Getenv(name)
			switch {
			case is == "" || f.Changed(flag):
			case was == "":
				chosen[flag] = name
			case was != is:
				return fmt.Errorf("%s=%s and %s=%s: both are for --%s; leave one of them out", chosen[flag], was, name, is, flag)
			}
		}
	}
	return config.Env(f, chosen)
}

// unread returns the variables of the reference installer that are set but have no effect.
func unread(environ []string) []string {
	var found []string
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		instead := foreign[name]
		for prefix, words := range foreign {
			if strings.HasSuffix(prefix, "_") && strings.HasPrefix(name, prefix) {
				instead = cmp.Or(instead, words)
			}
		}
		if value != "" && instead != "" {
			found = append(found, name+": "+instead)
		}
	}
	slices.Sort(found)
	return found
}

// containerPrefix is the directory in which the operator of the reference installer mounts
// the host's directories into its container. Such paths are not the host's.
const containerPrefix = "/runtime/"

// checkHostPath returns an error if a path is not one of the host. An empty path is valid.
func checkHostPath(name, p string) error {
	switch {
	case p == "":
	case !strings.HasPrefix(p, "/"):
		return fmt.Errorf("%s=%s: it must be an absolute path of the host", name, p)
	case strings.HasPrefix(p, containerPrefix):
		return fmt.Errorf("%s=%s: that is a path in the container of NVIDIA's toolkit; use the host's path, such as /etc/containerd/config.toml, or omit it to have it detected", name, p)
	}
	return nil
}
