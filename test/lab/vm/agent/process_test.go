package main

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// reaped are this process's children. They are made once, since reap takes every child, and does so as long as the
// process runs, as in a machine.
var reaped = sync.OnceValue(func() *processes {
	p := newProcesses()
	go p.reap()
	return p
})

func TestProcesses(t *testing.T) {
	p := reaped()
	run := func(script string) vm.Response {
		handle, _, err := p.start(vm.Command{Args: []string{"sh", "-c", script}, Stdin: "in\n"})
		require.NoError(t, err)
		r, err := p.wait(handle, time.Minute)
		require.NoError(t, err)
		return r
	}
	r := run("cat; echo err >&2; exit 4")
	require.Equal(t, vm.Response{Exited: true, Code: 4, Stdout: []byte("in\n"), Stderr: []byte("err\n"), Wall: r.Wall}, r)
	require.Equal(t, int(unix.SIGTERM), run("kill $$").Signal)

	// Output beyond the limit is counted, and the process does not block.
	r = run("head -c 1048586 /dev/zero")
	require.True(t, strings.HasSuffix(string(r.Stdout), "\n[10 more bytes]\n"))

	// A child that keeps the output open does not keep the wait.
	began := time.Now()
	require.Equal(t, "done\n", string(run("sleep 5 & echo done").Stdout))
	require.Less(t, time.Since(began), 4*time.Second)

	handle, _, err := p.start(vm.Command{Args: []string{"sleep", "1000"}})
	require.NoError(t, err)
	r, err = p.wait(handle, 0)
	require.NoError(t, err)
	require.False(t, r.Exited)
	require.NoError(t, p.signal(handle, unix.SIGKILL, true))
	r, err = p.wait(handle, time.Minute)
	require.NoError(t, err)
	require.Equal(t, int(unix.SIGKILL), r.Signal)
	require.ErrorIs(t, p.signal(handle, unix.SIGKILL, false), unix.ESRCH)

	_, _, err = p.start(vm.Command{Args: []string{"no-such-program"}})
	require.ErrorContains(t, err, "no-such-program")
}
