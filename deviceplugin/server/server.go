// Package server speaks the kubelet's device plugin API for one resource. It
// knows nothing of hardware: whole lists of devices are put in with Set, every
// stream of the kubelet gets them, and what to give away is a Backend's to say.
package server

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

// Device is one device as the kubelet is told of it.
type Device struct {
	ID        string
	Healthy   bool
	NUMANodes []int64 // none: not known
}

// Backend answers for one container. Its methods are called concurrently; their
// errors stand in the events of the pod, so a gRPC status with a sentence for
// people is best.
type Backend interface {
	// Allocate says what the container has to be given for these devices.
	Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error)
	// Prefer chooses size of the available devices, include among them.
	Prefer(available, include []string, size int) ([]string, error)
}

// Options is what the kubelet is told of the plugin.
func Options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// Server is the service. Its methods may be called concurrently.
type Server struct {
	v1beta1.UnimplementedDevicePluginServer
	backend Backend
	grpc    *grpc.Server
	sent    func() // called after each list that was sent

	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change of what follows
	list    *v1beta1.ListAndWatchResponse
	devices []Device
	round   int // a stream of an earlier round ends
	streams int
	opened  int // streams ever
	conns   int
	due     bool // a list was set for a stream and is not on its way
	taken   bool // gRPC has it
}

// A call is answered by a goroutine that is there already: the stack of a new one has
// to be made larger several times. The kubelet has a stream and asks for one pod
// after the other; what is more than that gets a goroutine of its own. Its messages
// are small, a list of a hundred devices has 6 kB, and each resource has such buffers.
const (
	workers     = 3
	readBuffer  = 4 << 10
	writeBuffer = 16 << 10
)

// New makes a Server that has no list yet: streams wait for the first Set. sent,
// which may be nil, is called each time a list has been sent.
func New(b Backend, sent func()) *Server {
	if sent == nil {
		sent = func() {}
	}
	s := &Server{backend: b, sent: sent, changed: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.WaitForHandlers(true), grpc.NumStreamWorkers(workers), grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}))
	v1beta1.RegisterDevicePluginServer(s.grpc, s)
	return s
}

// Serve serves the kubelet on ln until ln is closed, or until Stop; it then
// returns nil. It may be called for one listener after the other.
func (s *Server) Serve(ln net.Listener) error {
	err := s.grpc.Serve(counted{ln, s})
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve the device plugin on %s: %w", ln.Addr(), err)
}

// answerLimit is how long Stop lets the kubelet take an answer that is being given.
const answerLimit = time.Second

// Stop ends everything, listeners included. An Allocate that is under way is
// answered: the kubelet would otherwise refuse the pod for good.
func (s *Server) Stop() {
	s.endStreams()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.grpc.GracefulStop()
	}()
	select {
	case <-answered:
	case <-time.After(answerLimit):
		s.grpc.Stop()
		<-answered
	}
}

// Set puts a new list in the place of the old. One that says the same is not
// sent again.
func (s *Server) Set(devices []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list != nil && slices.EqualFunc(s.devices, devices, equal) {
		return
	}
	s.due, s.taken = s.streams > 0, false
	s.devices = slices.Clone(devices)
	s.list = &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(devices))}
	for _, d := range devices {
		s.list.Devices = append(s.list.Devices, d.message())
	}
	s.notify()
}

func equal(a, b Device) bool {
	return a.ID == b.ID && a.Healthy == b.Healthy && slices.Equal(a.NUMANodes, b.NUMANodes)
}

func (d Device) message() *v1beta1.Device {
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

// Streams returns how many ListAndWatch streams are open, how many ever were
// opened, and a channel that is closed when that changes.
func (s *Server) Streams() (open, ever int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.opened, s.changed
}

// Flush waits until a list that was Set is on its way to the kubelet, or ctx ends.
// gRPC lets everything run that can before it writes; who has work to do that the
// kubelet need not wait for calls Flush first.
func (s *Server) Flush(ctx context.Context) {
	s.until(ctx, func() bool { return !s.due })
}

// until waits until cond, which is asked under s.mu at each change, or ctx ends.
func (s *Server) until(ctx context.Context, cond func() bool) {
	for {
		s.mu.Lock()
		is, changed := cond(), s.changed
		s.mu.Unlock()
		if is {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// written is told of each write to a connection: the first after gRPC has the list
// has it too, or what was before it.
func (s *Server) written() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due && s.taken {
		s.due = false
		s.notify()
	}
}

// HangUp ends every stream and waits until the kubelet has let go of its
// connections, or ctx ends. It is to be called before registering again: a
// kubelet that is still busy with the end of the old stream takes it for the
// end of the new one (Kubernetes 1.26 and later).
func (s *Server) HangUp(ctx context.Context) {
	s.endStreams()
	s.until(ctx, func() bool { return s.conns == 0 })
}

func (s *Server) endStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	s.notify()
}

// GetDevicePluginOptions is the kubelet's first question.
func (s *Server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return Options(), nil
}

// ListAndWatch sends the list, and again whenever it changes.
func (s *Server) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	s.mu.Lock()
	round := s.round
	s.streams++
	s.opened++
	s.notify()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.due = false
		s.streams--
		s.notify()
	}()
	var last *v1beta1.ListAndWatchResponse
	for {
		s.mu.Lock()
		list, changed, over := s.list, s.changed, s.round != round
		s.taken = true
		s.mu.Unlock()
		if over {
			return nil
		}
		if list != nil && list != last {
			if err := stream.Send(list); err != nil {
				return err
			}
			last = list
			s.sent()
			continue // it may have changed while it was sent
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation asks the Backend for each container.
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

// Allocate asks the Backend for each container; one refusal refuses all.
func (s *Server) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		answer, err := s.backend.Allocate(c.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		resp.ContainerResponses = append(resp.ContainerResponses, answer)
	}
	return resp, nil
}

// notify wakes all that wait; s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// counted is a listener that counts the kubelet's connections. (A stats.Handler can
// too, but is asked six times in each call.)
type counted struct {
	net.Listener
	server *Server
}

func (l counted) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	unix, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return conn, err
	}
	l.server.connected(1)
	return &connection{UnixConn: unix, written: l.server.written, ended: sync.OnceFunc(func() { l.server.connected(-1) })}, nil
}

// connection tells of what is written to it, and of its end.
type connection struct {
	*net.UnixConn
	written func()
	ended   func()
}

func (c *connection) Write(b []byte) (int, error) {
	defer c.written()
	return c.UnixConn.Write(b)
}

func (c *connection) Close() error {
	defer c.ended()
	return c.UnixConn.Close()
}

func (s *Server) connected(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns += n
	s.notify()
}
