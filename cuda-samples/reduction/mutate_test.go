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
	`line (79|86|93|100|107|114|199|207|215|223|231|239): bar\.sync ` + // a warp waits for itself, which is always in step here
	`|mov\.f32 %f32, 0f00000000 is neg` + // -0 changes no sum
	`|cvt\.\w+\.\w+ %\w+, %(r1|rd4) is ` + // the thread, which is less than 256
	`|setp\.ne\.s32 %p(11|20), %r5, 0 is ` + // all threads but the first write the same
	`|@%p(11|20) bra LBB\d_21 is `) // all threads write the same

// Every instruction of the kernels is changed, one at a time: the sample must not pass.
func TestChangedKernelsAreDetected(t *testing.T) {
	fault.LoadDriver(t, "h100-sxm")
	original := ptx
	t.Cleanup(func() { ptx = original })
	try := func(changed string) (int, string) {
		ptx = changed
		var out, log bytes.Buffer
		// Enough elements that both launches go around.
		exit := reduction().Start(t.Context(), []string{"--elements", "140000"}, func(string) string { return "" }, &out, &log)
		return exit, log.String()
	}
	exit, log := try(original)
	require.Zero(t, exit, log)
	var survived []string
	for _, c := range fault.Mutants(t, original) {
		if exit, _ := try(c.PTX); exit == 0 && !equivalent.MatchString(c.What) {
			survived = append(survived, c.What)
		}
	}
	require.Empty(t, survived)
}
