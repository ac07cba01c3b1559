// The settings of NVIDIA's programs that ours accept and do not follow.
// Policies and manifests that people have for those programs stay valid. The program that reads
// such a setting names it in its log and its state, and the operator in the policy's status.
//
// The names are those of NVIDIA's container toolkit 1.15 to 1.20 (cmd/nvidia-ctk-installer and,
// before 1.17, tools/container) and of the validator of its GPU Operator.

package nvidia

import (
	"slices"
	"strings"
)

// Setting is an environment variable of NVIDIA's programs, and the flag that has the same meaning.
type Setting struct {
	Variable string   // if it ends in an asterisk: all variables that begin so; "": there is only a flag
	Flags    []string // names of the flag, without dashes
	Bool     bool     // the flag needs no value
	Same     []string // values that request what happens in any case
	Why      string   // why it has no effect, and what to do
}

// Unfollowed returns why a variable with a value has no effect, or "" if it is none of the
// settings, is empty, or requests what happens in any case.
func Unfollowed(settings []Setting, variable, value string) string {
	value = strings.TrimSpace(value)
	if value == "" {
		return ""
	}
	for _, s := range settings {
		prefix, is := strings.CutSuffix(s.Variable, "*")
		if s.Variable == variable && variable != "" || is && strings.HasPrefix(variable, prefix) {
			if slices.Contains(s.Same, value) {
				return ""
			}
			return s.Why
		}
	}
	return ""
}

// ToolkitSettings returns the settings of the container toolkit.
func ToolkitSettings() []Setting {
	const (
		asked   = "the runtime is asked over its socket, and its files are read"
		shim    = "the settings of gpu-oci-runtime are in a file next to it, see docs/injection.md"
		root    = "TOOLKIT_INSTALL_DIR is the directory itself, not the one above it"
		fromOCI = "the programs are those of the image"
	)
	return []Setting{
		{Variable: "CDI_KIND", Flags: []string{"cdi-kind"}, Why: "the kinds are always those of docs/injection.md"},
		{Variable: "CONTAINERD_RUNTIME_CONFIG_OVERRIDE", Flags: []string{"runtime-config-override"}, Same: []string{"{}"}, Why: "only the handler is added to the runtime's configuration; write further keys into that file"},
		{Variable: "CONTAINERD_RUNTIME_TYPE", Flags: []string{"runtime-type"}, Same: []string{"io.containerd.runc.v2"}, Why: "the handler's type is always io.containerd.runc.v2"},
		{Variable: "CONTAINERD_USE_LEGACY_CONFIG", Flags: []string{"use-legacy-config"}, Bool: true, Same: []string{"false"}, Why: "the runtime's configuration keeps its version"},
		{Variable: "CREATE_DEVICE_NODES", Flags: []string{"create-device-nodes"}, Same: []string{"control"}, Why: "missing control device nodes are always created"},
		{Variable: "CRIO_CONFIG_MODE", Flags: []string{"config-mode"}, Same: []string{"config"}, Why: "CRI-O gets a handler in a drop-in, and no hook"},
		{Variable: "CRIO_HOOKS_DIR", Flags: []string{"hooks-dir"}, Why: "CRI-O gets a handler in a drop-in, and no hook"},
		{Variable: "CRIO_HOOK_FILENAME", Flags: []string{"hook-filename"}, Why: "CRI-O gets a handler in a drop-in, and no hook"},
		{Variable: "DEV_ROOT_CTR_PATH", Flags: []string{"dev-root-ctr-path"}, Why: "the host is mounted at HOST_ROOT, and NVIDIA_DEV_ROOT is the host's path"},
		{Variable: "DRIVER_ROOT_CTR_PATH", Flags: []string{"driver-root-ctr-path"}, Why: "the host is mounted at HOST_ROOT, and NVIDIA_DRIVER_ROOT is the host's path"},
		{Variable: "ENABLE_NRI_PLUGIN", Flags: []string{"enable-nri-plugin"}, Bool: true, Same: []string{"true"}, Why: "node agents get the GPUs by NRI wherever the runtime has it; without POD_NAMESPACE none does"},
		{Variable: "NO_DAEMON", Flags: []string{"no-daemon"}, Bool: true, Same: []string{"false"}, Why: "the command apply does it once"},
		{Variable: "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES", Flags: []string{"nri-management-cdi-device-namespaces"}, Why: "all GPUs are for agents of POD_NAMESPACE alone; GPUREADY_NRI_WORKLOAD_NAMESPACES lets containers of other namespaces request some"},
		{Variable: "NRI_PLUGIN_INDEX", Flags: []string{"nri-plugin-index"}, Why: "the index is fixed"},
		{Variable: "NVIDIA_CONTAINER_CLI_DEBUG", Flags: []string{"nvidia-container-cli.debug", "nvidia-container-cli-debug"}, Why: "there is no nvidia-container-cli; the hooks report to the container runtime"},
		{Variable: "NVIDIA_CONTAINER_RUNTIME_*", Why: shim},
		{Flags: []string{"nvidia-container-runtime.debug", "nvidia-container-runtime-debug"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime.log-level", "nvidia-container-runtime-debug-log-level"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime.mode", "nvidia-container-runtime-mode"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime.modes.cdi.default-kind"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime.modes.cdi.annotation-prefixes", "nvidia-container-runtime-modes.cdi.annotation-prefixes"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime.runtimes"}, Why: shim},
		{Flags: []string{"nvidia-container-runtime-hook.skip-mode-detection"}, Bool: true, Why: "there is no such hook"},
		{Variable: "NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES", Flags: []string{"opt-in-features"}, Why: "these are features of NVIDIA's toolkit"},
		{Variable: "NVIDIA_RUNTIME_DIR", Flags: []string{"nvidia-runtime-dir", "runtime-dir"}, Why: "the handler's program is in TOOLKIT_INSTALL_DIR"},
		{Variable: "PID_FILE", Flags: []string{"pid-file"}, Why: "the lock is in the state directory"},
		{Variable: "TOOLKIT_PID_FILE", Why: "the lock is in the state directory"},
		{Variable: "ROOT", Flags: []string{"root"}, Why: root},
		{Variable: "TOOLKIT_ROOT", Flags: []string{"toolkit-root"}, Why: root},
		{Variable: "RUNTIME_ARGS", Flags: []string{"runtime-args"}, Why: "write each of its flags as a variable: RUNTIME_SOCKET, RUNTIME_CONFIG"},
		{Variable: "TOOLKIT_ARGS", Flags: []string{"toolkit-args"}, Why: "write each of its flags as a variable"},
		{Variable: "RUNTIME_CONFIG_OVERRIDE", Same: []string{"{}"}, Why: "only the handler is added to the runtime's configuration; write further keys into that file"},
		{Variable: "RUNTIME_CONFIG_SOURCE", Flags: []string{"config-source", "config-sources"}, Same: []string{"command,file", "file"}, Why: asked},
		{Variable: "RUNTIME_CONFIG_SOURCES", Same: []string{"command,file", "file"}, Why: asked},
		{Variable: "RUNTIME_DROP_IN_CONFIG_HOST_PATH", Flags: []string{"drop-in-config-host-path"}, Why: "RUNTIME_DROP_IN_CONFIG is the host's path"},
		{Variable: "RUNTIME_ENABLE_CDI", Flags: []string{"enable-cdi-in-runtime"}, Bool: true, Same: []string{"true"}, Why: "CDI_ENABLED makes the runtime resolve CDI names; specifications are always written"},
		{Variable: "RUNTIME_EXECUTABLE_PATH", Flags: []string{"executable-path"}, Why: asked},
		{Variable: "TOOLKIT_DEBUG", Flags: []string{"debug"}, Bool: true, Same: []string{"false"}, Why: "the log has one level"},
		{Variable: "TOOLKIT_PACKAGE_TYPE", Flags: []string{"toolkit-package-type"}, Same: []string{"auto"}, Why: fromOCI},
		{Variable: "TOOLKIT_SOURCE_ROOT", Flags: []string{"toolkit-source-root"}, Why: fromOCI},
		{Flags: []string{"ignore-errors"}, Bool: true, Why: "errors are always reported"},
	}
}

// ValidatorSettings returns the settings of the GPU Operator's validator that have no effect on our
// validator's daemon.
func ValidatorSettings() []Setting {
	return []Setting{
		{Variable: "CLEANUP_ALL", Same: []string{"false"}, Why: "the daemon replaces each proof itself"},
		{Variable: "COMPONENT", Why: "the daemon proves every layer; one alone is proven by gpu-validator component"},
		{Variable: "DEFAULT_GPU_WORKLOAD_CONFIG", Same: []string{"container"}, Why: "the layers that OPTIONAL_STEPS names are proven, whatever the node's workloads are"},
		{Variable: "DISABLE_DEV_CHAR_SYMLINK_CREATION", Same: []string{"false"}, Why: "the validator makes no links below /dev/char; the toolkit makes those of existing device nodes, for which it needs nothing of the driver"},
		{Variable: "DRIVER_INSTALL_DIR", Same: []string{"/run/nvidia/driver"}, Why: "the driver is searched; NVIDIA_DRIVER_ROOT, or a policy's hostPaths.driverInstallDir, names its root"},
		{Variable: "DRIVER_INSTALL_DIR_CTR_PATH", Why: "the driver is searched below HOST_ROOT"},
		{Variable: "DRIVER_VALIDATION_SKIP_GPU_INIT", Same: []string{"false"}, Why: "a driver that is not asked for its GPUs is not proven"},
		{Variable: "KUBECONFIG", Why: "the daemon uses the pod's service account"},
		{Variable: "METRICS_PORT", Why: "LISTEN_ADDRESS is the address of the metrics"},
		{Variable: "MIG_STRATEGY", Why: "the resources that the device plugin offers are expected"},
		{Variable: "SKIP_VALIDATION", Same: []string{"false"}, Why: "nothing is reported that was not proven"},
		{Variable: "SLEEP_INTERVAL_SECONDS", Why: "the daemon waits for changes instead of sleeping"},
		{Variable: "USE_HOST_MOFED", Same: []string{"false"}, Why: "the network's driver is found on the host and in a container; MOFED_ENABLED asks for its proof"},
		{Variable: "WITH_WAIT", Same: []string{"true"}, Why: "the daemon always waits; gpu-validator run checks once"},
	}
}
