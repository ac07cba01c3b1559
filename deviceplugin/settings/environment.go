package settings

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
