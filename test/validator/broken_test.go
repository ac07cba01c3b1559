package validator

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestBrokenLayers breaks a node with 8 simulated GPUs in one way after the other.
func TestBrokenLayers(t *testing.T) {
	s := e2e.Up(t, cluster.Config{Nodes: 1})
	n := &node{Suite: s, name: "n1", gpus: 8}
	simulator, err := os.ReadFile(filepath.Join("../../deployments/static", "simulated-driver.yaml"))
	require.NoError(t, err)
	s.Apply(t, "gpuready.yaml")
	s.ApplyText(t, strings.Replace(string(simulator), "GPUSIM_PROFILE: h100-sxm", "GPUSIM_PROFILE: h100-sxm\n  GPUSIM_GPUS: \"8\"", 1))
	t.Run("a warm node is proven", func(t *testing.T) { warm(t, n) })
	t.Run("a node that is well is explained", func(t *testing.T) {
		n.until(t, "all is well", n.ready)
		n.explained(t, "ok (SIMULATED): pods can use the simulated GPUs of this node")
	})
	t.Run("the startup taint comes and goes", func(t *testing.T) { startupTaintComesAndGoes(t, n) })
	if !t.Run("an upgrade under jobs that hold all GPUs", func(t *testing.T) { upgradeUnderJobs(t, n) }) {
		s.LogDiagnostics(t)
	}
	var laps []lap
	play := func(all []situation) {
		for _, c := range all {
			if !t.Run(c.name, func(t *testing.T) { laps = append(laps, c.play(t, n)) }) {
				s.LogDiagnostics(t)
			}
		}
	}
	play(slices.Concat(driverSituations(), toolkitSituations(), cudaSituations(), pluginSituations(), clusterSituations()))
	if !t.Run("folders and sockets of the host", func(t *testing.T) { laps = append(laps, foldersHeal(t, n)...) }) {
		s.LogDiagnostics(t)
	}
	play([]situation{handlerSituation()})
	fmt.Printf("\nSeconds from the break to the reason, and from the mend to all layers proven and the Node's condition True:\n%s\n", table(laps))
}
