package nri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// The plugin's name, and its position among others (00 to 99). It is late, so that its
// adjustments follow those of the others.
const (
	Name  = "gpuready"
	Index = "90"
)

// DefaultSocket is the socket at which runtimes accept plugins.
const DefaultSocket = "/var/run/nri/nri.sock"

// registration limits the time that a runtime may take to register the plugin. It
// registers plugins one after the other and allows each five seconds.
const registration = 30 * time.Second

// Status is the state of the connection to the runtime.
type Status struct {
	Connected bool   // the runtime now calls us for each container
	Absent    bool   // there is no socket
	Message   string // why it is not connected
	Runtime   string // its name and version, once connected
}

// Injected is a container of an agent that received the GPUs.
type Injected struct{ Pod, Container, Generation string }

// Resolved is a container of an allowed namespace that requested GPUs.
type Resolved struct {
	Namespace, Pod, Container string
	Devices                   []string // as it named them
	Given                     bool     // it received what it lacked
	Warnings                  []string // descriptions of the requests that were not met
	Err                       error    // why it may not start
}

// Plugin is a plugin of the container runtime.
type Plugin struct {
	Root      *host.Root
	Socket    string // on the host
	Namespace string // the namespace of the agents that receive the GPUs
	// Offer returns the edits for agents, nil if there are none. It must not block.
	Offer func() *Offer
	// Report is called at each change of Status, from one goroutine.
	Report func(Status)
	// Injected is called after a container was adjusted, from one goroutine; when
	// many are created at once some may be left out.
	Injected func(Injected)

	Workloads Workloads
	// Table returns the devices for workloads. It must not block.
	Table func() *Table
	// Resolved is called like Injected, after a workload requested GPUs.
	Resolved func(Resolved)
	// Missed is called with all missed containers, from one goroutine, whenever they
	// change and once after each connection.
	Missed func([]Missed)

	last Status
}

// Run connects to the runtime, and reconnects after its restarts, until ctx ends. Then
// it returns ctx.Err(). Any other error is the reason why the socket cannot be watched.
func (p *Plugin) Run(ctx context.Context) error {
	return watch.Follow(ctx, p.Root, []string{p.Socket}, func(ctx context.Context, at string) error {
		if at == "" {
			p.report(Status{Absent: true, Message: "there is no NRI socket " + p.Socket})
			return nil
		}
		err := p.serve(ctx, at)
		if ctx.Err() != nil { // the socket was replaced, or the plugin ends
			return ctx.Err()
		}
		p.report(Status{Message: fmt.Sprintf("NRI at %s: %s", at, record.Clean(err.Error(), 1024))})
		return err
	})
}

func (p *Plugin) report(s Status) {
	if s != p.last {
		p.last = s
		p.Report(s)
	}
}

// session is one connection with a runtime.
type session struct {
	*Plugin
	ready    chan struct{} // closed once the runtime calls for each container
	once     sync.Once
	injected chan Injected
	resolved chan Resolved
	missed   missedSet

	mu      sync.Mutex
	runtime string // the name and version that it reports
	byName  bool   // the result of resolvesNames
}

func (s *session) configured() (runtime string, byName bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runtime, s.byName
}

// serve serves the runtime at a socket until the connection ends, and returns why it
// ended.
//
// It uses the parts of NRI's own stub. The stub itself cannot be cancelled while it
// waits for a runtime that was killed between registering and configuring the plugin.
// Also, it reports a connection before the runtime calls it for containers.
func (p *Plugin) serve(ctx context.Context, at string) error {
	trunk, err := watch.Dial(ctx, p.Root, at)
	if err != nil {
		return err
	}
	s := &session{Plugin: p, ready: make(chan struct{}), injected: make(chan Injected, 16), resolved: make(chan Resolved, 64), missed: missedSet{changed: make(chan struct{}, 1)}}
	mux := multiplex.Multiplex(trunk)
	defer mux.Close()
	listener, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService("nri.pkg.api.v1alpha1.Plugin", &ttrpc.ServiceDesc{Methods: s.methods()})
	conn, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	lost := make(chan struct{})
	client := ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { close(lost) }))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ctx, listener) })
	defer func() {
		_ = listener.Close()
		_ = server.Close()
		_ = client.Close()
		serving.Wait()
		<-lost
	}()

	registering, cancel := context.WithTimeout(ctx, registration)
	defer cancel()
	if _, err := api.NewRuntimeClient(client).RegisterPlugin(registering, &api.RegisterPluginRequest{PluginName: Name, PluginIdx: Index}); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	for ready := s.ready; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-lost:
			return errors.New("the runtime closed the connection")
		case <-ready:
			ready = nil
			runtime, _ := s.configured()
			p.report(Status{Connected: true, Runtime: runtime})
		case i := <-s.injected:
			p.Injected(i)
		case r := <-s.resolved:
			p.Resolved(r)
		case <-s.missed.changed:
			p.Missed(s.missed.list())
		}
	}
}

// methods returns the methods that the runtime may call. It only calls those for other
// events if a plugin subscribes to them.
func (s *session) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Configure": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.ConfigureRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.runtime = record.Clean(in.GetRuntimeName()+" "+in.GetRuntimeVersion(), 256)
			s.byName = resolvesNames(in.GetRuntimeName(), in.GetRuntimeVersion())
			var events api.EventMask
			// The latter two are for missed containers. The subscription is made once,
			// before it is known whether there are any.
			events.Set(api.Event_CREATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
			return &api.ConfigureResponse{Events: int32(events)}, nil
		},
		// The response to the last part completes the registration: from then on every
		// creation waits for the plugin (BlockPluginSync in NRI's adaptation).
		"Synchronize": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.SynchronizeRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			s.missed.synchronize(&in, s.lacks)
			if !in.GetMore() {
				s.once.Do(func() { close(s.ready) })
			}
			return &api.SynchronizeResponse{More: in.GetMore()}, nil
		},
		"CreateContainer": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.CreateContainerRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			adjust, err := s.create(in.GetPod(), in.GetContainer())
			if err != nil {
				return nil, err
			}
			return &api.CreateContainerResponse{Adjust: adjust}, nil
		},
		"StopContainer": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.StopContainerRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			s.missed.remove(in.GetContainer().GetId())
			return &api.StopContainerResponse{}, nil
		},
		"RemoveContainer": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.RemoveContainerRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			s.missed.remove(in.GetContainer().GetId())
			return &api.RemoveContainerResponse{}, nil
		},
		// Runtimes with NRI before 0.12 call this instead of RemoveContainer.
		"StateChange": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.StateChangeEvent
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			if in.GetEvent() == api.Event_REMOVE_CONTAINER {
				s.missed.remove(in.GetContainer().GetId())
			}
			return &api.Empty{}, nil
		},
		"Shutdown": func(_ context.Context, unmarshal func(any) error) (any, error) {
			return &api.Empty{}, unmarshal(&api.Empty{})
		},
	}
}

// create returns the adjustment of a container that is about to be created.
func (s *session) create(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	offer := s.Offer()
	_, byName := s.configured()
	if adjust := decide(s.Namespace, offer, byName, pod, container); adjust != nil {
		s.missed.add(pod, container, nil)
		select {
		case s.injected <- Injected{pod.GetName(), container.GetName(), offer.Generation}:
		default: // dropped: it only serves the log
		}
		return adjust, nil
	}
	if expects(s.Namespace, pod, container) { // there is no offer yet
		missed, _ := s.lacks(pod, container)
		s.missed.add(pod, container, &missed)
		return nil, nil
	}
	s.missed.add(pod, container, nil)
	if !s.Workloads.allow(pod) {
		return nil, nil
	}
	adjust, requested, err := s.Workloads.Resolve(s.Table(), pod, container)
	if err == nil && requested.Empty() && len(requested.Warnings) == 0 {
		return nil, nil
	}
	select {
	case s.resolved <- Resolved{pod.GetNamespace(), pod.GetName(), container.GetName(), requested.Devices, adjust != nil, requested.Warnings, err}:
	default:
	}
	return adjust, err
}
