package operator

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

const (
	nfd          = "sigs.k8s.io/node-feature-discovery"
	nfdImage     = "docker.io/gpuready/node-feature-discovery"
	nfdNamespace = "node-feature-discovery"
	pciDevices   = "/var/lib/pci-devices"
	gpuAddress   = "0000:65:00.0"
)

// preparePCI gives each node an empty PCI bus of its own, before any pod there reads it.
func (s *suite) preparePCI(t *testing.T) {
	t.Helper()
	for _, n := range s.Nodes {
		_, err := n.Exec(t.Context(), "mkdir", "-p", pciDevices)
		require.NoError(t, err)
		_, err = n.Exec(t.Context(), "mount", "--bind", pciDevices, "/sys/bus/pci/devices")
		require.NoError(t, err)
	}
}

// plugGPU puts an H100 on a node's PCI bus.
func (s *suite) plugGPU(t *testing.T, node string) {
	t.Helper()
	for name, value := range map[string]string{
		"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1",
	} {
		s.WriteFile(t, node, filepath.Join(pciDevices, gpuAddress, name), value+"\n")
	}
}

// unplugGPU removes the GPU from a node's PCI bus.
func (s *suite) unplugGPU(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(s.Node(node).PathOnNode(filepath.Join(pciDevices, gpuAddress))))
}

// installNFD installs the real Node Feature Discovery with its own chart.
func (s *suite) installNFD(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // includes its build
	defer cancel()
	built, err := binaries.EnsureNFD(ctx, binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	files := map[string][]byte{}
	for _, name := range []string{"nfd-master", "nfd-worker"} {
		files["/usr/bin/"+name], err = os.ReadFile(built.Path(name))
		require.NoError(t, err)
	}
	module, err := binaries.EnsureProject(ctx, binaries.Options{}, "nfd", nfd)
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "nfd.tar")
	require.NoError(t, binaries.WriteImage(archive, binaries.Image{Name: nfdImage + ":" + module.Version, Files: files}))
	for _, n := range s.Nodes {
		require.NoError(t, n.Import(ctx, archive))
	}
	s.helm(t, "install", "nfd", filepath.Join(module.Dir, "deployment/helm/node-feature-discovery"),
		"--namespace", nfdNamespace, "--create-namespace", "--wait", "--timeout", "3m",
		"--set", "image.repository="+nfdImage, "--set", "image.tag="+module.Version, "--set", "gc.enable=false",
		"--set", "master.podSecurityContext.runAsUser=65532", "--set", "worker.podSecurityContext.runAsUser=65532",
		"--set", "worker.config.core.sleepInterval=1s", "--set", "worker.config.sources.pci.deviceLabelFields={vendor}")
}

// restartNFD replaces NFD's pods. While the API server is away its programs end one after the other, or fail to
// watch, and then wait ever longer: up to 100 s were seen after a few restarts of the API server.
func (s *suite) restartNFD(t *testing.T) {
	t.Helper()
	s.Kubectl(t, "-n", nfdNamespace, "delete", "pods", "--all", "--timeout=60s")
	for _, what := range []string{"daemonset/nfd-node-feature-discovery-worker", "deployment/nfd-node-feature-discovery-master"} {
		s.Kubectl(t, "-n", nfdNamespace, "rollout", "status", what, "--timeout=110s")
	}
}
