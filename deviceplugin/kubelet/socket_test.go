package kubelet

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// The first plugin then finds the other's socket and returns ErrTakenOver.
func TestPluginsStartingAtOnceBothCreateTheirSockets(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "plugin.sock")
	for range 100 {
		var group errgroup.Group
		var made [2]*net.UnixListener
		var ours [2]identity
		for i := range made {
			group.Go(func() (err error) {
				made[i], ours[i], err = listen(own)
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.False(t, ours[0].isSameFile(ours[1]), "neither takes the other's for its own")
		conn, err := net.Dial("unix", own)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		for _, ln := range made {
			require.NoError(t, ln.Close())
		}
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing lies beside it")
}
