package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/support"
)

// Names of environment variables that make sets with RECORD=1: the folder of the records of what was
// tested, and the command that runs the test.
const (
	recordsVariable = "GPUREADY_E2E_RECORDS"
	commandVariable = "GPUREADY_E2E_COMMAND"
)

// recordSupport writes a record of the cluster of a test that has passed. A cluster without GPUs proves
// nothing about them and has none, and neither has a part of a test.
func (s *Suite) recordSupport(t *testing.T, dir, gates string, began time.Time) {
	t.Helper()
	nodes := s.World.Nodes()
	if t.Failed() || t.Skipped() || len(nodes) == 0 {
		return
	}
	if part := selectedPart(); part != "" {
		t.Logf("%s selects a part of the test: there is no record of it", part)
		return
	}
	node := nodes[0]
	info, labels := node.Status.NodeInfo, node.Labels
	if labels["nvidia.com/gpu.product"] == "" {
		return
	}
	server, err := s.World.Client.Discovery().ServerVersion()
	require.NoError(t, err)
	environment := map[string]string{
		"kubernetes": server.GitVersion, "kubelet": info.KubeletVersion, "runtime": info.ContainerRuntimeVersion,
		"os": info.OSImage, "kernel": info.KernelVersion, "architecture": info.Architecture,
		"gpu": labels["nvidia.com/gpu.product"], "driver": labels["nvidia.com/cuda.driver-version.full"],
	}
	if gates != "" {
		environment["gates"] = gates
	}
	require.NoError(t, support.Write(dir, support.Record{
		Test: t.Name(), Command: os.Getenv(commandVariable), Date: time.Now().UTC().Format(time.DateOnly), Version: Version(),
		Commit: builtCommit(t), Seconds: int(time.Since(began).Seconds()), Scenarios: s.passed, Environment: environment,
	}))
}

// selectedPart returns the flag that leaves out some of a test's scenarios, "" if there is none.
func selectedPart() string {
	for _, name := range []string{"run", "skip"} {
		if value := flag.Lookup("test." + name).Value.String(); strings.Contains(value, "/") {
			return "-" + name + "=" + value
		}
	}
	return ""
}

// builtCommit returns the commit of what was built. A record names it, so it has no changes.
func builtCommit(t *testing.T) string {
	t.Helper()
	stamp, err := os.ReadFile(filepath.Join(os.Getenv(variable), ".version"))
	require.NoError(t, err, "a record names the commit that was built")
	commit, _, _ := strings.Cut(string(stamp), " ")
	require.NotContains(t, commit, "-dirty", "RECORD=1: commit the changes first, so that others can repeat the test")
	return commit
}
