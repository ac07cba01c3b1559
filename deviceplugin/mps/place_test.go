package mps

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSandboxNeverUsesTheFirstThread(t *testing.T) {
	require.Equal(t, unix.Getpid(), first, "the test begins there")
	require.NotZero(t, ownThread)
	require.NotEqual(t, first, ownThread)
	ran := make(chan int)
	go runOnOwnThread(func() { ran <- unix.Gettid() })
	require.NotEqual(t, first, <-ran)
}
