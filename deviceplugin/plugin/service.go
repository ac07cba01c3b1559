package plugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
)

// service serves one resource with its own server, socket and registration, so that no
// resource disturbs another.
//
// A resource without devices is still served, with an empty list, since the kubelet
// knows it until it restarts. Then the socket and the service are removed.
type service struct {
	plugin   *Plugin
	resource string
	server   *kubelet.Server
	ln       *net.UnixListener // handed over by the previous program; nil: none
	ready    chan struct{}     // closed when there is a list
	listed   sync.Once
	empty    atomic.Bool          // the list has no device
	view     atomic.Pointer[view] // data for responses to the kubelet

}

// view is never changed, only replaced. Its parts are built at the kubelet's first
// call, since the kubelet waits for the list before that.
type view struct {
	allocate func() *allocate.Resource
	chooser  func() *prefer.Chooser
}

func (p *Plugin) newService(resource string, ln *net.UnixListener) *service {
	s := &service{plugin: p, resource: resource, ln: ln, ready: make(chan struct{})}
	s.server = kubelet.NewServer(s, p.firstList)
	s.setView(plan.Resource{Name: resource})
	return s
}

// setView replaces the view by that of the devices to advertise now. Plugin.mu is held.
func (s *service) setView(r plan.Resource) {
	settings, host, topology := s.plugin.state.settings, s.plugin.state.host, s.plugin.state.topology
	s.view.Store(&view{
		allocate: sync.OnceValue(func() *allocate.Resource { return allocate.New(settings, host, r) }),
		chooser: sync.OnceValue(func() *prefer.Chooser {
			parts := make([]prefer.Device, 0, len(r.Devices))
			for _, d := range r.Devices {
				parts = append(parts, prefer.Device{ID: d.ID, GPU: d.GPU, LastResort: !d.Healthy()})
			}
			return prefer.New(topology, parts, prefer.Options{Policy: policy(settings, r)})
		}),
	})
}

// policy returns how to choose devices of the resource, as the reference does: whole
// GPUs that are near to each other, and parts of GPUs by the policy for shared devices.
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

// setDevices sends the devices to the kubelet.
func (s *service) setDevices(devices []plan.Device) {
	list := make([]kubelet.Device, 0, len(devices))
	for _, d := range devices {
		one := kubelet.Device{ID: d.ID, Healthy: d.Healthy()}
		if d.NUMANode >= 0 {
			one.NUMANodes = []int64{int64(d.NUMANode)}
		}
		list = append(list, one)
	}
	s.empty.Store(len(list) == 0)
	s.server.Set(list)
	s.listed.Do(func() { close(s.ready) })
}

// run serves until ctx ends, or until the resource has no device and the kubelet has
// forgotten it.
func (s *service) run(ctx context.Context) error {
	p := s.plugin
	defer s.server.Stop()
	for {
		ln := s.ln
		s.ln = nil
		err := kubelet.Run(ctx, kubelet.Config{
			Socket:     filepath.Join("/", p.cfg.HostRoot, p.cfg.KubeletSocket),
			Endpoint:   kubelet.Endpoint(s.resource),
			Resource:   s.resource,
			Log:        p.cfg.Log,
			Timeout:    p.cfg.KubeletTimeout,
			Known:      p.kubeletFound.Load,
			Ready:      s.ready,
			Idle:       s.empty.Load,
			Report:     s.setKubelet,
			Registered: func(err error) { p.meters.CountRegistration(s.resource, err) },
		}, s.server, ln, func(ln *net.UnixListener) bool { return p.keepSocket(s, ln) })
		if err != nil || ctx.Err() != nil {
			return err
		}
		if p.retire(s) {
			p.cfg.Log.Info("resource is gone, and the kubelet has forgotten it", "resource", s.resource)
			return nil
		}
	}
}

// retire removes a service without devices. It reports false if the service has devices
// again.
func (p *Plugin) retire(s *service) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.empty.Load() {
		return false
	}
	delete(p.services, s.resource)
	p.applyNext(resourceRetired(s.resource))
	return true
}

// setKubelet stores the state of the registration.
func (s *service) setKubelet(status kubelet.Status) {
	if status.Registered {
		s.plugin.kubeletFound.Store(true) // a resource that comes later has no timeout of its own
	}
	s.plugin.record(kubeletReached(s.resource, status))
}

// keepSocket keeps a socket if another program will follow, and reports whether it did.
func (p *Plugin) keepSocket(s *service, ln *net.UnixListener) bool {
	if !p.replace.Load() || s.empty.Load() {
		return false
	}
	file, err := ln.File()
	if err != nil {
		p.cfg.Log.Error("the socket cannot be kept; the next program will create its own", "resource", s.resource, "message", err.Error())
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keptSockets == nil {
		p.keptSockets = map[string]*os.File{}
	}
	p.keptSockets[kubelet.Endpoint(s.resource)] = file
	return true
}

// Allocate returns what a container gets. Its errors appear in the pod's events.
func (s *service) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	began := time.Now()
	resp, err := s.view.Load().allocate().Allocate(ids)
	s.plugin.meters.ObserveAllocation(s.resource, time.Since(began), err)
	if err != nil {
		s.plugin.journal.Refused(s.resource, status.Code(err).String(), status.Convert(err).Message(), time.Now())
	}
	return resp, err
}

// Prefer chooses devices by the policy. A device that has become unhealthy since the
// kubelet asked is chosen last, as Allocate would refuse it.
func (s *service) Prefer(available, include []string, size int) ([]string, error) {
	began := time.Now()
	chooser := s.view.Load().chooser()
	ids, err := chooser.Prefer(available, include, size)
	s.plugin.meters.ObservePreference(s.resource, time.Since(began))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("prefer devices of %s: %v", s.resource, err))
	}
	if ratio, ok := chooser.Rate(ids); ok {
		s.plugin.meters.ObserveScore(s.resource, ratio)
	}
	return ids, nil
}

// updateServices passes the devices to advertise to the services and starts new
// services. p.mu is held.
func (p *Plugin) updateServices(resources []plan.Resource) {
	there := map[string]bool{}
	for _, r := range resources {
		there[r.Name] = true
		s, known := p.services[r.Name]
		if !known {
			s = p.newService(r.Name, nil)
			p.services[r.Name] = s
			p.startService(s)
		}
		s.setView(r)
		s.setDevices(r.Devices)
	}
	for name, s := range p.services {
		if !there[name] {
			s.setView(plan.Resource{Name: name})
			s.setDevices(nil)
		}
	}
}
