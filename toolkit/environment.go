package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nvidia"
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

// aliases are further variables that the reference installer has for a flag. Of several that are
// set, the first counts, as there.
var aliases = map[string][]string{
	"host-root":                     {"HOST_ROOT_MOUNT"},
	"driver-root":                   {"DRIVER_ROOT"},
	"dev-root":                      {"DEV_ROOT"},
	"runtime-restart-mode":          {"CONTAINERD_RESTART_MODE", "CRIO_RESTART_MODE", "DOCKER_RESTART_MODE"},
	"nvidia-runtime-name":           {"CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME", "CRIO_RUNTIME_CLASS"},
	"nvidia-runtime-set-as-default": {"CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT", "CRIO_SET_AS_DEFAULT"},
	"cdi-enabled":                   {"ENABLE_CDI"},
	"namespace":                     {"NRI_NAMESPACE"},
}

// flagAliases maps the reference installer's names of flags to ours.
var flagAliases = map[string]string{
	"config":             "runtime-config",
	"drop-in-config":     "runtime-drop-in-config",
	"enable-cdi":         "cdi-enabled",
	"nri-namespace":      "namespace",
	"nvidia-driver-root": "driver-root",
	"restart-mode":       "runtime-restart-mode",
	"runtime-class":      "nvidia-runtime-name",
	"runtime-name":       "nvidia-runtime-name",
	"set-as-default":     "nvidia-runtime-set-as-default",
	"socket":             "runtime-socket",
}

// addReferenceFlags defines the flags of the reference installer that have no effect, hidden, and
// its other names of our flags.
func addReferenceFlags(f *pflag.FlagSet) {
	for _, s := range nvidia.ToolkitSettings() {
		for _, name := range s.Flags {
			f.String(name, "", s.Why)
			f.Lookup(name).Hidden = true
			if s.Bool {
				f.Lookup(name).NoOptDefVal = "true"
			}
		}
	}
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(flagAliases[name], name))
	})
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

// fromEnvironment sets flags that are not on the command line from their variables. It returns
// the variable of each flag that it set, and the variables that are set and do not count.
func fromEnvironment(f *pflag.FlagSet) (chosen map[string]string, unserved []nodestate.Setting, err error) {
	all := map[string]string{}
	chosen = map[string]string{}
	for flag, first := range environment {
		all[flag] = first
		names := slices.DeleteFunc(append([]string{first}, aliases[flag]...), func(name string) bool { return os.Getenv(name) == "" })
		if len(names) == 0 || f.Changed(flag) {
			continue
		}
		all[flag], chosen[flag] = names[0], names[0]
		value := os.Getenv(names[0])
		for _, name := range names[1:] {
			if other := os.Getenv(name); other != value {
				unserved = append(unserved, nodestate.Setting{Name: name + "=" + other, Message: fmt.Sprintf("%s=%s counts, which is for --%s too; leave one of them out", names[0], value, flag)})
			}
		}
	}
	return chosen, unserved, config.Env(f, all)
}

// unfollowed returns the settings of the reference installer that are set and have no effect.
func unfollowed(f *pflag.FlagSet, environ []string) (found []nodestate.Setting) {
	all := nvidia.ToolkitSettings()
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		if why := nvidia.Unfollowed(all, name, value); why != "" {
			found = append(found, nodestate.Setting{Name: name + "=" + value, Message: why})
		}
	}
	for _, s := range all {
		for _, name := range s.Flags {
			if flag := f.Lookup(name); flag.Changed && !slices.Contains(s.Same, flag.Value.String()) {
				found = append(found, nodestate.Setting{Name: "--" + name, Message: s.Why})
			}
		}
	}
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
