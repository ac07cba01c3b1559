package main

import (
	"bytes"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

// start runs the built program on a profile.
func start(t *testing.T, root string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	cmd := exec.Command(built.Path(t, "gemm"), args...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(libs[0])}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	_ = cmd.Run() // the exit code tells
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func TestSidesThatNoTileDivides(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
	for _, sides := range []string{"1 1 1", "16 8 16", "17 9 17", "15 7 15", "1 100 3", "33 1 70", "64 64 64"} {
		t.Run(sides, func(t *testing.T) {
			t.Parallel()
			s := strings.Fields(sides)
			stdout, stderr, exit := start(t, root, "--m", s[0], "--n", s[1], "--k", s[2])
			require.Zero(t, exit, stderr)
			for _, line := range []string{"fp32, whole numbers: every element is exact\n", "bf16, whole numbers: every element is exact\n",
				"fp32, fractions: the largest error is ", "bf16, fractions: the largest error is "} {
				require.Contains(t, stdout, line)
			}
		})
	}
}

func TestBF16IsSkippedWithoutTensorCores(t *testing.T) {
	root := built.DriverRoot(t, "t4")
	stdout, stderr, exit := start(t, root)
	require.Zero(t, exit, stderr)
	require.Contains(t, stdout, "bf16 is left out: compute capability 7.5 has no mma.sync of bfloat16, which 8.0 and newer have\n")
	require.NotContains(t, stdout, "bf16, ")
	stdout, _, exit = start(t, root, "--json")
	require.Zero(t, exit)
	require.Contains(t, stdout, `"types":["fp32"]`)
	require.Contains(t, stdout, `"notes":["bf16 is left out: `)

	stdout, stderr, exit = start(t, root, "--only", "bf16")
	require.Equal(t, 5, exit)
	require.Equal(t, "Test FAILED\n", stdout)
	require.Equal(t, "gemm: bf16 is not possible on this device: compute capability 7.5 has no mma.sync of bfloat16, which 8.0 and newer have\n", stderr)
}

func TestReferenceMatchesThePlainProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side := rapid.IntRange(1, 20)
		m, n, k := side.Draw(t, "m"), side.Draw(t, "n"), side.Draw(t, "k")
		a, b := fractions(m, k, 1), fractions(k, n, 2)
		p := referenceProduct(a, b, false, func(int) {})
		for i := range m {
			for j := range n {
				sum, most := 0.0, 0.0
				for l := range k {
					product := float64(a.v[i*k+l]) * float64(b.v[l*n+j])
					sum += product
					most += math.Abs(product)
				}
				require.InDelta(t, sum, p.v[i*n+j], 1e-12)
				ku := float64(k) * 0x1p-24
				require.GreaterOrEqual(t, p.bound(fp32, i, j), ku*most)
				require.Less(t, p.bound(bf16, i, j), 5*p.bound(fp32, i, j))
			}
		}
	})
}

func TestWholeNumbersAreExactInAnyOrder(t *testing.T) {
	for _, k := range []int{1, 16, 100, 512, maxSide} {
		m := integers(10, 10, k, 1)
		for _, v := range m.v {
			require.Equal(t, float32(math.Trunc(float64(v))), v)
			require.LessOrEqual(t, float64(k)*float64(v*v), float64(1<<22), "the largest sum")
		}
		before := slices.Clone(m.v)
		require.Equal(t, before, m.truncate().v, "bfloat16 holds each")
	}
}

func TestEveryElementIsChecked(t *testing.T) {
	const rows, columns, k, width = 5, 7, 12, 8 // rows are filled up
	for _, exact := range []bool{true, false} {
		a, b := integers(rows, k, k, 1), integers(k, columns, k, 2)
		if !exact {
			a, b = fractions(rows, k, 1), fractions(k, columns, 2)
		}
		p := referenceProduct(a, b, exact, func(int) {})
		got := make([]float32, rows*width)
		for i := range rows {
			for j := range columns {
				got[i*width+j] = float32(p.v[i*columns+j])
			}
		}
		_, err := p.verify(fp32, got, width)
		require.NoError(t, err)
		for i := range rows {
			for j := range columns {
				right := got[i*width+j]
				near := right + 1e-4
				if exact {
					near = math.Nextafter32(right, 1e9)
				}
				for _, changed := range []float32{near, 2*right - near, -right - 1, float32(math.NaN()), float32(math.Inf(1))} {
					got[i*width+j] = changed
					_, err := p.verify(fp32, got, width)
					wrong := new(sample.WrongError)
					require.ErrorAs(t, err, &wrong, "%v for %v", changed, right)
					require.Equal(t, 1, wrong.Count)
					require.Equal(t, []int{i, j}, wrong.Wrong[0].Index)
				}
				got[i*width+j] = right
			}
		}
	}
}

func TestBfloat16IsPaddedWithZeros(t *testing.T) {
	m := matrix{2, 3, []float32{1, 2, 3, -1, 0.5, 256}}
	require.Equal(t, []uint16{
		0x3f80, 0x4000, 0x4040, 0,
		0xbf80, 0x3f00, 0x4380, 0,
		0, 0, 0, 0,
	}, m.bfloat16(3, 4))
	require.Equal(t, []float32{1, -1, 2, 0.5, 3, 256}, m.transposed().v)
}

func TestWrongUsageIsExplained(t *testing.T) {
	for want, args := range map[string][]string{
		"--m is -1: it must be from 1 to 8192":      {"--m", "-1"},
		"--k is 8193: it must be from 1 to 8192":    {"--k", "8193"},
		`--only is "fp64": it must be fp32 or bf16`: {"--only", "fp64"},
		`--n: "many" is not a number`:               {"--n", "many"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, gemm().Start(t.Context(), args, func(string) string { return "" }, &stdout, &stderr))
		require.Contains(t, stderr.String(), want)
	}
}
