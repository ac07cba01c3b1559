package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
	"github.com/gpuready/gpuready/test/lab/built"
)

// report is the output of -o json.
type report struct {
	sample.Report
	Bytes uint64 `json:"bytes"`
}

// UnmarshalJSON reads the fields of all samples and those of this one.
func (r *report) UnmarshalJSON(b []byte) error {
	own := struct {
		Bytes *uint64 `json:"bytes"`
	}{&r.Bytes}
	if err := json.Unmarshal(b, &own); err != nil {
		return err
	}
	return json.Unmarshal(b, &r.Report)
}

// runJSON runs the built program with -o json and returns its report.
func runJSON(t *testing.T, root string, exit int, args ...string) report {
	t.Helper()
	stdout, stderr, code := built.Sample(t, root, "memtest", append([]string{"-o", "json"}, args...))
	require.Equal(t, exit, code, stderr)
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	require.Equal(t, exit == 0, r.Passed)
	return r
}

func TestGoodMemoryPasses(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	stdout, stderr, exit := built.Sample(t, root, "memtest", nil)
	require.Zero(t, exit, stderr)
	require.Regexp(t, `^Test of 262144 bytes of memory at 0x[0-9a-f]+\nTest PASSED \(SIMULATED\)\nDone\n$`, stdout)
	r := runJSON(t, root, 0, "--bytes", "64Ki")
	require.EqualValues(t, 64<<10, r.Bytes)
	for _, phase := range []string{"allocate", "walkingOnes", "walkingZeros", "addressInAddress", "random", "checkerboard", "movingInversions"} {
		require.Positive(t, r.Seconds[phase], phase)
	}
	r = runJSON(t, root, 0, "--share", "0.00001", "--patterns", "random,address")
	require.Less(t, r.Bytes, uint64(1<<20))
	require.Positive(t, r.Bytes)
	require.NotContains(t, r.Seconds, "walkingOnes")
}

// Kinds of gpusim memfault: a stuck bit is stuck for kernels, too; a flipping bit flips
// when the host reads it.
func TestABadBitIsFoundAtItsAddress(t *testing.T) {
	for _, kind := range []string{"stuck", "flip"} {
		for _, c := range []struct{ offset, bit int }{{0, 0}, {40004, 13}, {262140, 31}} {
			t.Run(fmt.Sprint(kind, c.offset), func(t *testing.T) {
				root := built.DriverRoot(t, "t4", "--gpus", "1")
				built.Gpusim(t, "memfault", "--root", root, "--gpu", "0", "--kind", kind,
					"--offset", strconv.Itoa(c.offset), "--bit", strconv.Itoa(c.bit))
				for _, pattern := range tests {
					r := runJSON(t, root, 3, "--patterns", pattern.name)
					require.Equal(t, 1, r.WrongCount)
					require.Len(t, r.Wrong, 1)
					w := r.Wrong[0]
					require.EqualValues(t, c.offset, w.Offset)
					require.Equal(t, []int{c.bit}, w.Bits)
					require.Equal(t, pattern.title, w.Pattern)
					require.NotEqual(t, w.Want, w.Got)
				}
				stdout, stderr, exit := built.Sample(t, root, "memtest", nil)
				require.Equal(t, 3, exit)
				var start, address uint64
				var tested int
				_, err := fmt.Sscanf(stdout, "Test of %d bytes of memory at 0x%x\n0x%x", &tested, &start, &address)
				require.NoError(t, err, stdout)
				require.EqualValues(t, c.offset, address-start)
				require.Contains(t, stderr, fmt.Sprintf("the word at %#x, %d bytes into the 262144 tested", address, c.offset))
			})
		}
	}
}

func TestAStuckBitOfAGPUIsFoundInItsAddressSpace(t *testing.T) {
	const third = 0x420000000000 // where gpusim has the memory of its third GPU
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "3")
	for _, kind := range []string{"stuck-at-0", "stuck-at-1"} {
		for _, offset := range []int{4, 40004, 1<<20 + 40} {
			built.Gpusim(t, "memfault", "--root", root, "--gpu", "2", "--kind", kind, "--offset", strconv.Itoa(offset), "--bit", "7")
			bytes := "256Ki"
			if offset > 256<<10 {
				bytes = "1056Ki"
			}
			r := runJSON(t, root, 3, "--device", "2", "--bytes", bytes, "--patterns", "checkerboard,random", "--host=false")
			require.Equal(t, 1, r.WrongCount)
			require.Equal(t, fmt.Sprintf("%#x", third+offset), r.Wrong[0].Address)
			require.EqualValues(t, offset, r.Wrong[0].Offset)
			require.Equal(t, []int{7}, r.Wrong[0].Bits)
			runJSON(t, root, 0, "--device", "1", "--patterns", "random")
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	for _, args := range [][]string{{"--share", "0"}, {"--share", "1.1"}, {"--bytes", "8"}, {"--bytes", "some"}, {"--patterns", "zigzag"}} {
		_, stderr, exit := built.Sample(t, root, "memtest", args)
		require.Equal(t, 2, exit, stderr)
	}
}

func TestOneBitOfAnAddressChangesItsWord(t *testing.T) {
	p := pattern{kind: address}
	for bit := 2; bit < 57; bit++ {
		require.NotEqual(t, p.word(0, 0x7f12_3456_7890), p.word(0, 0x7f12_3456_7890^1<<bit), bit)
	}
}

func TestEachBitIsWrittenBothWays(t *testing.T) {
	for _, test := range tests {
		if test.name == "address" || test.name == "random" {
			continue // with their inverses
		}
		var ones, zeros uint32
		for _, s := range test.steps(1) {
			ones, zeros = ones|s.word(5, 20), zeros|^s.word(5, 20)
		}
		require.Equal(t, ^uint32(0), ones&zeros, test.name)
	}
}

func TestFirstBadWordsAreNamedAndAllCounted(t *testing.T) {
	b := newBad()
	record := b.recorder("random")
	for i := range uint64(100) {
		record(4*i, 1, 3)
		record(4*i, 1, 9)
	}
	wrong := new(sample.WrongError)
	require.ErrorAs(t, b.err(&area{size: 4096}), &wrong)
	require.Equal(t, 100, wrong.Count)
	require.Len(t, wrong.Wrong, sample.MaxListed)
	require.Equal(t, []int{1, 3}, wrong.Wrong[0].Bits)
	require.False(t, b.full())
}
