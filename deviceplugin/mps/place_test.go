package mps

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAPlaceIsNeverTheProcessesFirstThread(t *testing.T) {
	require.Equal(t, unix.Getpid(), first, "the test begins there")
	require.NotZero(t, apartFromFirst)
	require.NotEqual(t, first, apartFromFirst)
	ran := make(chan int)
	go apart(func() { ran <- unix.Gettid() })
	require.NotEqual(t, first, <-ran)
}
