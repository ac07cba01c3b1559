package samples

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Every sample detects a GPU that computes wrong; its neighbour passes.
func TestWrongComputationIsDetected(t *testing.T) {
	for bit, every := range map[string]string{"0": "1", "22": "1000", "31": "500"} {
		root := built.DriverRoot(t, "h100-sxm", "--gpus", "2")
		built.Gpusim(t, "wrong", "--root", root, "--gpu", "1", "--every", every, "--bit", bit)
		bad := uuids(t, root)[1]
		for _, args := range [][]string{{"vectoradd"}, {"reduction"}, {"gemm", "--only", "fp32"}, {"gemm", "--only", "bf16"}} {
			name, args := args[0], args[1:]
			t.Run(name+" with bit "+bit, func(t *testing.T) {
				t.Parallel()
				a := start(t, name, root, append(args, "--json", "--device", bad))
				require.Equal(t, 3, a.exit, a.stderr)
				require.Contains(t, a.stderr, " is wrong: expected ")
				o := a.object(t)
				require.Equal(t, false, o["passed"])
				require.Equal(t, bad, o["uuid"])
				require.Positive(t, o["wrongCount"])
				first := o["wrong"].([]any)[0].(map[string]any)
				require.NotEmpty(t, first["index"])
				require.NotEqual(t, first["want"], first["got"])

				require.Zero(t, start(t, name, root, append(args, "--device", "0")).exit)
			})
		}
	}
}

// The samples whose data lies there detect a stuck bit of memory. All samples detect a bit
// that flips on its way to the host.
func TestWrongMemoryIsDetected(t *testing.T) {
	for kind, names := range map[string][]string{
		"flip":       {"vectoradd", "reduction", "gemm"},
		"stuck-at-1": {"reduction", "gemm"},
	} {
		root := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
		built.Gpusim(t, "memfault", "--root", root, "--gpu", "0", "--kind", kind, "--offset", "4", "--bit", "30")
		for _, name := range names {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				a := start(t, name, root, nil)
				require.Equal(t, 3, a.exit, a.stderr)
				require.Contains(t, a.stderr, " is wrong: expected ")
			})
		}
	}
}
