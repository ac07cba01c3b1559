package partition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fake creates what it is asked for.
type fake struct {
	err       error
	began     chan struct{} // gets a value when CreatePartition begins, unless it is nil
	proceed   chan struct{}
	created   atomic.Int32
	destroyed atomic.Int32
}

func (f *fake) Instances(context.Context, gpu.UUID) ([]gpu.Instance, error) {
	return []gpu.Instance{{ID: 1, Profile: 9, Start: 4, Size: 4}}, f.err
}

func (f *fake) CreatePartition(_ context.Context, at gpu.Placement) (gpu.Partition, error) {
	f.created.Add(1)
	if f.began != nil {
		f.began <- struct{}{}
		<-f.proceed
	}
	return gpu.Partition{Placement: at, GPUInstance: 7, UUID: "MIG-0"}, f.err
}

func (f *fake) DestroyPartition(context.Context, gpu.Placement) error {
	f.destroyed.Add(1)
	return f.err
}

// serve serves until the test ends, and returns a client.
func serve(t *testing.T, maker Maker, noticed ...func()) (Client, *atomic.Int32) {
	t.Helper()
	dir, err := os.MkdirTemp("", "p")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	changed := &atomic.Int32{}
	s := Server{Socket: filepath.Join(dir, SocketName), Maker: func() Maker { return maker }, Changed: func() { changed.Add(1) }, Log: slog.New(slog.DiscardHandler)}
	for _, f := range noticed {
		s.noticed = f
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", s.Socket)
		return err == nil && c.Close() == nil
	}, 10*time.Second, time.Millisecond)
	return Client{Socket: s.Socket}, changed
}

var place = gpu.Placement{GPU: "GPU-0", Profile: 19, Start: 3, Size: 1}

func TestRequestsAreDone(t *testing.T) {
	c, changed := serve(t, &fake{})
	all, err := c.Instances(t.Context(), "GPU-0")
	require.NoError(t, err)
	require.Equal(t, []gpu.Instance{{ID: 1, Profile: 9, Start: 4, Size: 4}}, all)
	require.Zero(t, changed.Load())
	made, err := c.CreatePartition(t.Context(), place)
	require.NoError(t, err)
	require.Equal(t, gpu.Partition{Placement: place, GPUInstance: 7, UUID: "MIG-0"}, made)
	require.NoError(t, c.DestroyPartition(t.Context(), place))
	require.EqualValues(t, 2, changed.Load())
	info, err := os.Stat(c.Socket)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "for root alone")
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	for _, want := range []error{gpu.ErrLeftover, gpu.ErrInUse, gpu.ErrNoRoom, gpu.ErrNoMIGMode, gpu.ErrNoPermission, errFailed} {
		c, _ := serve(t, &fake{err: fmt.Errorf("%w: because", want)})
		_, err := c.CreatePartition(t.Context(), place)
		require.ErrorIs(t, err, want)
		require.EqualError(t, err, want.Error()+": because")
		require.Equal(t, errors.Is(want, gpu.ErrLeftover), errors.Is(err, gpu.ErrLeftover))
	}
	c, changed := serve(t, nil)
	_, err := c.CreatePartition(t.Context(), place)
	require.ErrorIs(t, err, ErrUnavailable, "there is no driver")
	require.Zero(t, changed.Load())
	_, err = Client{Socket: c.Socket + "-none"}.CreatePartition(t.Context(), place)
	require.ErrorIs(t, err, ErrUnavailable, "nobody serves")
	_, err = c.CreatePartition(t.Context(), gpu.Placement{GPU: "GPU-0", Start: 60, Size: 8})
	require.ErrorContains(t, err, "want a placement")
}

// A client that is killed never learns what it has got.
func TestWhatAClientDoesNotLearnOfIsDestroyed(t *testing.T) {
	f := &fake{began: make(chan struct{}), proceed: make(chan struct{})}
	noticed := make(chan struct{}, 1)
	c, _ := serve(t, f, func() { noticed <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := c.CreatePartition(ctx, place)
		failed <- err
	}()
	<-f.began
	cancel()
	require.ErrorIs(t, <-failed, gpu.ErrLeftover)
	<-noticed
	close(f.proceed)
	require.Eventually(t, func() bool { return f.destroyed.Load() == 1 }, 10*time.Second, time.Millisecond)
}

func TestAClientThatDoesNotSendItsRequestHoldsUpNobody(t *testing.T) {
	c, _ := serve(t, &fake{})
	slow, err := net.Dial("unix", c.Socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, slow.Close()) }()
	_, err = io.WriteString(slow, "POST /create HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadFull(slow, make([]byte, len("HTTP/1.1 100")))
	require.NoError(t, err, "it is asked for the body")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = c.Instances(ctx, "GPU-0")
	require.NoError(t, err)
}

// While it waited for others, its driver may have had the place destroyed.
func TestARequestWhoseClientGaveUpWaitingIsNotBegun(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	f := &fake{}
	_, err := Server{}.create(t.Context(), gone, f, place)
	require.ErrorIs(t, err, ErrUnavailable)
	require.Zero(t, f.created.Load())
}

func TestAServerThatHangsHasADeadline(t *testing.T) {
	dir, err := os.MkdirTemp("", "p")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	ln, err := net.Listen("unix", filepath.Join(dir, SocketName))
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	c := Client{Socket: ln.Addr().String(), Limit: 50 * time.Millisecond}
	require.ErrorIs(t, c.DestroyPartition(context.Background(), place), gpu.ErrLeftover)
}
