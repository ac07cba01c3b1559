package main

import (
	"bytes"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

func TestSizesAroundBlocksAndGrids(t *testing.T) {
	libs, err := filepath.Glob(filepath.Join(built.DriverRoot(t, "h100-sxm", "--gpus", "1"), "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	for _, n := range []int{1, 2, 31, threads, threads + 1, 4096, threads*maxBlocks - 1, threads*maxBlocks + 1} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(built.Path(t, "reduction"), "--elements", strconv.Itoa(n))
			cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(libs[0])}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "n = "+strconv.Itoa(n)+": sum ")
		})
	}
}

// The reference works in the kernel's order. It has to agree with a plain computation, too.
func TestReferenceMatchesPlainSumAndMaximum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3*threads*4).Draw(t, "n")
		blocks := rapid.IntRange(1, 5).Draw(t, "blocks")
		v := numbers(n)
		sum, most := 0.0, 0.0
		for i := range v {
			sum += float64(v[i])
			most += math.Abs(float64(v[i]))
		}
		got := 0.0
		for _, part := range operations[0].reference(v, blocks) {
			got += float64(part)
		}
		require.InDelta(t, sum, got, most*float64(n)*0x1p-24)
		require.Equal(t, slices.Max(v), slices.Max(operations[1].reference(v, blocks)))
	})
}

func TestEveryBitOfEveryBlockIsChecked(t *testing.T) {
	v := numbers(threads*7 + 1)
	for _, o := range operations {
		partial := o.reference(v, blocks(len(v)))
		total := o.reference(partial, 1)[0]
		require.NoError(t, verify(o, v, partial, total))
		for i, right := range partial {
			for bit := range 32 {
				partial[i] = math.Float32frombits(math.Float32bits(right) ^ 1<<bit)
				wrong := new(sample.WrongError)
				require.ErrorAs(t, verify(o, v, partial, total), &wrong)
				require.Equal(t, 1, wrong.Count)
				require.Equal(t, []int{i}, wrong.Wrong[0].Index)
			}
			partial[i] = right
		}
		require.ErrorContains(t, verify(o, v, partial, total+1), o.kernel+" of 1793 elements, in all, element 0 is wrong")
	}
}

func TestSizes(t *testing.T) {
	require.Equal(t, []int{1}, sizes(1))
	require.Equal(t, []int{1, 33, 257, 300}, sizes(300))
	require.Equal(t, []int{1, 33, 257, 4095, 1<<17 + 1, 1 << 24}, sizes(1<<24))
}

func TestWrongUsageIsExplained(t *testing.T) {
	for _, elements := range []string{"-1", "2147483648"} {
		var stdout, stderr bytes.Buffer
		none := func(string) string { return "" }
		require.Equal(t, 2, reduction().Start(t.Context(), []string{"--elements", elements}, none, &stdout, &stderr))
		require.Contains(t, stderr.String(), "reduction: --elements is "+elements+": it must be from 1 to 1073741824; see reduction --help")
	}
}
