package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessesHoldMemory(t *testing.T) {
	s := &State{Ngpus: 1}
	g := &s.Gpu[0]
	g.MemoryTotal, g.MemoryReserved, g.MemoryUsed = 16<<30, 1<<30, 1<<20
	p := Process{PID: 7, Name: "/usr/bin/python3", MemoryMiB: 1024, GPUInstance: None, ComputeInstance: None}
	require.NoError(t, s.AddProcess(0, p))
	require.EqualValues(t, 1<<20+1<<30, g.MemoryUsed)
	require.ErrorContains(t, s.AddProcess(0, p), "process 7 is listed already")
	require.ErrorContains(t, s.AddProcess(0, Process{}), "pid")
	require.ErrorContains(t, s.AddProcess(0, Process{PID: 8, MemoryMiB: 15 << 10}), "has only 14335 MiB free")
	require.NoError(t, s.AddProcess(0, Process{PID: 8, Graphics: true}))
	require.ErrorContains(t, s.EndProcess(0, 9), "no process 9")
	require.NoError(t, s.EndProcess(0, 7))
	require.EqualValues(t, 1<<20, g.MemoryUsed)
	for pid := range MaxProcs - 1 {
		require.NoError(t, s.AddProcess(0, Process{PID: uint32(100 + pid)}))
	}
	require.ErrorContains(t, s.AddProcess(0, p), "no room for more")
	require.NoError(t, s.EndProcess(0, 0))
	require.Equal(t, [MaxProcs]Proc{}, g.Proc)
	require.NoError(t, s.Validate())

	require.ErrorContains(t, s.SetComputeMode(0, "exclusive"), "mode")
	require.NoError(t, s.SetComputeMode(0, "prohibited"))
	require.Equal(t, "prohibited", ComputeModeName(g.ComputeMode))
	g.MigCurrent = 1
	require.ErrorContains(t, s.SetComputeMode(0, "default"), "MIG")

	all := uint64(AllMemory)
	require.NoError(t, s.SetLoad(0, Load{MemoryMiB: &all}))
	require.EqualValues(t, 14<<30+1023<<20, g.LoadMemory)
}
