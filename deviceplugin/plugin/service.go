package plugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/handover"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/deviceplugin/server"
)

const prefix = "nvidia.com/"

// Endpoint is the name of a resource's socket beside the kubelet's, which is that
// of the reference: "nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock". Two plugins that
// serve the same resource then see each other.
func Endpoint(resource string) string {
	return "nvidia-" + strings.TrimPrefix(resource, prefix) + ".sock"
}

// resourceOf is the other way round; "" for what is no endpoint.
func resourceOf(endpoint string) string {
	name, is := strings.CutPrefix(endpoint, "nvidia-")
	name, also := strings.CutSuffix(name, ".sock")
	if !is || !also || name == "" {
		return ""
	}
	return prefix + name
}

// service serves one resource: it has a server, a socket and a registration of
// its own, so that no resource is disturbed by what becomes of another.
//
// A resource that has no device any more is served on with an empty list, as the
// kubelet knows of it until it is started anew. Then the socket goes, and with it
// the service.
type service struct {
	plugin   *Plugin
	resource string
	server   *server.Server
	ln       *net.UnixListener // handed over by the program before; nil: none
	ready    chan struct{}     // closed when there is a list
	listed   sync.Once
	empty    atomic.Bool          // the list has no device
	view     atomic.Pointer[view] // what the kubelet's questions are answered from

	kubelet kubelet.Status // Plugin.mu is its lock
}

// view is never changed, only replaced. What answers is made when the kubelet first
// asks: it waits for the list before.
type view struct {
	allocate func() *allocate.Resource
	chooser  func() *prefer.Chooser
}

func (p *Plugin) newService(resource string, ln *net.UnixListener) *service {
	s := &service{plugin: p, resource: resource, ln: ln, ready: make(chan struct{}), kubelet: kubelet.Status{Waiting: "the kubelet"}}
	s.server = server.New(s, p.firstList)
	s.see(plan.Resource{Name: resource}, p.near())
	return s
}

// see makes the view of what is to be advertised now.
func (s *service) see(r plan.Resource, t *prefer.Topology) {
	settings, host := s.plugin.settings, s.plugin.host
	s.view.Store(&view{
		allocate: sync.OnceValue(func() *allocate.Resource { return allocate.New(settings, host, r) }),
		chooser: sync.OnceValue(func() *prefer.Chooser {
			parts := make([]prefer.Device, 0, len(r.Devices))
			for _, d := range r.Devices {
				parts = append(parts, prefer.Device{ID: d.ID, GPU: d.GPU, Late: !d.Healthy()})
			}
			return prefer.New(t, parts, prefer.Options{Policy: policy(settings, r)})
		}),
	})
}

// policy is how to choose devices of the resource: as the reference does, whole
// GPUs that are near to each other, and parts of GPUs by the policy for shared
// devices.
func policy(c *config.Config, r plan.Resource) prefer.Policy {
	for _, d := range r.Devices {
		switch {
		case d.MIG.UUID == "" && d.Replicas == 0:
		case c.Flags.Plugin.Packed():
			return prefer.Packed
		default:
			return prefer.Distributed
		}
	}
	return prefer.Aligned
}

// list tells the kubelet.
func (s *service) list(devices []plan.Device) {
	list := make([]server.Device, 0, len(devices))
	for _, d := range devices {
		one := server.Device{ID: d.ID, Healthy: d.Healthy()}
		if d.NUMANode >= 0 {
			one.NUMANodes = []int64{int64(d.NUMANode)}
		}
		list = append(list, one)
	}
	s.empty.Store(len(list) == 0)
	s.server.Set(list)
	s.listed.Do(func() { close(s.ready) })
}

// run serves until ctx ends, or there is nothing left to serve and nobody that
// knows of it.
func (s *service) run(ctx context.Context) error {
	p := s.plugin
	defer s.server.Stop()
	for {
		ln := s.ln
		s.ln = nil
		err := kubelet.Run(ctx, kubelet.Config{
			Socket:     filepath.Join("/", p.cfg.HostRoot, p.cfg.KubeletSocket),
			Endpoint:   Endpoint(s.resource),
			Resource:   s.resource,
			Options:    server.Options(),
			Log:        p.cfg.Log,
			Timeout:    p.cfg.KubeletTimeout,
			Known:      p.known.Load,
			Ready:      s.ready,
			Idle:       s.empty.Load,
			Report:     s.changed,
			Registered: func(err error) { p.meters.Registration(s.resource, err) },
		}, s.server, ln, func(ln *net.UnixListener) bool { return p.keep(s, ln) })
		if err != nil || ctx.Err() != nil {
			return err
		}
		if p.retire(s) {
			p.cfg.Log.Info("resource is gone, and the kubelet has forgotten it", "resource", s.resource)
			return nil
		}
	}
}

// retire forgets a service that has nothing to serve, unless that has changed.
func (p *Plugin) retire(s *service) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.empty.Load() {
		return false
	}
	delete(p.services, s.resource)
	return true
}

// changed is told how things stand with the kubelet.
func (s *service) changed(status kubelet.Status) {
	p := s.plugin
	p.mu.Lock()
	defer p.mu.Unlock()
	s.kubelet = status
	if status.Registered {
		p.known.Store(true) // there is a kubelet: a resource that comes later has no clock of its own
	}
	p.write()
}

// keep saves a socket when there is a next program.
func (p *Plugin) keep(s *service, ln *net.UnixListener) bool {
	if !p.replace.Load() || s.empty.Load() {
		return false
	}
	file, err := handover.Keep(ln)
	if err != nil {
		p.cfg.Log.Error("the next program will make a socket of its own", "resource", s.resource, "message", err.Error())
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		p.kept = map[string]*os.File{}
	}
	p.kept[Endpoint(s.resource)] = file
	return true
}

// Allocate says what a container has to be given. What it refuses stands in the
// pod's events.
func (s *service) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	began := time.Now()
	resp, err := s.view.Load().allocate().Allocate(ids)
	s.plugin.meters.Allocated(s.resource, time.Since(began), err)
	if err != nil {
		s.plugin.journal.Refused(s.resource, status.Code(err).String(), status.Convert(err).Message(), time.Now())
	}
	return resp, err
}

// Prefer chooses devices by the policy. One that has become unhealthy since the
// kubelet asked is chosen last, as Allocate would refuse it.
func (s *service) Prefer(available, include []string, size int) ([]string, error) {
	began := time.Now()
	chooser := s.view.Load().chooser()
	ids, err := chooser.Prefer(available, include, size)
	s.plugin.meters.Preferred(s.resource, time.Since(began))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("prefer devices of %s: %v", s.resource, err))
	}
	if ratio, ok := chooser.Rate(ids); ok {
		s.plugin.meters.Score(s.resource, ratio)
	}
	return ids, nil
}

// serve tells the services what there is to advertise, and begins those that are
// new. p.mu is held.
func (p *Plugin) serve(resources []plan.Resource) {
	topology := p.near()
	there := map[string]bool{}
	for _, r := range resources {
		there[r.Name] = true
		s, known := p.services[r.Name]
		if !known {
			s = p.newService(r.Name, nil)
			p.services[r.Name] = s
			p.begin(s)
		}
		s.see(r, topology)
		s.list(r.Devices)
	}
	for name, s := range p.services {
		if !there[name] {
			s.see(plan.Resource{Name: name}, topology)
			s.list(nil)
		}
	}
}

// near is how near the GPUs are to each other. One that has not changed is kept,
// with what it remembers. p.mu is held.
func (p *Plugin) near() *prefer.Topology {
	if now := prefer.NewTopology(p.snapshot); p.topology == nil || !now.Equal(p.topology) {
		p.topology = now
	}
	return p.topology
}

// registered says whether the kubelet knows of every resource that there is, and
// what is waited for where it does not. p.mu is held.
func (p *Plugin) registered() (all bool, waiting string) {
	waiting = "the kubelet"
	for _, r := range p.plan.Resources {
		s, known := p.services[r.Name]
		switch {
		case !known:
			return false, waiting
		case !s.kubelet.Registered:
			return false, s.kubelet.Waiting
		}
		all = true
	}
	return all, waiting
}
