package settings

import "github.com/gpuready/gpuready/deviceplugin/health"

// Environment maps each flag to its environment variable. The variables of settings are those
// of NVIDIA's device plugin.
var Environment = map[string]string{
	"config-file":                      "CONFIG_FILE",
	"config-dir":                       "CONFIG_FILE_SRCDIR",
	"default-config":                   "DEFAULT_CONFIG",
	"fallback-strategies":              "FALLBACK_STRATEGIES",
	"node-label":                       "NODE_LABEL",
	"unknown-keys":                     "UNKNOWN_KEYS",
	"kubelet-socket":                   "KUBELET_SOCKET",
	"kubelet-timeout":                  "KUBELET_TIMEOUT",
	"host-root":                        "HOST_ROOT",
	"driver-root":                      "NVIDIA_DRIVER_ROOT",
	"dev-root":                         "NVIDIA_DEV_ROOT",
	"state-dir":                        "GPUREADY_STATE_DIR",
	"shadow":                           "SHADOW",
	"shadow-interval":                  "SHADOW_INTERVAL",
	"pod-resources-socket":             "POD_RESOURCES_SOCKET",
	"listen":                           "LISTEN_ADDRESS",
	"dcgm-metrics":                     "DCGM_METRICS",
	"serve":                            "GPU_SERVE",
	"mig":                              "GPU_MIG",
	"node-name":                        "NODE_NAME",
	"nfd-dir":                          "NFD_FEATURES_DIR",
	"log-format":                       "LOG_FORMAT",
	"fail-on-init-error":               "FAIL_ON_INIT_ERROR",
	"mig-strategy":                     "MIG_STRATEGY",
	"device-discovery-strategy":        "DEVICE_DISCOVERY_STRATEGY",
	"device-list-strategy":             "DEVICE_LIST_STRATEGY",
	"device-id-strategy":               "DEVICE_ID_STRATEGY",
	"pass-device-specs":                "PASS_DEVICE_SPECS",
	"shared-devices-allocation-policy": "SHARED_DEVICES_ALLOCATION_POLICY",
	"cdi-annotation-prefix":            "CDI_ANNOTATION_PREFIX",
	"cdi-feature-flags":                "CDI_FEATURE_FLAGS",
	"nvidia-cdi-hook-path":             "NVIDIA_CDI_HOOK_PATH",
	"driver-root-ctr-path":             "DRIVER_ROOT_CTR_PATH",
	"mps-root":                         "MPS_ROOT",
	"gdrcopy-enabled":                  "GDRCOPY_ENABLED",
	"gds-enabled":                      "GDS_ENABLED",
	"mofed-enabled":                    "MOFED_ENABLED",
	"imex-channel-ids":                 "IMEX_CHANNEL_IDS",
	"imex-required":                    "IMEX_REQUIRED",
}

// xidVariables are the variables of settings that have no flag.
var xidVariables = []struct{ name, path, example, usage string }{
	{health.DisableVariable, "health.xids", "13,31", "XIDs to ignore, separated by commas, or all (xids is the same); it overrides the file"},
	{health.EnableVariable, "health.xids", "48,79", "XIDs to heed in spite of that; it overrides both"},
}

// examples has an example of each flag's value, for docs/configuration.md. A flag without one is
// refused with any value.
var examples = map[string]string{
	"config-file":                      "/etc/gpuready/device-plugin.yaml",
	"config-dir":                       "/etc/gpuready/configs",
	"config":                           "sliced",
	"default-config":                   "plain",
	"fallback-strategies":              "named,single,empty",
	"node-label":                       "nvidia.com/device-plugin.config",
	"unknown-keys":                     "warn",
	"kubelet-socket":                   "/var/lib/k0s/kubelet/device-plugins/kubelet.sock",
	"kubelet-timeout":                  "10m",
	"host-root":                        "/host",
	"driver-root":                      "/opt/driver",
	"dev-root":                         "/",
	"state-dir":                        "/run/gpuready",
	"shadow":                           "true",
	"shadow-interval":                  "30s",
	"pod-resources-socket":             "/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
	"listen":                           "127.0.0.1:9402",
	"dcgm-metrics":                     "4.9",
	"serve":                            "dra",
	"mig":                              "dynamic",
	"node-name":                        "gpu-node-1",
	"nfd-dir":                          "/etc/kubernetes/node-feature-discovery/features.d",
	"log-format":                       "json",
	"fail-on-init-error":               "false",
	"mig-strategy":                     "mixed",
	"device-discovery-strategy":        "nvml",
	"device-list-strategy":             "cdi-annotations,envvar",
	"device-id-strategy":               "index",
	"pass-device-specs":                "true",
	"shared-devices-allocation-policy": "packed",
	"cdi-annotation-prefix":            "nvidia.cdi.k8s.io/",
	"nvidia-cdi-hook-path":             "/usr/local/bin/nvidia-ctk",
	"driver-root-ctr-path":             "/driver",
	"mps-root":                         "/var/lib/mps",
	"gdrcopy-enabled":                  "true",
	"gds-enabled":                      "true",
	"mofed-enabled":                    "true",
	"imex-channel-ids":                 "0",
	"imex-required":                    "true",
	"once":                             "true",
	"dry-run":                          "true",
	"output":                           "json",
	"version":                          "true",
}

// olderEnvironment maps flags to older variables that NVIDIA's device plugin still accepts.
var olderEnvironment = map[string]string{
	"nvidia-cdi-hook-path": "NVIDIA_CTK_PATH",
	"driver-root-ctr-path": "CONTAINER_DRIVER_ROOT",
}

// aliases maps other spellings of flags, which NVIDIA's device plugin accepts, to the flags.
var aliases = map[string]string{
	"nvidia-driver-root":    "driver-root",
	"nvidia-dev-root":       "dev-root",
	"nvidia-ctk-path":       "nvidia-cdi-hook-path",
	"container-driver-root": "driver-root-ctr-path",
	"config-file-srcdir":    "config-dir",
}
