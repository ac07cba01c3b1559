package state

import (
	"testing"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

var cluster = Cluster{Namespace: "nvidia-gpu-operator", ImageRepository: "gpuready", ImageVersion: "v1.2.3", NVIDIA: map[string]v1.ImageSpec{
	"dcgm":         {Repository: "nvcr.io/nvidia/cloud-native", Image: "dcgm", Version: "4.4.2-1-ubuntu22.04"},
	"dcgmExporter": {Repository: "nvcr.io/nvidia/k8s", Image: "dcgm-exporter", Version: "4.4.2-4.7.0-distroless"},
	"migManager":   {Repository: "nvcr.io/nvidia/cloud-native", Image: "k8s-mig-manager", Version: "v0.13.1"},
}}

func ubuntu() driver.Choice {
	return driver.Choice{
		Pool:    fleet.Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-91-generic"},
		Variant: driver.Container, ID: "ubuntu22.04", Name: "nvidia-driver-daemonset-ubuntu22.04",
		Image:    "nvcr.io/nvidia/driver:580.95.05-ubuntu22.04",
		Selector: map[string]string{label.OSID: "ubuntu", label.OSVersion: "22.04"},
	}
}

func toolkit(version string) driver.Choice {
	return driver.Choice{
		Pool:    fleet.Pool{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", RHCOS: version},
		Variant: driver.DriverToolkit, ID: version, Name: "nvidia-driver-daemonset-" + version,
		Image: "nvcr.io/nvidia/driver:580.95.05-rhcos4.12", Sidecar: "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:" + digest,
		Selector: map[string]string{label.OSTree: version},
	}
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func precompiled() driver.Choice {
	return driver.Choice{
		Pool:    fleet.Pool{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", RHCOS: "412.86.202303241612-0"},
		Variant: driver.Precompiled, ID: "4.18.0-372.51.1.el8.6-rhcos4.12",
		Name:     "nvidia-driver-daemonset-4.18.0-372.51.1.el8.6-rhcos4.12",
		Image:    "quay.io/example/driver:580.95.05-4.18.0-372.51.1.el8_6.x86_64-rhcos4.12",
		Selector: map[string]string{label.Kernel: "4.18.0-372.51.1.el8_6.x86_64"},
	}
}

// ours changes a choice to a driver container of this product.
func ours(c driver.Choice) driver.Choice {
	c.Ours, c.Image, c.Version = true, "registry.example/driver:580.95.05-"+c.ID, "580.95.05"
	return c
}

func withoutSidecar(c driver.Choice) driver.Choice { c.Sidecar = ""; return c }
func withoutVersion(c driver.Choice) driver.Choice { c.Version = ""; return c }

func guessed(c driver.Choice) driver.Choice {
	c.Image, c.AssumedNVIDIA = "registry.example/driver:580.95.05-"+c.ID, true
	return c
}

func rhel() driver.Choice {
	return ours(driver.Choice{
		Pool:    fleet.Pool{Arch: "amd64", OS: "rhel9.6", Kernel: "5.14.0-570.12.1.el9_6.x86_64"},
		Variant: driver.Container, ID: "rhel9.6", Name: "nvidia-driver-daemonset-rhel9.6",
	})
}

func simulated() driver.Choice {
	return driver.Choice{
		Pool:    fleet.Pool{Arch: "amd64", OS: "ubuntu24.04", Kernel: "6.8.0-41-generic"},
		Variant: driver.Simulated, ID: "simulated", Name: "nvidia-driver-daemonset",
		Image: "gpuready/driver-simulator:v1.2.3",
	}
}

// ofDriver changes a choice to the driver of an NVIDIADriver.
func ofDriver(c driver.Choice, name string) driver.Choice {
	c.Pool.Drivers = name
	c.ID, c.Name = c.ID+"_"+name, c.Name+"-"+name
	return c
}

func with(c Cluster, f func(*Cluster)) Cluster { f(&c); return c }

// cases are the inputs of the golden files.
func cases(t *testing.T) map[string]Input {
	t.Helper()
	openshift := with(cluster, func(c *Cluster) { c.OpenShift = true })
	handover := with(cluster, func(c *Cluster) { c.HandOver = true })
	nri := []fleet.Injection{fleet.NRI}
	return map[string]Input{
		"container":      {Policy: policy(t, `{driver: {version: 580.95.05}}`), Cluster: cluster, Drivers: []driver.Choice{ubuntu()}, Injections: nri},
		"driver-toolkit": {Policy: policy(t, `{}`), Cluster: openshift, Drivers: []driver.Choice{toolkit("412.86.202303241612-0"), toolkit("412.86.202305080640-0")}, Injections: nri},
		"precompiled":    {Policy: policy(t, `{driver: {usePrecompiled: true}}`), Cluster: openshift, Drivers: []driver.Choice{precompiled()}, Injections: nri},
		"own-container":  {Policy: policy(t, `{driver: {repository: registry.example, version: 580.95.05}}`), Cluster: cluster, Drivers: []driver.Choice{ours(ubuntu())}, Injections: nri},
		"own-precompiled": {Policy: policy(t, ownPolicy), Cluster: openshift, Drivers: []driver.Choice{ours(precompiled())}, Injections: nri,
			Keys: map[string][]string{"repos": {"cuda.list"}, "certs": {"ca.crt"}, "modules": {"nvidia.conf", "nvidia-uvm.conf"}}},
		"own-driver-toolkit":    {Policy: policy(t, ownToolkit), Cluster: openshift, Drivers: []driver.Choice{ours(toolkit("412.86.202303241612-0"))}, Injections: nri},
		"own-without-toolkit":   {Policy: policy(t, noOperands), Cluster: openshift, Drivers: []driver.Choice{withoutSidecar(ours(toolkit("412.86.202303241612-0")))}, Injections: nri},
		"own-version-not-known": {Policy: policy(t, ownToolkit), Cluster: cluster, Drivers: []driver.Choice{withoutVersion(ours(ubuntu()))}, Injections: nri},
		"owner-not-known":       {Policy: policy(t, ownToolkit), Cluster: cluster, Drivers: []driver.Choice{guessed(ubuntu())}, Injections: nri},
		"simulated":             {Policy: policy(t, `{driver: {simulated: {enabled: true, profile: dgx-2, env: [{name: GPUSIM_GPUS, value: "4"}]}}}`), Cluster: cluster, Drivers: []driver.Choice{simulated()}, Injections: nri},
		"driver-of-host":        {Policy: policy(t, `{driver: {enabled: false}}`), Cluster: cluster, Drivers: []driver.Choice{{}}, Injections: nri},
		"every-injection":       {Policy: policy(t, `{driver: {enabled: false}}`), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI, fleet.CDI, fleet.Annotations, fleet.Handler}},
		"openshift-handler":     {Policy: policy(t, `{driver: {enabled: false}, cdi: {enabled: false}}`), Cluster: openshift, Injections: nri},
		"nvidia-drivers": {Policy: policy(t, `{driver: {useNvidiaDriverCRD: true, version: "550"}}`), Cluster: cluster, Drivers: []driver.Choice{ofDriver(ubuntu(), "gold"), ofDriver(ubuntu(), "silver")}, Injections: nri, Specs: map[string]*v1.ClusterPolicySpec{
			"gold":   &policy(t, `{driver: {version: 580.95.05}}`).Spec,
			"silver": &policy(t, `{driver: {env: [{name: A, value: b}, {name: "a=b"}], repoConfig: {configMapName: missing}}}`).Spec,
		}, Keys: map[string][]string{"missing": {"a.list"}}},
		"dra-driver":       {Policy: policy(t, draPolicy), Cluster: with(cluster, func(c *Cluster) { c.DRA = true }), Drivers: []driver.Choice{ubuntu()}, Injections: nri},
		"hand-over":        {Policy: policy(t, `{}`), Cluster: handover, Drivers: []driver.Choice{ubuntu()}, Injections: nri},
		"nvidias-operands": {Policy: policy(t, nvidiasPolicy), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI, fleet.CDI}},
		"everything": {Policy: policy(t, everything), Cluster: cluster, Drivers: []driver.Choice{ubuntu()},
			Injections: []fleet.Injection{fleet.NRI, fleet.Handler},
			Keys:       map[string][]string{"repos": {"cuda.list", "base.list"}, "certs": {"ca.crt"}, "modules": {"nvidia.conf"}}},
		"problems": {Policy: policy(t, problematic), Cluster: cluster, Drivers: []driver.Choice{ubuntu()}, Injections: nri},
	}
}

const ownPolicy = `
  toolkit: {enabled: false}
  devicePlugin: {enabled: false}
  driver:
    usePrecompiled: true
    repository: registry.example
    version: 580.95.05
    imagePullPolicy: Always
    imagePullSecrets: [driver-pull]
    kernelModuleType: open
    env: [{name: NVFM_CONFIG_LOG_LEVEL, value: "5"}]
    args: [--drm]
    resources: {requests: {cpu: "1", memory: 1Gi}, limits: {memory: 2Gi}}
    startupProbe: {initialDelaySeconds: 60, periodSeconds: 10, timeoutSeconds: 50, successThreshold: 1, failureThreshold: 120}
    livenessProbe: {periodSeconds: 30, timeoutSeconds: 50, failureThreshold: 4}
    readinessProbe: {periodSeconds: 15, timeoutSeconds: 50, successThreshold: 2, failureThreshold: 4}
    rdma: {enabled: true}
    repoConfig: {configMapName: repos}
    certConfig: {name: certs}
    kernelModuleConfig: {name: modules}
    secretEnv: driver-secrets
    prebuild: {repository: registry.example/driver, secret: push}
`

const draPolicy = `
  daemonsets: {rollingUpdate: {maxUnavailable: 20%}}
  draDriver:
    enabled: true
    serve: dra
    imagePullSecrets: [pull]
    resources: {limits: {memory: 512Mi}}
    env: [{name: SILENCE_LIMIT, value: 30s}]
    args: [--log-format=json]
    nodeSelector: {tier: dra}
`

const noOperands = `{toolkit: {enabled: false}, devicePlugin: {enabled: false}, driver: {repository: registry.example, version: 580.95.05}}`

const ownToolkit = `
  toolkit: {enabled: false}
  devicePlugin: {enabled: false}
  driver:
    repository: registry.example
    version: 580.95.05
    imagePullPolicy: Always
    resources: {limits: {memory: 32Gi}}
    prebuild: {repository: "registry.example:5000/gpu/driver", secret: push, insecure: true}
    moduleSigning: {secret: machine-owner-key}
`

const nvidiasPolicy = `
  driver: {enabled: false}
  toolkit: {enabled: false}
  devicePlugin: {enabled: false}
  dcgm: {enabled: true, repository: nvcr.io/nvidia/cloud-native, image: dcgm, version: 4.4.1-1-ubuntu22.04}
  dcgmExporter: {enabled: true, repository: nvcr.io/nvidia/k8s, image: dcgm-exporter, version: 4.4.1-4.5.2-distroless}
  migManager: {repository: nvcr.io/nvidia/cloud-native, image: k8s-mig-manager, version: v0.12.3}
`

const problematic = `
  daemonsets: {labels: {"not a label": "x", team: ml}}
  driver:
    repoConfig: {configMapName: absent}
    prebuild: {repository: registry.example/gpu/driver}
    moduleSigning: {secret: machine-owner-key}
  toolkit: {repository: nvcr.io/nvidia/k8s, image: container-toolkit, version: v1.17.8-ubuntu20.04}
  devicePlugin:
    resources: {requests: {memory: 1Gi}, limits: {memory: 512Mi}}
  dcgmExporter: {enabled: true}
`

const everything = `
  operator: {labels: {cost-centre: "42"}, annotations: {example.com/contact: ml@example.com}, runtimeClass: gpu}
  daemonsets:
    labels: {team: ml}
    annotations: {example.com/log: json}
    tolerations: [{key: dedicated, operator: Equal, value: gpu, effect: NoSchedule}]
    priorityClassName: gpu-agents
    nodeSelector: {karpenter.sh/nodepool: gpu}
    affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]}}
    podSecurityContext: {fsGroup: 2000, seccompProfile: {type: Unconfined}}
    updateStrategy: RollingUpdate
    rollingUpdate: {maxUnavailable: "2"}
  node: {startupTaint: {key: example.com/starting, manage: true, settle: 2m}}
  cdi: {enabled: true}
  hostPaths: {rootFS: /host-root, driverInstallDir: /opt/driver, kubeletRootDir: /data/kubelet}
  mig: {strategy: mixed}
  driver:
    repository: nvcr.io/nvidia
    image: driver
    version: 580.95.05
    imagePullPolicy: Always
    imagePullSecrets: [driver-pull]
    kernelModuleType: open
    env: [{name: http_proxy, value: "http://proxy:3128"}]
    args: [--verbose]
    resources: {requests: {cpu: "2", memory: 4Gi}, limits: {memory: 8Gi}}
    startupProbe: {initialDelaySeconds: 60, periodSeconds: 10, timeoutSeconds: 50, successThreshold: 1, failureThreshold: 120}
    livenessProbe: {initialDelaySeconds: 60, periodSeconds: 30, timeoutSeconds: 50, successThreshold: 1, failureThreshold: 4}
    readinessProbe: {initialDelaySeconds: 60, periodSeconds: 15, timeoutSeconds: 50, successThreshold: 2, failureThreshold: 4}
    rdma: {enabled: true, useHostMofed: true}
    repoConfig: {configMapName: repos}
    certConfig: {name: certs}
    licensingConfig: {secretName: licence, configMapName: licence-before, nlsEnabled: true}
    virtualTopology: {config: topology}
    kernelModuleConfig: {name: modules}
    secretEnv: driver-secrets
  toolkit:
    installDir: /opt/nvidia
    repository: registry.example.com/gpu
    image: gpu-toolkit
    version: v9
    imagePullPolicy: Always
    imagePullSecrets: [ours]
    args: [--log-format=json]
    env: [{name: CONTAINERD_CONFIG, value: /var/lib/rancher/k3s/agent/etc/containerd/config.toml}]
    resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
  devicePlugin:
    repository: registry.example.com/gpu
    image: gpu-plugin
    version: sha256:` + digest + `
    imagePullPolicy: Never
    imagePullSecrets: [ours, theirs]
    args: [--log-format=json]
    config: {name: plugin-configs, default: plain}
    mps: {root: /var/lib/mps}
    env: [{name: PASS_DEVICE_SPECS, value: "true"}]
    resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
  validator:
    repository: registry.example.com/gpu
    image: gpu-validator
    version: v9
    imagePullPolicy: Always
    imagePullSecrets: [ours]
    args: [--log-format=json]
    env: [{name: CUDA_PARALLEL, value: "2"}]
    resources: {requests: {cpu: 50m}, limits: {memory: 2Gi}}
    plugin: {env: [{name: WORKLOAD_TIMEOUT, value: 5m}]}
    toolkit: {env: [{name: CDI_OUTPUT_DIR, value: /etc/cdi}]}
    driver: {env: [{name: OPTIONAL_STEPS, value: peermem}]}
    cuda: {env: [{name: CUDA_TIMEOUT, value: 2m}]}
  dcgm:
    repository: nvcr.io/nvidia/cloud-native
    image: dcgm
    version: 4.4.1-1-ubuntu22.04
    imagePullPolicy: Always
    imagePullSecrets: [ngc]
    args: [--verbose]
    env: [{name: DCGM_LOG, value: debug}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    labels: {tier: metrics}
    annotations: {example.com/own: "yes"}
    nodeSelector: {dcgm: "yes"}
    affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: other}}}]}}
    tolerations: [{key: example.com/dcgm, operator: Exists}]
    priorityClassName: gpu-metrics
    podSecurityContext: {fsGroup: 3000}
    hostNetwork: true
    resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
  dcgmExporter:
    repository: nvcr.io/nvidia/k8s
    image: dcgm-exporter
    version: 4.4.1-4.5.2-distroless
    imagePullPolicy: Always
    imagePullSecrets: [ngc]
    args: [--debug]
    env: [{name: DCGM_EXPORTER_INTERVAL, value: "15000"}]
    resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
    podLabels: {scrape: "yes"}
    podAnnotations: {example.com/port: "9400"}
    enablePodLabels: true
    podLabelAllowlistRegex: ["^app$", "^team$"]
    securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN]}}
    config: {name: metrics}
    service: {type: NodePort, internalTrafficPolicy: Local}
    hostPID: true
    hostNetwork: true
    hpcJobMapping: {enabled: true, directory: /var/lib/jobs}
  migManager:
    repository: nvcr.io/nvidia/cloud-native
    image: k8s-mig-manager
    version: v0.12.3
    imagePullPolicy: Always
    imagePullSecrets: [ngc]
    args: [--debug]
    env: [{name: WITH_REBOOT, value: "true"}]
    resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
    config: {name: partitions, default: all-disabled}
    gpuClientsConfig: {name: clients}
`
