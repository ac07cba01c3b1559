package host

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/node"
)

func TestOnlyMountsThatConcernThePathsCount(t *testing.T) {
	line := func(at string) string { return "36 35 98:0 / " + at + " rw,noatime - ext3 /dev/root rw\n" }
	roots := []string{"/run/nvidia/driver"}
	for at, counts := range map[string]bool{
		"/run": true, "/run/nvidia/driver": true, "/run/nvidia/driver/proc": true,
		"/": false, "/run/nvidia/driver2": false, "/var/lib/kubelet/pods/x": false,
	} {
		require.Equal(t, counts, concerning(line(at), roots) != "", at)
	}
	require.Empty(t, concerning("short line\n\n", roots))
}

func TestMountsAreSeen(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	dir := "/run/root" // of the node, whose mounts go with it
	require.NoError(t, os.Mkdir(dir, 0o755))
	watch, err := WatchMounts([]string{dir})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() { ended <- watch.Run(ctx, func() { seen <- struct{}{} }) }()
	for range 200 { // each one of them: an event may not go to another poller
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		<-seen
		require.NoError(t, unix.Unmount(dir, 0))
		<-seen
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
