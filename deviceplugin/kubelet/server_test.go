package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// backend allocates by name and refuses "bad".
type backend struct{}

func (backend) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	resp := &v1beta1.ContainerAllocateResponse{}
	for _, id := range ids {
		if id == "bad" {
			return nil, errors.New("bad is bad")
		}
		resp.CdiDevices = append(resp.CdiDevices, &v1beta1.CDIDevice{Name: id})
	}
	return resp, nil
}

func (backend) Prefer(available, include []string, size int) ([]string, error) {
	if size > len(available) {
		return nil, errors.New("too many")
	}
	return append(include, available[:size-len(include)]...), nil
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// serve serves on a socket of its own and returns its path.
func serve(t testing.TB, s *Server) (socket string, ln net.Listener) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-done)
	})
	return socket, ln
}

func dial(t testing.TB, socket string) (v1beta1.DevicePluginClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return v1beta1.NewDevicePluginClient(conn), conn
}

func list(ids ...string) []Device {
	var out []Device
	for _, id := range ids {
		out = append(out, Device{ID: id, Healthy: true, NUMANodes: []int64{1}})
	}
	return out
}

func receive(t testing.TB, s grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]) []string {
	t.Helper()
	resp, err := s.Recv()
	require.NoError(t, err)
	ids := []string{}
	for _, d := range resp.GetDevices() {
		ids = append(ids, d.GetID()+" "+d.GetHealth())
	}
	return ids
}

func TestEveryStreamGetsEveryList(t *testing.T) {
	var sent sync.WaitGroup
	sent.Add(4)
	s := NewServer(backend{}, sent.Done)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	a, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	b, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	s.SetDevices(list("x", "y"))
	for _, stream := range []grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]{a, b} {
		require.Equal(t, []string{"x Healthy", "y Healthy"}, receive(t, stream))
	}
	s.SetDevices(list("x", "y")) // no change
	s.SetDevices([]Device{{ID: "x"}})
	for _, stream := range []grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]{a, b} {
		require.Equal(t, []string{"x Unhealthy"}, receive(t, stream))
	}
	sent.Wait()
}

func TestEmptyListIsSent(t *testing.T) {
	s := NewServer(backend{}, nil)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	s.SetDevices(nil)
	require.Empty(t, receive(t, stream))
}

func TestLastOfManyListsArrives(t *testing.T) {
	s := NewServer(backend{}, nil)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	var setting sync.WaitGroup
	for i := range 4 {
		setting.Go(func() {
			for j := range 50 {
				s.SetDevices(list(fmt.Sprint(i, "-", j)))
			}
		})
	}
	setting.Wait()
	s.SetDevices(list("last"))
	for receive(t, stream)[0] != "last Healthy" {
	}
}

func TestFlushReturnsWhenTheListIsOnItsWay(t *testing.T) {
	s := NewServer(backend{}, nil)
	s.Flush(soon(t)) // there is none
	s.SetDevices(list("nobody listens"))
	s.Flush(soon(t))
	socket, _ := serve(t, s)
	client, conn := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	receive(t, stream)
	for i := range 100 {
		id := fmt.Sprint(i)
		s.SetDevices(list(id))
		s.Flush(soon(t))
		require.Equal(t, []string{id + " Healthy"}, receive(t, stream))
	}
	s.SetDevices(list("and gone"))
	require.NoError(t, conn.Close())
	s.Flush(soon(t))
}

func TestFlushDoesNotWaitForEver(t *testing.T) {
	s := NewServer(backend{}, nil)
	s.SetDevices(list("x"))
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	receive(t, stream)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.SetDevices(list("y"))
	s.Flush(ctx)
	require.Equal(t, []string{"y Healthy"}, receive(t, stream))
}

func TestHangUpReturnsWhenTheKubeletHasNoticed(t *testing.T) {
	s := NewServer(backend{}, nil)
	s.SetDevices(list("x"))
	socket, _ := serve(t, s)
	client, conn := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	receive(t, stream)
	n, _, _ := s.Streams()
	require.Equal(t, 1, n)

	hungUp := make(chan struct{})
	go func() { defer close(hungUp); s.HangUp(soon(t)) }()
	_, err = stream.Recv()
	require.Error(t, err, "the stream ends …")
	select {
	case <-hungUp:
		t.Fatal("… and HangUp waits for the connection's end")
	default:
	}
	require.NoError(t, conn.Close())
	<-hungUp

	client, _ = dial(t, socket) // a new stream is independent of the old ones
	stream, err = client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	require.Equal(t, []string{"x Healthy"}, receive(t, stream))
}

func TestHangUpDoesNotWaitForEver(t *testing.T) {
	s := NewServer(backend{}, nil)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	_, err := client.GetDevicePluginOptions(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.HangUp(ctx)
}

func TestStreamsSignalsChanges(t *testing.T) {
	s := NewServer(backend{}, nil)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := client.ListAndWatch(ctx, &v1beta1.Empty{})
	require.NoError(t, err)
	wait := func(want int) {
		t.Helper()
		for {
			n, _, changed := s.Streams()
			if n == want {
				return
			}
			select {
			case <-changed:
			case <-soon(t).Done():
				t.Fatalf("%d streams, want %d", n, want)
			}
		}
	}
	wait(1)
	cancel()
	wait(0)
}

func TestServeAcceptsASecondListener(t *testing.T) {
	s := NewServer(backend{}, nil)
	first, ln := serve(t, s)
	client, _ := dial(t, first)
	_, err := client.GetDevicePluginOptions(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	second, _ := serve(t, s)
	client, _ = dial(t, second)
	options, err := client.GetDevicePluginOptions(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	require.True(t, options.GetGetPreferredAllocationAvailable())
	require.False(t, options.GetPreStartRequired())
}

func TestBackendIsCalledForEachContainer(t *testing.T) {
	s := NewServer(backend{}, nil)
	socket, _ := serve(t, s)
	client, _ := dial(t, socket)
	request := func(ids ...string) *v1beta1.ContainerAllocateRequest {
		return &v1beta1.ContainerAllocateRequest{DevicesIds: ids}
	}
	resp, err := client.Allocate(soon(t), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{request("a"), request("b", "c")}})
	require.NoError(t, err)
	require.Len(t, resp.GetContainerResponses(), 2)
	require.Equal(t, "c", resp.GetContainerResponses()[1].GetCdiDevices()[1].GetName())
	_, err = client.Allocate(soon(t), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{request("a"), request("bad")}})
	require.ErrorContains(t, err, "bad is bad")

	preferred, err := client.GetPreferredAllocation(soon(t), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: []string{"a", "b"}, MustIncludeDeviceIDs: []string{"b"}, AllocationSize: 2},
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"b", "a"}, preferred.GetContainerResponses()[0].GetDeviceIDs())
	_, err = client.GetPreferredAllocation(soon(t), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: []string{"a"}, AllocationSize: 2},
	}})
	require.ErrorContains(t, err, "too many")
}

// slow is a backend that responds only when allowed to.
type slow struct {
	backend
	called, release chan struct{}
}

func (b slow) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	close(b.called)
	<-b.release
	return b.backend.Allocate(ids)
}

func TestStopAnswersAllocateInFlight(t *testing.T) {
	b := slow{called: make(chan struct{}), release: make(chan struct{})}
	s := NewServer(b, nil)
	s.SetDevices(list("x"))
	socket, ln := serve(t, s)
	client, _ := dial(t, socket)
	stream, err := client.ListAndWatch(soon(t), &v1beta1.Empty{})
	require.NoError(t, err)
	require.Equal(t, []string{"x Healthy"}, receive(t, stream))
	answered := make(chan error, 1)
	go func() {
		_, err := client.Allocate(soon(t), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{"x"}}}})
		answered <- err
	}()
	<-b.called
	require.NoError(t, ln.Close())
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.Stop() }()
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF, "the kubelet knows that it ends")
	close(b.release)
	require.NoError(t, <-answered)
	<-stopped
}
