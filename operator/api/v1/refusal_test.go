package v1_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInvalidPoliciesAreRefusedWithTheReason(t *testing.T) {
	const precompiled = `usePrecompiled: true, repository: quay.io/x, image: driver, version: "550.54.15"`
	s := load(t)
	for spec, reason := range map[string]string{
		// Unknown fields, kinds of values.
		`{driver: {versions: "550"}}`:                      `unknown field ["spec.driver.versions"]`,
		`{drivers: {}}`:                                    `unknown field ["spec.drivers"]`,
		`{driver: {enabled: "true"}}`:                      `spec.driver.enabled in body must be of type boolean: "string"`,
		`{driver: {version: 550}}`:                         `spec.driver.version in body must be of type string: "integer"`,
		`{operator: {defaultRuntime: podman}}`:             `Unsupported value: "podman": supported values: "docker", "crio", "containerd"`,
		`{mig: {strategy: triple}}`:                        `supported values: "none", "single", "mixed"`,
		`{daemonsets: {updateStrategy: Recreate}}`:         `supported values: "RollingUpdate", "OnDelete"`,
		`{driver: {kernelModuleType: free}}`:               `supported values: "auto", "open", "proprietary"`,
		`{driver: {precompiledFallback: Container}}`:       `supported values: "None", "DriverToolkit"`,
		`{toolkit: {imagePullPolicy: Sometimes}}`:          `supported values: "Always", "IfNotPresent", "Never", ""`,
		`{sandboxWorkloads: {defaultWorkload: firecrack}}`: `supported values: "container", "vm-passthrough", "vm-vgpu"`,

		// Precompiled drivers.
		`{driver: {PRE, simulated: {enabled: true}}}`:    `driver.simulated and driver.usePrecompiled exclude each other`,
		`{driver: {precompiledFallback: DriverToolkit}}`: `driver.precompiledFallback is for driver.usePrecompiled`,

		// The repository and the signing key of built modules.
		`{driver: {prebuild: {repository: "registry.example.com/gpu/driver:580"}}}`:     `spec.driver.prebuild.repository: Invalid value: "registry.example.com/gpu/driver:580": prebuild.repository is a registry and a path, without a tag or digest`,
		`{driver: {prebuild: {repository: "registry.example.com/gpu/driver@DIGEST"}}}`:  `without a tag or digest: registry.example.com/gpu/driver`,
		`{driver: {prebuild: {repository: "https://registry.example.com/gpu"}}}`:        `prebuild.repository is a registry and a path`,
		`{driver: {prebuild: {repository: driver}}}`:                                    `prebuild.repository is a registry and a path`,
		`{driver: {prebuild: {repository: registry.example.com/GPU}}}`:                  `prebuild.repository is a registry and a path`,
		`{driver: {prebuild: {secret: push}}}`:                                          `prebuild.secret and prebuild.insecure are for prebuild.repository`,
		`{driver: {prebuild: {repository: "", insecure: true}}}`:                        `prebuild.secret and prebuild.insecure are for prebuild.repository`,
		`{driver: {prebuild: {repository: "[2001:db8::1]:5000/driver", secret: Push}}}`: `a name has lower-case letters`,
		`{driver: {moduleSigning: {secret: "a b"}}}`:                                    `spec.driver.moduleSigning.secret: Invalid value: "a b": a name has lower-case letters`,
		`{driver: {moduleSigning: {key: k}}}`:                                           `unknown field ["spec.driver.moduleSigning.key"]`,

		// Images.
		`{toolkit: {image: "tool kit"}}`:                 `image is an image's name: driver`,
		`{toolkit: {repository: "https://nvcr.io"}}`:     ``, // a colon and slashes are fine: the registry's answer is a better one
		`{toolkit: {repository: "nvcr.io/$(REGISTRY)"}}`: `repository is a registry and a path, without the image's name`,
		`{toolkit: {version: "v1:2"}}`:                   `version is a tag, of letters, digits, -, _ and ., or a digest`,
		`{toolkit: {version: "sha256:12"}}`:              `version is a tag, of letters, digits, -, _ and ., or a digest`,
		`{toolkit: {version: "LONG"}}`:                   `Too long: may not be more than 128 bytes`,

		// Containers.
		`{toolkit: {env: [{value: x}]}}`:                              `spec.toolkit.env[0].name: Required value`,
		`{toolkit: {resources: {limits: {memory: 1GiB}}}}`:            `spec.toolkit.resources.limits.memory in body should match`,
		`{driver: {startupProbe: {timeoutSeconds: 0}}}`:               `spec.driver.startupProbe.timeoutSeconds in body should be greater than or equal to 1`,
		`{driver: {startupProbe: {initialDelaySeconds: 2147483648}}}`: `should be less than or equal to 2147483647`,

		// All DaemonSets.
		`{driver: {upgradePolicy: {maxUnavailable: -1}}}`:                               `maxUnavailable is a number of nodes (2) or a percentage from 0% to 100% (25%)`,
		`{driver: {upgradePolicy: {maxUnavailable: 25 %}}}`:                             `maxUnavailable is a number of nodes (2)`,
		`{driver: {upgradePolicy: {maxParallelUpgrades: -1}}}`:                          `should be greater than or equal to 0`,
		`{driver: {upgradePolicy: {drain: {timeoutSeconds: -1}}}}`:                      `should be greater than or equal to 0`,
		`{driver: {upgradePolicy: {podDeletion: {timeoutSeconds: 99999999999}}}}`:       `should be less than or equal to 31536000`,
		`{driver: {upgradePolicy: {waitForCompletion: {podSelector: "app in train"}}}}`: `waitForCompletion.podSelector: Invalid value: "app in train": podSelector is a label selector: app=train,tier in (a, b)`,
		`{driver: {upgradePolicy: {drain: {podSelector: "a=b=c"}}}}`:                    `podSelector is a label selector`,

		// The host, the nodes, names.
		`{node: {startupTaint: {key: "not ready"}}}`:           `key is a taint's key: example.com/gpu-not-ready`,
		`{node: {startupTaint: {settle: 60}}}`:                 `must be of type string`,
		`{node: {startupTaint: {settle: -1m}}}`:                `settle is a duration: 90s, 1m30s`,
		`{node: {startupTaint: {settle: one minute}}}`:         `settle is a duration: 90s, 1m30s`,
		`{driver: {simulated: {enabled: true, profile: H_1}}}`: `profile is a simulated machine: h100-sxm`,
		`{dcgmExporter: {serviceMonitor: {interval: fast}}}`:   `spec.dcgmExporter.serviceMonitor.interval in body should match`,
		`{kataManager: {config: {runtimeClasses: [{}]}}}`:      `spec.kataManager.config.runtimeClasses[0].artifacts: Required value`,
	} {
		t.Run(spec, func(t *testing.T) {
			full := strings.NewReplacer("PRE", precompiled, "LONG", strings.Repeat("a", 200), "DIGEST", "sha256:"+strings.Repeat("0", 64)).Replace(spec)
			_, err := s.Admit(t.Context(), policy(full))
			if reason == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, reason)
		})
	}
}

func TestValidPoliciesAreAccepted(t *testing.T) {
	s := load(t)
	for _, spec := range []string{
		`{driver: {usePrecompiled: true, repository: quay.io/x, image: driver, version: "550.54.15", precompiledFallback: DriverToolkit}}`,
		`{driver: {usePrecompiled: false, precompiledFallback: DriverToolkit}}`,
		`{driver: {enabled: false, usePrecompiled: true}}`,
		`{driver: {usePrecompiled: false}, gds: {enabled: true}, vgpuManager: {enabled: true}}`,
		`{driver: {simulated: {enabled: true, profile: h100-sxm, env: [{name: GPUSIM_GPUS, value: "2"}]}}}`,
		`{driver: {simulated: {enabled: false}, usePrecompiled: true, repository: quay.io/x, image: driver, version: "550"}}`,
		`{driver: {image: "quay.io/x/driver@sha256:0000000000000000000000000000000000000000000000000000000000000000"}}`,
		`{driver: {repository: "[2001:db8::1]:5000/nvidia", version: "550.54.15-rhcos4.12"}}`,
		`{driver: {prebuild: {repository: "[2001:db8::1]:5000/gpu-team/nvidia_driver", secret: push, insecure: true}, moduleSigning: {secret: keys.gpu}}}`,
		`{driver: {prebuild: {repository: registry.example.com/driver, secret: ""}}}`,
		`{driver: {prebuild: {}, moduleSigning: {}}}`,
		`{driver: {upgradePolicy: {maxUnavailable: "3", maxParallelUpgrades: 0}}}`,
		`{driver: {upgradePolicy: {waitForCompletion: {podSelector: "example.com/a=b,c"}}}}`,
		`{daemonsets: {rollingUpdate: {maxUnavailable: 3}}}`,
		`{daemonsets: {rollingUpdate: {maxUnavailable: ""}}}`,
		`{daemonsets: {tolerations: [{operator: Exists}]}}`,
		`{hostPaths: {rootFS: /, driverInstallDir: /run/nvidia/..driver/}}`,
		`{node: {startupTaint: {key: example.com/gpu-not-ready, manage: true, settle: 1m30s}}}`,
		`{devicePlugin: {config: {name: plugin-config, default: ""}}}`,
		`{ccManager: {defaultMode: "on"}}`,

		// What cannot work, but NVIDIA's schema accepts: the operator reports it.
		`{driver: {usePrecompiled: true}}`,
		`{driver: {usePrecompiled: true, version: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}}`,
		`{driver: {usePrecompiled: true, licensingConfig: {secretName: licence}, virtualTopology: {config: topology}}, gds: {enabled: true}}`,
		`{driver: {usePrecompiled: true}, vgpuManager: {enabled: true}, sandboxWorkloads: {enabled: true, defaultWorkload: vm-vgpu}}`,
		`{driver: {livenessProbe: {successThreshold: 2}, secretEnv: "../x"}}`,
		`{toolkit: {imagePullSecrets: [Registry], env: [{name: A}, {name: B}, {name: A}, {name: "A=B"}]}}`,
		`{toolkit: {resources: {limits: {cpu: -1, memory: "1e.5"}, requests: {cpu: 100n, memory: "+.5"}}}}`,
		`{daemonsets: {rollingUpdate: {maxUnavailable: "0"}, labels: {team: " "}, priorityClassName: System_Critical}}`,
		`{daemonsets: {tolerations: [{key: a, operator: In}, {value: b}, {key: a, effect: NoSchedule, tolerationSeconds: 5}]}}`,
		`{hostPaths: {rootFS: host, driverInstallDir: /run/../etc}}`,
		`{devicePlugin: {config: {default: a100}}, dcgm: {hostPort: 65536}}`,

		// Objects of Kubernetes' schema.
		`{devicePlugin: {affinity: {nodeAffinity: {}}, podSecurityContext: {fsGroup: 1}, env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}}`,
	} {
		_, err := s.Admit(t.Context(), policy(spec))
		require.NoError(t, err, spec)
	}
}
