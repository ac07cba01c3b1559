package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is a device as reported to the kubelet.
type Device struct {
	ID        string
	Healthy   bool
	NUMANodes []int64 // empty: not known
}

// Backend decides about the devices of one container. Its methods are called concurrently.
// Their errors appear in the events of the pod, so a gRPC status with a readable sentence
// is best.
type Backend interface {
	// Allocate returns what the container gets for these devices.
	Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error)
	// Prefer chooses size of the available devices, including those in include.
	Prefer(available, include []string, size int) ([]string, error)
}

// options returns the options reported to the kubelet.
func options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// Server implements the kubelet's device plugin API for one resource. It knows nothing of
// hardware: SetDevices replaces the list of devices, every stream of the kubelet gets each list,
// and a Backend decides what to allocate. Its methods may be called concurrently.
type Server struct {
	v1beta1.UnimplementedDevicePluginServer
	backend Backend
	grpc    *grpc.Server
	onSent  func() // called after each list that was sent

	mu          sync.Mutex
	changed     chan struct{} // closed and replaced at each change of the fields below
	list        *v1beta1.ListAndWatchResponse
	devices     []Device
	generation  int // each stream ends when this has changed since its start
	streams     int // open ListAndWatch streams
	opened      int // streams opened so far
	connections int
	listUnsent  bool // a stream exists to which the list has not been written
	listFetched bool // gRPC has got the list, but may not have written it
}

// Settings of a gRPC server. Each resource has one, so its buffers are small: a list of a hundred
// devices has 6 kB. The workers are goroutines that are reused, since the stack of a new goroutine
// has to grow several times. A few are enough, as the kubelet has one stream and asks for one pod
// after the other; further calls get a goroutine each.
const (
	workers     = 3
	readBuffer  = 4 << 10
	writeBuffer = 16 << 10
)

// NewServer returns a Server without a list: streams wait for the first SetDevices. sent, which
// may be nil, is called after each list that was sent.
func NewServer(b Backend, sent func()) *Server {
	if sent == nil {
		sent = func() {}
	}
	s := &Server{backend: b, onSent: sent, changed: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.WaitForHandlers(true), grpc.NumStreamWorkers(workers), grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}))
	v1beta1.RegisterDevicePluginServer(s.grpc, s)
	return s
}

// Serve serves the kubelet on ln until ln is closed or Stop is called, and then returns
// nil. It may be called for several listeners in turn.
func (s *Server) Serve(ln net.Listener) error {
	err := s.grpc.Serve(countingListener{ln, s})
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve the device plugin on %s: %w", ln.Addr(), err)
}

// stopTimeout bounds how long Stop waits for responses in flight.
const stopTimeout = time.Second

// Stop ends all streams, connections and listeners. An Allocate in flight still gets its
// response: the kubelet would otherwise refuse the pod for good.
func (s *Server) Stop() {
	s.endStreams()
	responded := make(chan struct{})
	go func() {
		defer close(responded)
		s.grpc.GracefulStop()
	}()
	select {
	case <-responded:
	case <-time.After(stopTimeout):
		s.grpc.Stop()
		<-responded
	}
}

// SetDevices replaces the list of devices. An equal list is not sent again.
func (s *Server) SetDevices(devices []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list != nil && slices.EqualFunc(s.devices, devices, equalDevices) {
		return
	}
	s.listUnsent, s.listFetched = s.streams > 0, false
	s.devices = slices.Clone(devices)
	s.list = &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(devices))}
	for _, d := range devices {
		s.list.Devices = append(s.list.Devices, d.toMessage())
	}
	s.notify()
}

// Resend sends the list to each stream again: the kubelet then writes its record of the devices that
// pods hold (pkg/kubelet/cm/devicemanager of k8s.io/kubernetes, genericDeviceUpdateCallback).
func (s *Server) Resend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || s.streams == 0 {
		return
	}
	s.list = &v1beta1.ListAndWatchResponse{Devices: s.list.Devices}
	s.listUnsent, s.listFetched = true, false
	s.notify()
}

func equalDevices(a, b Device) bool {
	return a.ID == b.ID && a.Healthy == b.Healthy && slices.Equal(a.NUMANodes, b.NUMANodes)
}

// toMessage returns the device as a message of the kubelet's API.
func (d Device) toMessage() *v1beta1.Device {
	m := &v1beta1.Device{ID: d.ID, Health: v1beta1.Unhealthy}
	if d.Healthy {
		m.Health = v1beta1.Healthy
	}
	for _, n := range d.NUMANodes {
		if m.Topology == nil {
			m.Topology = &v1beta1.TopologyInfo{}
		}
		m.Topology.Nodes = append(m.Topology.Nodes, &v1beta1.NUMANode{ID: n})
	}
	return m
}

// Streams returns the number of open ListAndWatch streams, the number opened so far,
// and a channel that is closed when they change.
func (s *Server) Streams() (open, opened int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.opened, s.changed
}

// Flush waits until the last list was handed to gRPC, or ctx ends. gRPC runs every ready
// goroutine before it writes. So a caller calls Flush before work that would delay the list.
func (s *Server) Flush(ctx context.Context) {
	s.waitUntil(ctx, func() bool { return !s.listUnsent })
}

// waitUntil waits until cond holds or ctx ends. It evaluates cond under s.mu after each
// change.
func (s *Server) waitUntil(ctx context.Context, cond func() bool) {
	for {
		s.mu.Lock()
		holds, changed := cond(), s.changed
		s.mu.Unlock()
		if holds {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// onWrite is called after each write to a connection. The first write after gRPC
// fetched the list contains it, or data before it.
func (s *Server) onWrite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listUnsent && s.listFetched {
		s.listUnsent = false
		s.notify()
	}
}

// HangUp ends every stream and waits until the kubelet has closed its connections, or ctx ends.
// It must be called before registering again: a kubelet that handles the end of the old stream
// after the new registration takes it for the end of the new stream (Kubernetes 1.26 and later).
func (s *Server) HangUp(ctx context.Context) {
	s.endStreams()
	s.waitUntil(ctx, func() bool { return s.connections == 0 })
}

// endStreams makes every ListAndWatch return.
func (s *Server) endStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	s.notify()
}

// GetDevicePluginOptions responds to the kubelet's first call.
func (s *Server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch sends the list now and whenever it changes.
func (s *Server) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.mu.Lock()
	generation := s.generation
	s.streams++
	s.opened++
	s.notify()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listUnsent = false
		s.streams--
		s.notify()
	}()
	var last *v1beta1.ListAndWatchResponse
	for {
		s.mu.Lock()
		list, changed, isOver := s.list, s.changed, s.generation != generation
		s.listFetched = true
		s.mu.Unlock()
		if isOver {
			return nil
		}
		if list != nil && list != last {
			if err := stream.Send(list); err != nil {
				return err
			}
			last = list
			s.onSent()
			continue // the list may have changed while it was sent
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation calls the Backend for each container.
func (s *Server) GetPreferredAllocation(_ context.Context, req *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	resp := &v1beta1.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		ids, err := s.backend.Prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
		if err != nil {
			return nil, err
		}
		resp.ContainerResponses = append(resp.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return resp, nil
}

// Allocate calls the Backend for each container; one refusal refuses all.
func (s *Server) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		one, err := s.backend.Allocate(c.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		resp.ContainerResponses = append(resp.ContainerResponses, one)
	}
	return resp, nil
}

// notify wakes all goroutines that wait for s.changed. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// countingListener counts the kubelet's connections. (A stats.Handler can do that too,
// but is called six times in each call.)
type countingListener struct {
	net.Listener
	server *Server
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	unix, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return conn, err
	}
	l.server.addConnections(1)
	return &connection{UnixConn: unix, onWrite: l.server.onWrite, ended: sync.OnceFunc(func() { l.server.addConnections(-1) })}, nil
}

// connection reports each write to it and its end.
type connection struct {
	*net.UnixConn
	onWrite func()
	ended   func()
}

func (c *connection) Write(b []byte) (int, error) {
	defer c.onWrite()
	return c.UnixConn.Write(b)
}

func (c *connection) Close() error {
	defer c.ended()
	return c.UnixConn.Close()
}

func (s *Server) addConnections(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections += n
	s.notify()
}
