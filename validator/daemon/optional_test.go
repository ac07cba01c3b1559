package daemon

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

func TestOptionalLayersHaveFilesOnlyWhereWanted(t *testing.T) {
	b := newBench(t)
	require.NoError(t, readiness.WriteReady(b.out, readiness.GDS, readiness.Proof{BootID: boot, Summary: "asked for yesterday"}))
	b.d.Pipeline.Steps = append(b.d.Pipeline.Steps, check.Step{Layer: readiness.MOFED, Basis: check.OnHost, Check: func(context.Context, check.Node, check.Driver) check.Outcome {
		return check.NewPass(readiness.Proof{Summary: "RDMA devices mlx5_0"}) // with no driver under it
	}}, check.Step{Layer: readiness.Peermem, Basis: check.OnDriver, Check: func(context.Context, check.Node, check.Driver) check.Outcome {
		return check.Fail("PeermemModuleNotLoaded", "not loaded: nvidia_peermem", "modprobe nvidia-peermem")
	}})
	b.start()
	b.until(readiness.MOFED, func(s readiness.Status, err error) bool { return err == nil && s.Proof != nil && s.Proof.Driver == nil })
	b.until(readiness.Peermem, func(s readiness.Status, err error) bool {
		return err == nil && s.NotReady != nil && s.NotReady.Reason == "PeermemModuleNotLoaded"
	})
	b.until(readiness.Plugin, func(s readiness.Status, err error) bool { return err == nil && s.Proof != nil })
	_, err := readiness.Read(b.out, readiness.GDS, boot)
	require.True(t, errors.Is(err, fs.ErrNotExist), "%v", err)
}
