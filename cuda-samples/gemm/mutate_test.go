package main

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/fault"
)

// equivalent holds changes that do not change the results, each with the reason.
var equivalent = regexp.MustCompile(`` +
	`: mov\.f32 %\w+, (0f00000000|%f\d+) is neg` + // -0 changes no sum
	`|@%p1 bra LBB0_7 is |@%p2 bra LBB0_4 is ` + // k is not less than 1
	`|bra\.uni LBB0_[35] is ` + // to the next line, which comes anyway
	`|cvt\.s64\.s32 %(rd20, %r1|rd7, %r2) is ` + // the thread, which is less than 256
	`|%r14, %r13, 30 is |%r15, %r9, %r14 is |%r19, %r8, 31 is |%r20, %r8, %r19 is `) // the sign of what has none

// Every instruction of the kernels is changed, one at a time: the sample must not pass.
func TestChangedKernelsAreDetected(t *testing.T) {
	fault.LoadDriver(t, "h100-sxm")
	for only, code := range map[string]*string{fp32: &ptx, bf16: &ptxSM80} {
		original := *code
		try := func(changed string) (int, string) {
			*code = changed
			// Each side is long once, so that eight bits do not hold it.
			for _, sides := range [][3]string{{"260", "20", "20"}, {"20", "260", "20"}, {"20", "20", "530"}} {
				var out, log bytes.Buffer
				args := []string{"--only", only, "--m", sides[0], "--n", sides[1], "--k", sides[2]}
				if exit := gemm().Start(t.Context(), args, func(string) string { return "" }, &out, &log); exit != 0 {
					return exit, log.String()
				}
			}
			return 0, ""
		}
		exit, log := try(original)
		require.Zero(t, exit, log)
		for _, c := range fault.Mutants(t, original) {
			if exit, _ := try(c.PTX); exit == 0 && !equivalent.MatchString(c.What) {
				t.Errorf("%s: %s, and the sample passes", only, c.What)
			}
		}
		*code = original
	}
}
