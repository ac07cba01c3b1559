package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// newHost returns a host in a directory with a short path, and with the usual link at
// /var/run.
func newHost(t *testing.T) *host.Root {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, d := range []string{"/run", "/var"} {
		require.NoError(t, os.MkdirAll(dir+d, 0o755))
	}
	require.NoError(t, os.Symlink("/run", dir+"/var/run"))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

// attend runs Follow until the end of the test.
func attend(t *testing.T, root *host.Root, paths []string, each func(context.Context, string) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Follow(ctx, root, paths, each) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func listen(t *testing.T, root *host.Root, path string) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: root.Path(path), Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

func TestFollowCallsAgainWhenTheSocketChanges(t *testing.T) {
	root := newHost(t)
	calls := make(chan string, 10)
	attend(t, root, []string{"/var/run/first/a.sock", "/var/run/b.sock"}, func(_ context.Context, at string) error {
		calls <- at
		return nil
	})
	require.Empty(t, <-calls, "there is none")
	second := listen(t, root, "/run/b.sock")
	require.Equal(t, "/var/run/b.sock", <-calls)
	require.NoError(t, os.Mkdir(root.Path("/run/first"), 0o755))
	first := listen(t, root, "/run/first/a.sock")
	require.Equal(t, "/var/run/first/a.sock", <-calls, "the first of those that are there")
	for range 5 {
		require.NoError(t, first.Close()) // it removes its file
		require.Equal(t, "/var/run/b.sock", <-calls)
		first = listen(t, root, "/run/first/a.sock")
		require.Equal(t, "/var/run/first/a.sock", <-calls)
	}
	require.NoError(t, os.Rename(root.Path("/run/first"), root.Path("/run/gone")))
	require.Equal(t, "/var/run/b.sock", <-calls)
	require.NoError(t, second.Close())
	require.Empty(t, <-calls)
}

// A killed service leaves its socket, and the next one replaces it.
func TestReplacedSocketIsDetected(t *testing.T) {
	root := newHost(t)
	calls := make(chan string, 10)
	attend(t, root, []string{"/run/a.sock"}, func(_ context.Context, at string) error {
		calls <- at
		return nil
	})
	require.Empty(t, <-calls)
	listen(t, root, "/run/a.sock")
	require.Equal(t, "/run/a.sock", <-calls)
	for i := range 5 {
		other := fmt.Sprintf("/run/%d.sock", i)
		listen(t, root, other)
		require.NoError(t, os.Rename(root.Path(other), root.Path("/run/a.sock")))
		require.Equal(t, "/run/a.sock", <-calls)
	}
}

// No event reports that a service listens on an existing socket.
func TestSocketWithoutAListenerIsRetried(t *testing.T) {
	root := newHost(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: root.Path("/run/a.sock")}))
	refused, accepted := make(chan error, 100), make(chan struct{}, 100)
	attend(t, root, []string{"/var/run/a.sock"}, func(ctx context.Context, at string) error {
		conn, err := Dial(ctx, root, at)
		if err != nil {
			refused <- err
			return err
		}
		accepted <- struct{}{}
		return conn.Close()
	})
	require.ErrorIs(t, <-refused, unix.ECONNREFUSED)
	require.ErrorIs(t, <-refused, unix.ECONNREFUSED)
	require.NoError(t, unix.Listen(fd, 1))
	<-accepted
}

func TestCallEndsWhenItsSocketVanishes(t *testing.T) {
	root := newHost(t)
	ln := listen(t, root, "/run/a.sock")
	began, ended := make(chan string), make(chan string, 10)
	attend(t, root, []string{"/run/a.sock"}, func(ctx context.Context, at string) error {
		if at == "" {
			ended <- "no socket"
			return nil
		}
		began <- at
		<-ctx.Done()
		ended <- at
		return ctx.Err()
	})
	<-began
	require.NoError(t, ln.Close())
	require.Equal(t, "/run/a.sock", <-ended, "calls follow each other")
	require.Equal(t, "no socket", <-ended)
}

func TestRetriesOfADroppingServiceBackOff(t *testing.T) {
	var waited, pause time.Duration
	for range 20 {
		pause = nextPause(pause, time.Millisecond)
		waited += pause
	}
	require.Equal(t, lastRetry, pause)
	require.Greater(t, waited, time.Minute)
	require.Equal(t, firstRetry, nextPause(pause, time.Hour), "a connection that had held is soon made again")
	require.Equal(t, firstRetry, nextPause(0, 0))
}

func TestOtherFilesAreNotSockets(t *testing.T) {
	root := newHost(t)
	require.NoError(t, os.Mkdir(root.Path("/run/a.sock"), 0o755)) // as left by a bind mount of a missing file
	calls := make(chan string, 10)
	attend(t, root, []string{"/run/a.sock"}, func(_ context.Context, at string) error {
		calls <- at
		return errors.New("unused")
	})
	require.Empty(t, <-calls)
}
