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

// service offers one resource to the kubelet with its own server, socket and registration, so
// that no resource disturbs another.
//
// A resource that has lost all devices stays registered, with an empty list, since the kubelet
// remembers it until the kubelet restarts. Then the socket and the service are removed.
type service struct {
	plugin   *Plugin
	resource string
	server   *kubelet.Server
	ln       *net.UnixListener    // handed over by the previous program; nil: none
	ready    chan struct{}        // closed when there is a list
	listed   sync.Once            // closes ready
	empty    atomic.Bool          // the list has no device
	view     atomic.Pointer[view] // data for responses to the kubelet
}

// view holds what answers the kubelet's calls for one list of devices. It is never changed,
// only replaced. Its parts are built at the first call that needs them, so that the list is
// sent earlier.
type view struct {
	allocate func() *allocate.Resource
	chooser  func() *prefer.Chooser
	refusal  string // why no device is allocated; "": devices are
}

func (p *Plugin) newService(resource string, ln *net.UnixListener) *service {
	s := &service{plugin: p, resource: resource, ln: ln, ready: make(chan struct{})}
	s.server = kubelet.NewServer(s, p.onListSent)
	s.setView(plan.Resource{Name: resource})
	return s
}

// setView replaces the view by one for the devices of a plan. Plugin.mu is held.
func (s *service) setView(r plan.Resource) {
	settings, host, topology := s.plugin.state.serving, s.plugin.state.deviceNodes, s.plugin.state.topology
	s.view.Store(&view{
		refusal:  s.plugin.state.allocationRefusal(),
		allocate: sync.OnceValue(func() *allocate.Resource { return allocate.New(settings, host, r) }),
		chooser: sync.OnceValue(func() *prefer.Chooser {
			parts := make([]prefer.Device, 0, len(r.Devices))
			for _, d := range r.Devices {
				parts = append(parts, prefer.Device{ID: d.ID, GPU: d.GPU, LastResort: !d.Healthy()})
			}
			return prefer.New(topology, parts, prefer.Options{Policy: choicePolicy(settings, r)})
		}),
	})
}

// choicePolicy returns how to choose devices of the resource. As in NVIDIA's device plugin,
// whole GPUs are chosen near to each other, and parts of GPUs by the policy for shared devices.
func choicePolicy(c *config.Config, r plan.Resource) prefer.Policy {
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
		device := kubelet.Device{ID: d.ID, Healthy: d.Healthy()}
		if d.NUMANode >= 0 {
			device.NUMANodes = []int64{int64(d.NUMANode)}
		}
		list = append(list, device)
	}
	s.empty.Store(len(list) == 0)
	s.server.SetDevices(list)
	s.listed.Do(func() { close(s.ready) })
}

// run keeps the resource registered until ctx ends, or until it has no device and the kubelet
// has disconnected.
func (s *service) run(ctx context.Context) error {
	p := s.plugin
	defer s.server.Stop()
	for {
		ln := s.ln
		s.ln = nil
		err := kubelet.Run(ctx, kubelet.Config{
			Socket:      filepath.Join("/", p.cfg.HostRoot, p.cfg.KubeletSocket),
			Endpoint:    kubelet.Endpoint(s.resource),
			Resource:    s.resource,
			Log:         p.cfg.Log,
			Timeout:     p.cfg.KubeletTimeout,
			KubeletSeen: p.kubeletSeen.Load,
			Ready:       s.ready,
			Idle:        s.isIdle,
			OnStatus:    s.setKubelet,
			OnAttempt:   func(err error) { p.metrics.CountRegistration(s.resource, err) },
		}, s.server, ln, func(ln *net.UnixListener) bool { return p.keepSocket(s, ln) })
		if err != nil || ctx.Err() != nil {
			return err
		}
		if p.retireService(s) {
			p.cfg.Log.Info("resource is gone, and the kubelet has forgotten it", "resource", s.resource)
			return nil
		}
	}
}

// isIdle reports whether the resource has no device and its registration serves nothing any more.
func (s *service) isIdle() bool { return s.empty.Load() && !s.plugin.accountDue.Load() }

// retireService removes a service without devices. It reports false, and removes nothing, if
// the service has devices again.
func (p *Plugin) retireService(s *service) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.isIdle() {
		return false
	}
	delete(p.services, s.resource)
	p.applyFact(resourceRetired(s.resource))
	return true
}

// setKubelet records the status of the registration.
func (s *service) setKubelet(status kubelet.Status) {
	if status.Registered {
		s.plugin.kubeletSeen.Store(true) // no other resource waits with --kubelet-timeout from here on
	}
	s.plugin.applyAndStore(kubeletReached(s.resource, status))
	if status.Registered {
		s.plugin.onRegistered()
	}
}

// keepSocket keeps a socket for the next program, if this process is about to execute one. It
// reports whether it did.
func (p *Plugin) keepSocket(s *service, ln *net.UnixListener) bool {
	if !p.willReplace.Load() || s.empty.Load() {
		return false
	}
	file, err := ln.File()
	if err != nil {
		p.cfg.Log.Error("the socket cannot be kept; the next program will create its own", "resource", s.resource, "path", ln.Addr().String(), "message", err.Error())
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

// Allocate returns what a container gets for devices. Its errors appear in the pod's events.
func (s *service) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	began := time.Now()
	resp, err := s.plugin.allocations.record(ids, func() (*v1beta1.ContainerAllocateResponse, error) {
		v := s.view.Load()
		if v.refusal != "" {
			return nil, status.Error(codes.FailedPrecondition, v.refusal)
		}
		return v.allocate().Allocate(ids)
	})
	s.plugin.metrics.ObserveAllocation(s.resource, time.Since(began), err)
	if err != nil {
		s.plugin.journal.LogRefused(s.resource, status.Code(err).String(), status.Convert(err).Message(), time.Now())
	}
	return resp, err
}

// Prefer chooses devices by the policy. A device that has become unhealthy since the
// kubelet asked is chosen last, as Allocate would refuse it.
func (s *service) Prefer(available, include []string, size int) ([]string, error) {
	began := time.Now()
	chooser := s.view.Load().chooser()
	ids, err := chooser.Prefer(available, include, size)
	s.plugin.metrics.ObservePreference(s.resource, time.Since(began))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("prefer devices of %s: %v", s.resource, err))
	}
	if ratio, ok := chooser.Rate(ids); ok {
		s.plugin.metrics.ObserveScore(s.resource, ratio)
	}
	return ids, nil
}

// updateServices passes the devices of each resource to its service, and starts a service for
// each new resource, and for those to keep registered without a device. p.mu is held.
func (p *Plugin) updateServices(resources []plan.Resource, keep []string) {
	advertised := map[string]bool{}
	for _, name := range keep {
		if p.services[name] == nil {
			s := p.newService(name, nil)
			p.services[name] = s
			p.startService(s)
		}
	}
	for _, r := range resources {
		advertised[r.Name] = true
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
		if !advertised[name] {
			s.setView(plan.Resource{Name: name})
			s.setDevices(nil)
		}
	}
}
