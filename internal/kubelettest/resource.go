package kubelettest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Resource is the kubelet's view of an extended resource at one moment.
type Resource struct {
	Name        string
	Endpoint    string            // name of the plugin's socket in Dir; "" before it has registered in this run
	Devices     []*v1beta1.Device // as last listed, in the order of the plugin; yours to keep
	Capacity    int               // devices that exist, what node.status.capacity would say
	Allocatable int               // healthy ones, what node.status.allocatable would say
	Gone        bool              // no plugin is connected
	Lists       int               // lists received since the plugin registered
	Listed      time.Time         // when the last list came; zero before the first
	Registered  int               // registrations in this run of the kubelet
}

// resource is the internal state of a Resource; Kubelet.mu guards it.
type resource struct {
	name       string
	endpoint   *endpoint // nil: known from the checkpoint only
	options    *v1beta1.DevicePluginOptions
	devices    []*v1beta1.Device
	healthy    map[string]bool // IDs, as the device manager's healthyDevices
	unhealthy  map[string]bool
	reported   bool // listed at least once in this run
	lists      int
	listed     time.Time
	registered int
	stopped    time.Time // zero: its plugin is connected
}

func (r *resource) view() Resource {
	v := Resource{
		Name:        r.name,
		Capacity:    len(r.healthy) + len(r.unhealthy),
		Allocatable: len(r.healthy),
		Gone:        !r.stopped.IsZero(),
		Lists:       r.lists,
		Listed:      r.listed,
		Registered:  r.registered,
	}
	if r.endpoint != nil {
		v.Endpoint = r.endpoint.name
	}
	for _, d := range r.devices {
		v.Devices = append(v.Devices, proto.Clone(d).(*v1beta1.Device))
	}
	return v
}

func (r *resource) device(id string) *v1beta1.Device {
	for _, d := range r.devices {
		if d.GetID() == id {
			return d
		}
	}
	return nil
}

// setDevices replaces the devices with the plugin's list; Kubelet.mu is held.
func (r *resource) setDevices(devices []*v1beta1.Device) {
	r.devices, r.healthy, r.unhealthy = devices, map[string]bool{}, map[string]bool{}
	r.reported = true
	r.lists++
	r.listed = time.Now()
	for _, d := range devices {
		if d.GetHealth() == v1beta1.Healthy {
			r.healthy[d.GetID()] = true
		} else {
			r.unhealthy[d.GetID()] = true
		}
	}
}

// stop marks the plugin as gone; Kubelet.mu is held.
func (r *resource) stop(now time.Time) {
	maps.Copy(r.unhealthy, r.healthy)
	r.healthy = map[string]bool{}
	r.stopped = now
}

// Resource returns a resource. ok is false if it was never registered, or has gone
// away.
func (k *Kubelet) Resource(name string) (r Resource, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resource(name)
}

func (k *Kubelet) resource(name string) (Resource, bool) {
	if r := k.resources[name]; r != nil {
		return r.view(), true
	}
	return Resource{Name: name, Gone: true}, false
}

// Resources returns all resources, by name.
func (k *Kubelet) Resources() []Resource {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []Resource
	for _, name := range slices.Sorted(maps.Keys(k.resources)) {
		all = append(all, k.resources[name].view())
	}
	return all
}

// Wait returns the resource as soon as cond returns true for it; it calls cond only on
// changes. When ctx ends it returns the last state of the resource and an error. For an
// unknown resource, cond gets a Resource with Gone set.
func (k *Kubelet) Wait(ctx context.Context, name string, cond func(Resource) bool) (Resource, error) {
	for {
		k.mu.Lock()
		r, ok := k.resource(name)
		changed := k.changed
		k.mu.Unlock()
		if cond(r) {
			return r, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if !ok {
				return r, fmt.Errorf("kubelettest: wait for %s: it was not registered: %w", name, ctx.Err())
			}
			return r, fmt.Errorf("kubelettest: wait for %s: it has capacity %d, allocatable %d, gone %v, endpoint %q, %d lists: %w",
				name, r.Capacity, r.Allocatable, r.Gone, r.Endpoint, r.Lists, ctx.Err())
		}
	}
}

// UpdateNodeStatus does the kubelet's update of every ten seconds: resources whose
// plugin has been gone for longer than GracePeriod disappear. It returns their
// names.
func (k *Kubelet) UpdateNodeStatus() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(k.resources)) {
		r := k.resources[name]
		if !r.stopped.IsZero() && k.cfg.Now().Sub(r.stopped) > GracePeriod {
			delete(k.resources, name)
			gone = append(gone, name)
		}
	}
	if gone != nil {
		k.save()
		k.notify()
	}
	return gone
}
