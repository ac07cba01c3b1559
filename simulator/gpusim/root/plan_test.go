package root

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
)

func TestMIGMinorsAreTheDrivers(t *testing.T) {
	// From the mig-minors of a machine with two A100.
	require.EqualValues(t, 3, instanceCap(0, 0))
	require.EqualValues(t, 4, computeCap(0, 0, 0))
	require.EqualValues(t, 12, instanceCap(0, 1))
	require.EqualValues(t, 138, instanceCap(1, 0))
}

func machine(t *testing.T, name string) Machine {
	t.Helper()
	p, err := profile.Get(name)
	require.NoError(t, err)
	s, err := p.State(profile.Options{})
	require.NoError(t, err)
	return Machine{State: s, Version: "1.2.3", Arch: "arm64", Majors: Majors{GPU: 195, UVM: 511, Caps: 510, NVSwitch: 509}}
}

func find(t *testing.T, entries []Entry, path string) Entry {
	t.Helper()
	for _, e := range entries {
		if e.Path == path {
			return e
		}
	}
	t.Fatalf("%s is not in the plan", path)
	return Entry{}
}

func TestNVMLComesLastAndTheStateBeforeIt(t *testing.T) {
	for _, name := range profile.Names() {
		entries := machine(t, name).Entries()
		last := entries[len(entries)-1]
		require.Equal(t, "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", last.Path)
		seen := map[string]bool{}
		for _, e := range entries {
			require.True(t, filepath.IsLocal(e.Path))
			require.False(t, seen[e.Path], "%s is planned twice", e.Path)
			seen[e.Path] = true
		}
		require.Equal(t, State, find(t, entries, "usr/lib/aarch64-linux-gnu/libnvidia-gpusim.so.1.2.3").Kind)
	}
}

// TestEveryCapabilityHasTheNumberThatMIGMinorsSays reads mig-minors as NVIDIA's
// container toolkit does.
func TestEveryCapabilityHasTheNumberThatMIGMinorsSays(t *testing.T) {
	m := machine(t, "a100-80gb")
	layout, err := profile.ParseLayout("3g.40gb:1c+2c,2g.20gb,1g.10gb+me")
	require.NoError(t, err)
	for _, i := range []int{0, 7} {
		require.NoError(t, profile.EnableMIG(&m.State.Gpu[i], layout))
	}
	root := t.TempDir()
	const minors = "proc/driver/nvidia-caps/mig-minors"
	require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(minors)), 0o755))
	entries := m.Entries()
	require.NoError(t, find(t, entries, minors).Put(root))
	text, err := os.ReadFile(filepath.Join(root, minors))
	require.NoError(t, err)
	number := map[string]string{}
	for line := range strings.Lines(string(text)) {
		path, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		number[path] = n
	}
	require.Len(t, number, 2+8*capsPerGPU)
	caps := m.caps()
	require.Len(t, caps, 2+2*(3+4))
	for _, c := range caps {
		key := strings.TrimPrefix(strings.Replace(c.path, "/mig/", "/", 1), "mig/")
		node := find(t, entries, "dev/nvidia-caps/nvidia-cap"+number[key])
		require.Equal(t, c.minor, node.Minor)
		require.EqualValues(t, 510, node.Major)
		find(t, entries, "proc/driver/nvidia/capabilities/"+c.path)
	}
}
