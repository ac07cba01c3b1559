package main

import (
	"context"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/daemon"
	"github.com/gpuready/gpuready/validator/step"
)

func TestMain(m *testing.M) { leak.Main(m) }

// standFor returns a stand-in for a component whose layer has this outcome.
func standFor(t *testing.T, name string, o check.Outcome) (s *standin, dir string) {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	of := componentsOf[name]
	dir = t.TempDir()
	return &standin{componentFlags: &componentFlags{name: name, workload: true}, layerOf: of, proofs: daemon.NewProofWriter(dir, "b"), out: &lines{w: io.Discard},
		node: check.Node{Root: root, BootID: "b", StateDir: "/states", PodResources: "/socket"},
		pipeline: check.Pipeline{
			Driver: func(context.Context, check.Node) (check.Driver, check.Outcome) {
				return check.Driver{}, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "1"}})
			},
			Steps: []check.Step{{Layer: of.layer, Basis: check.OnHost, Check: func(context.Context, check.Node, check.Driver) check.Outcome { return o }}},
		}}, dir
}

func TestEveryComponentHasAFileForItsProof(t *testing.T) {
	w := daemon.NewProofWriter(t.TempDir(), "b")
	for name, of := range componentsOf {
		require.NoError(t, w.Write(readiness.Layer(name), check.NoGPU("none")))
		require.NoError(t, w.Write(of.layer, check.NoGPU("none")))
	}
}

func TestTheManagerIsEnoughForTheDeviceCreator(t *testing.T) {
	missing := check.Fail(step.ReasonVGPUDevices, "there is no vGPU", "make one")
	s, dir := standFor(t, "vgpu-manager", missing)
	require.NoError(t, s.run(t.Context()))
	require.FileExists(t, filepath.Join(dir, "vgpu-manager-ready"))

	s, dir = standFor(t, "vgpu-devices", missing)
	require.ErrorContains(t, s.run(t.Context()), "vgpu-devices: VGPUDevicesMissing: there is no vGPU; make one")
	require.FileExists(t, filepath.Join(dir, "vgpu-devices-notready"))
	s, _ = standFor(t, "vgpu-manager", check.Fail(step.ReasonVGPUManager, "it is not loaded", "load it"))
	require.ErrorContains(t, s.run(t.Context()), "VGPUManagerNotLoaded")
}

func TestTheStandInReportsWhyItEnded(t *testing.T) {
	s, dir := standFor(t, "mofed", check.NoGPU("none"))
	require.NoError(t, s.run(t.Context()), "nothing to prove")
	require.NoFileExists(t, filepath.Join(dir, "mofed-ready"))

	s, _ = standFor(t, "mofed", check.Fail("MOFEDNotLoaded", "it is not loaded", "load it"))
	s.wait = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, s.run(ctx), "interrupted: mofed is not proven")
}

func TestHelpListsEveryExitCode(t *testing.T) {
	for _, code := range []int{program.OK, program.Failed, program.Usage, exitTimeout} {
		require.Contains(t, exitHelp, "\n  "+strconv.Itoa(code)+" ")
	}
	for l, code := range layerCodes {
		if code >= exitPeermem {
			require.Contains(t, exitHelp, "30 to 36")
		} else {
			require.Contains(t, exitHelp, "\n  "+strconv.Itoa(code)+" ")
		}
		require.Contains(t, exitHelp, string(l))
	}
}

// The page has the list of --help.
func TestThePageHasTheExitCodes(t *testing.T) {
	const begin, end = "<!-- Exit codes: made by go test ./validator -run TestThePageHasTheExitCodes -update -->\n",
		"<!-- end of Exit codes -->\n"
	_, codes, found := strings.Cut(exitHelp, "Exit codes:\n")
	require.True(t, found)
	var list strings.Builder
	for line := range strings.Lines(codes) {
		list.WriteString("  " + line)
	}
	golden.RequireSection(t, "../docs/validator.md", begin, end, "\n"+list.String()+"\n")
}

func TestTheNameOfTheReferenceIsACommand(t *testing.T) {
	require.Equal(t, []string{"component", "-c", "driver"}, commandArgs([]string{"/usr/bin/nvidia-validator", "-c", "driver"}))
	require.Equal(t, []string{"run"}, commandArgs([]string{"/usr/bin/gpu-validator", "run"}))
	require.Empty(t, commandArgs([]string{"gpu-validator"}))
	require.Empty(t, commandArgs(nil))
}
