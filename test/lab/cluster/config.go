package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// shared are kubelet settings for namespaces of a machine that others also use.
const shared = `failCgroupV1: false
# Errors over what a namespace may not do are logged, not fatal.
featureGates: {KubeletInUserNamespace: true%s}
oomScoreAdj: 0
# The disk is the machine's: how full it is says nothing about the node.
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%, pid.available: 0%%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`

// kubeletConfig returns /var/lib/kubelet/config.yaml as kubeadm writes it, with the changes a
// kubelet needs in namespaces of a shared machine.
func kubeletConfig(c nodeConfig) string {
	policy, more := "none", ""
	if c.NUMA {
		policy = "single-numa-node"
	}
	if !c.guest {
		gates := ""
		if c.Gates != "" {
			gates = ", " + c.Gates
		}
		more = fmt.Sprintf(shared, gates)
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: /var/lib/kubelet/pki/kubelet.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
clusterDomain: cluster.local
clusterDNS: [%s]
nodeStatusUpdateFrequency: %s
topologyManagerPolicy: %s
# Control groups as the machine has them, v1 too; nobody runs systemd here.
cgroupDriver: cgroupfs
enforceNodeAllocatable: [pods]
failSwapOn: false
makeIPTablesUtilChains: false
%s`, dnsIP, c.Status, policy, more)
}

// containerdConfig returns /etc/containerd/config.toml. Settings that are not named have their
// defaults, including NRI and CDI.
func containerdConfig(c nodeConfig) string {
	// Since 2.4 containerd always supports CDI, but it can look for specs in empty folders.
	cdiDirs := "'/etc/cdi', '/var/run/cdi'"
	if c.WithoutCDI {
		cdiDirs = "'/etc/cdi-is-off'"
	}
	base := "\n  # The default, and a hook that gives containers the boot ID of their node.\n  base_runtime_spec = '/etc/containerd/base.json'"
	if c.guest {
		base = "" // its boot ID comes from its own kernel
	}
	return fmt.Sprintf(`version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%s'

# How a registry is spoken to, where a scenario has one.
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '/etc/containerd/certs.d'

# What is lost when the machine's power fails is lost anyway.
[plugins.'io.containerd.metadata.v1.bolt']
  no_sync = true

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = %t
  cdi_spec_dirs = [%s]
  # Without CAP_SYS_RESOURCE no sandbox could have its score.
  restrict_oom_score_adj = %t

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'%s
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
`, binaries.PauseName, !c.WithoutCDI, cdiDirs, !c.guest && lacks(unix.CAP_SYS_RESOURCE), base)
}

// cniConfig connects a node's pods to each other; the control plane routes between nodes.
func cniConfig(pods string) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "cluster",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`, pods)
}

// baseSpec returns containerd's base_runtime_spec: the default of this containerd plus the hook.
func baseSpec(ctx context.Context, ctr string) (string, error) {
	spec, err := exec.CommandContext(ctx, ctr, "oci", "spec").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for containerd's default OCI spec: %w", ctr, err)
	}
	return addHook(spec)
}

func addHook(spec []byte) (string, error) {
	var s map[string]any
	if err := json.Unmarshal(spec, &s); err != nil {
		return "", fmt.Errorf("containerd's default OCI spec: %w", err)
	}
	// Without a base spec containerd removes its default limits, so remove them here too.
	if process, ok := s["process"].(map[string]any); ok {
		delete(process, "rlimits")
	}
	s["hooks"] = map[string]any{"createContainer": []any{map[string]any{
		"path": namespace.Tool, "args": []string{"cluster", namespace.CommandHook}, "env": []string{"GOMAXPROCS=1"}, "timeout": 10,
	}}}
	out, err := json.MarshalIndent(s, "", "  ")
	return string(out), err
}

// halves divides this machine's CPUs among two NUMA nodes, in the kernel's notation. The
// simulated driver's profiles put their GPUs on nodes 0 and 1.
func halves() []string {
	n := runtime.NumCPU()
	if n < 2 {
		return []string{"0", "0"}
	}
	return []string{cpuRange(0, n/2-1), cpuRange(n/2, n-1)}
}

func cpuRange(first, last int) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// lacks reports whether this process lacks a capability.
func lacks(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true
	}
	return data[capability/32].Effective&(1<<(capability%32)) == 0
}
