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
	"github.com/gpuready/gpuready/toolkit/socket"
)

// How the plugin is called, and where it stands among others (00 to 99): late, so
// that what it adds is added to what the others made of the container.
const (
	Name  = "gpuready"
	Index = "90"
)

// DefaultSocket is where runtimes let plugins in.
const DefaultSocket = "/var/run/nri/nri.sock"

// registration bounds how long a runtime may take to answer. It takes plugins in
// one after the other and gives each five seconds.
const registration = 30 * time.Second

// Status is how things stand with the runtime.
type Status struct {
	Connected bool   // it asks us about each container from now on
	Absent    bool   // there is no socket
	Message   string // why it is not connected
	Runtime   string // its name and version, once connected
}

// Injected is a container that was given the GPUs.
type Injected struct{ Pod, Container, Generation string }

// Resolved is a container of an allowed namespace that asked for GPUs.
type Resolved struct {
	Namespace, Pod, Container string
	Devices                   []string // as it named them
	Given                     bool     // it was given what it lacked
	Warnings                  []string // what it asked for and was not given, in words
	Err                       error    // why it may not start
}

// Plugin is what to be to the runtime.
type Plugin struct {
	Root      *host.Root
	Socket    string // on the host
	Namespace string // whose containers are given the GPUs
	// Offer returns what there is to give; nil: nothing. It must return at once.
	Offer func() *Offer
	// Report is called at each change of Status, from one goroutine.
	Report func(Status)
	// Injected is called after a container was adjusted, from one goroutine; when
	// many are created at once some may be left out.
	Injected func(Injected)

	Workloads Workloads
	// Table returns what there is to give to workloads. It must return at once.
	Table func() *Table
	// Resolved is called, as Injected, after a workload asked for GPUs.
	Resolved func(Resolved)
	// Missed is called, from one goroutine, with all containers that were missed
	// whenever those are others, and once after each connection.
	Missed func([]Missed)

	last Status
}

// Run connects to the runtime, again when it was started anew, until ctx ends; then
// it returns ctx.Err(). Any other error says why the socket cannot be watched.
func (p *Plugin) Run(ctx context.Context) error {
	return socket.Attend(ctx, p.Root, []string{p.Socket}, func(ctx context.Context, at string) error {
		if at == "" {
			p.report(Status{Absent: true, Message: "there is no NRI socket " + p.Socket})
			return nil
		}
		err := p.serve(ctx, at)
		if ctx.Err() != nil { // another socket is there, or it is the end
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

// A session is one connection with a runtime.
type session struct {
	*Plugin
	ready    chan struct{} // closed once the runtime asks about each container
	once     sync.Once
	injected chan Injected
	resolved chan Resolved
	missed   missedSet

	mu      sync.Mutex
	runtime string // as it calls itself
	byName  bool   // as resolvesNames
}

func (s *session) configured() (runtime string, byName bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runtime, s.byName
}

// serve is a plugin of the runtime at a socket until the connection ends, and says
// why it ended.
//
// It speaks NRI's protocol by the parts of which NRI's own stub is made. The stub
// itself cannot be given up while it waits for a runtime that was killed between
// letting the plugin in and configuring it, and says connected before the runtime
// asks it about containers.
func (p *Plugin) serve(ctx context.Context, at string) error {
	trunk, err := socket.Dial(ctx, p.Root, at)
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

// methods are what the runtime may call. It calls for other events only plugins
// that asked for them.
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
			// The latter two are for what was missed. What is subscribed to is said
			// here once, before it is known whether anything was.
			events.Set(api.Event_CREATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
			return &api.ConfigureResponse{Events: int32(events)}, nil
		},
		// With the answer to the last part the runtime has taken the plugin in: what
		// is created from then on waits for it (BlockPluginSync in NRI's adaptation).
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
			s.missed.gone(in.GetContainer().GetId())
			return &api.StopContainerResponse{}, nil
		},
		"RemoveContainer": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.RemoveContainerRequest
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			s.missed.gone(in.GetContainer().GetId())
			return &api.RemoveContainerResponse{}, nil
		},
		// What runtimes with NRI before 0.12 call for RemoveContainer.
		"StateChange": func(_ context.Context, unmarshal func(any) error) (any, error) {
			var in api.StateChangeEvent
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			if in.GetEvent() == api.Event_REMOVE_CONTAINER {
				s.missed.gone(in.GetContainer().GetId())
			}
			return &api.Empty{}, nil
		},
		"Shutdown": func(_ context.Context, unmarshal func(any) error) (any, error) {
			return &api.Empty{}, unmarshal(&api.Empty{})
		},
	}
}

// create answers the runtime about a container that is about to be created.
func (s *session) create(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	offer := s.Offer()
	_, byName := s.configured()
	if adjust := Decide(s.Namespace, offer, byName, pod, container); adjust != nil {
		s.missed.created(pod, container, nil)
		select {
		case s.injected <- Injected{pod.GetName(), container.GetName(), offer.Generation}:
		default: // nobody waits for a line in a log
		}
		return adjust, nil
	}
	if expects(s.Namespace, pod, container) { // there is nothing to give yet
		missed, _ := s.lacks(pod, container)
		s.missed.created(pod, container, &missed)
		return nil, nil
	}
	s.missed.created(pod, container, nil)
	if !s.Workloads.allow(pod) {
		return nil, nil
	}
	adjust, asked, err := s.Workloads.Resolve(s.Table(), pod, container)
	if err == nil && asked.Empty() && len(asked.Warnings) == 0 {
		return nil, nil
	}
	select {
	case s.resolved <- Resolved{pod.GetNamespace(), pod.GetName(), container.GetName(), asked.Devices, adjust != nil, asked.Warnings, err}:
	default:
	}
	return adjust, err
}
