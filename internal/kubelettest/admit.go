package kubelettest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Pod is a request for devices for one container of a pod. Call Admit once for each
// container.
type Pod struct {
	Namespace, Name, Container string
	Requests                   map[string]int // resource name to number of devices
}

// UID returns the pod's UID, the same for the same namespace and name.
func (p Pod) UID() string {
	h := sha256.Sum256([]byte(p.Namespace + "/" + p.Name))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // a version 8 UUID: made by a rule of one's own
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// Admission is the merged result of the device plugins for an admitted container.
type Admission struct {
	DeviceIDs         map[string][]string // by resource, sorted
	CDIDevices        []string            // qualified names
	Envs, Annotations map[string]string
	Mounts            []*v1beta1.Mount
	Devices           []*v1beta1.DeviceSpec
}

// AdmissionError is a refusal, as in the pod's status. Its texts, and those of the errors
// below, quote the kubelet's messages (k8s.io/kubernetes, pkg/kubelet/lifecycle and
// pkg/kubelet/cm/devicemanager): tests and people search for them.
type AdmissionError struct {
	Reason  string // "UnexpectedAdmissionError", "OutOfnvidia.com/gpu"
	Message string
	Err     error // of the device manager or the plugin; nil with OutOf…
}

func (e *AdmissionError) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns Err.
func (e *AdmissionError) Unwrap() error { return e.Err }

func unexpected(err error) *AdmissionError {
	return &AdmissionError{
		Reason:  "UnexpectedAdmissionError",
		Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
		Err:     err,
	}
}

// allocation is the devices of one resource allocated to one container.
type allocation struct {
	uid, container, resource string
	numa                     map[int64][]string // devices by NUMA node; -1: they named none
	response                 *v1beta1.ContainerAllocateResponse
	pending                  bool // reserved while the plugin is asked
}

func (a *allocation) ids() []string {
	var ids []string
	for _, some := range a.numa {
		ids = append(ids, some...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Admit admits a container as the kubelet's device manager does. It chooses devices,
// with GetPreferredAllocation if the plugin offers it, and calls Allocate, and
// PreStartContainer if the plugin requires it. A container that already has its devices
// gets the same again, without a call to the plugin. A refusal is an *AdmissionError.
func (k *Kubelet) Admit(ctx context.Context, pod Pod) (Admission, error) {
	names := slices.Sorted(maps.Keys(pod.Requests))
	k.mu.Lock()
	if k.run == nil {
		k.mu.Unlock()
		return Admission{}, fmt.Errorf("kubelettest: admit %s/%s: the kubelet is stopped", pod.Namespace, pod.Name)
	}
	k.pods[pod.UID()] = pod
	k.mu.Unlock()
	names = slices.DeleteFunc(names, func(name string) bool { return pod.Requests[name] == 0 })
	for _, name := range names {
		if err := k.allocate(ctx, pod, name, pod.Requests[name]); err != nil {
			return Admission{}, err
		}
	}
	for _, name := range names {
		if err := k.preStart(ctx, pod, name); err != nil {
			return Admission{}, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.admission(pod), nil
}

// Remove forgets a pod and frees its devices.
func (k *Kubelet) Remove(namespace, name string) {
	uid := Pod{Namespace: namespace, Name: name}.UID()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, uid)
	k.allocations = slices.DeleteFunc(k.allocations, func(a *allocation) bool { return a.uid == uid })
	k.save()
	k.notify()
}

// allocate allocates n devices of the resource to the container, or returns why not.
func (k *Kubelet) allocate(ctx context.Context, pod Pod, name string, n int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	res := k.resources[name]
	if res == nil {
		// No device plugin ever registered it: the node does not have it.
		return &AdmissionError{
			Reason:  "OutOf" + name,
			Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: 0, capacity: 0", name, n),
		}
	}
	ids, err := k.choose(ctx, pod, res, n)
	if err != nil {
		return unexpected(err)
	}
	if len(ids) == 0 {
		return nil // it has them already
	}
	a := &allocation{uid: pod.UID(), container: pod.Container, resource: name, numa: res.byNode(ids), pending: true}
	k.allocations = append(k.allocations, a)
	client := res.endpoint.client

	k.mu.Unlock()
	resp, err := client.Allocate(ctx, &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	k.mu.Lock()

	if err == nil && len(resp.GetContainerResponses()) == 0 {
		err = fmt.Errorf("no containers return in allocation response %v", resp)
	}
	if err != nil {
		k.allocations = slices.DeleteFunc(k.allocations, func(b *allocation) bool { return a == b })
		return unexpected(err)
	}
	a.response, a.pending = resp.GetContainerResponses()[0], false
	k.cfg.Log("kubelet: %s/%s container %s has %s %v", pod.Namespace, pod.Name, pod.Container, name, ids)
	k.save()
	k.notify()
	return nil
}

// choose picks the devices of a container; none if it already has them. k.mu is held,
// and released during the call to the plugin.
func (k *Kubelet) choose(ctx context.Context, pod Pod, res *resource, n int) ([]string, error) {
	needed := n
	had := k.allocated(pod, res.name)
	if had != nil {
		needed -= len(had)
		if needed != 0 {
			return nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID(), pod.Container, res.name, len(had), n)
		}
		if !res.reported {
			return nil, nil // after a restart the checkpoint is believed until the plugin has spoken
		}
	}
	if len(res.healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", res.name)
	}
	for _, id := range had {
		if !res.healthy[id] {
			return nil, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", res.name)
		}
	}
	if needed == 0 {
		return nil, nil
	}
	available := k.available(res)
	if len(available) < needed {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", res.name, needed, len(available))
	}
	var aligned, chosen []string
	if k.cfg.AlignNUMA {
		aligned = res.aligned(available, needed)
	}
	// If there are more aligned devices than needed, the plugin chooses among them; if
	// there are too few, all of them are used and the plugin chooses the rest.
	from := aligned
	if needed >= len(aligned) {
		chosen, from = slices.Clone(aligned), available
	}
	if len(chosen) < needed {
		preferred, err := k.prefer(ctx, res, from, chosen, n)
		if err != nil {
			return nil, err
		}
		free := k.available(res) // the lock was let go of
		for _, id := range slices.Concat(preferred, from, available) {
			if len(chosen) < needed && slices.Contains(from, id) && slices.Contains(free, id) && !slices.Contains(chosen, id) {
				chosen = append(chosen, id)
			}
		}
	}
	if len(chosen) < needed {
		return nil, fmt.Errorf("unexpectedly allocated less resources than required. Requested: %d, Got: %d", n, len(chosen))
	}
	slices.Sort(chosen)
	return chosen, nil
}

// prefer calls GetPreferredAllocation, if the plugin offers it.
func (k *Kubelet) prefer(ctx context.Context, res *resource, available, include []string, n int) ([]string, error) {
	if res.endpoint == nil || !res.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	client := res.endpoint.client
	k.mu.Unlock()
	resp, err := client.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: include, AllocationSize: int32(n),
		}},
	})
	k.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(resp.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return resp.GetContainerResponses()[0].GetDeviceIDs(), nil
}

func (k *Kubelet) preStart(ctx context.Context, pod Pod, name string) error {
	k.mu.Lock()
	res := k.resources[name]
	if res == nil || res.endpoint == nil || !res.options.GetPreStartRequired() {
		k.mu.Unlock()
		return nil
	}
	client, ids := res.endpoint.client, k.allocated(pod, name)
	k.mu.Unlock()
	if _, err := client.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// allocated returns the devices that the container has, sorted.
func (k *Kubelet) allocated(pod Pod, name string) []string {
	for _, a := range k.allocations {
		if a.uid == pod.UID() && a.container == pod.Container && a.resource == name {
			return a.ids()
		}
	}
	return nil
}

// available returns the healthy devices that are not allocated, sorted.
func (k *Kubelet) available(res *resource) []string {
	free := maps.Clone(res.healthy)
	for _, a := range k.allocations {
		if a.resource == res.name {
			for _, id := range a.ids() {
				delete(free, id)
			}
		}
	}
	return slices.Sorted(maps.Keys(free))
}

// admission merges the responses of all plugins for the container.
func (k *Kubelet) admission(pod Pod) Admission {
	out := Admission{DeviceIDs: map[string][]string{}, Envs: map[string]string{}, Annotations: map[string]string{}}
	for _, a := range k.allocations {
		if a.uid != pod.UID() || a.container != pod.Container || a.pending {
			continue
		}
		out.DeviceIDs[a.resource] = a.ids()
		for _, d := range a.response.GetCdiDevices() {
			out.CDIDevices = append(out.CDIDevices, d.GetName())
		}
		maps.Copy(out.Envs, a.response.GetEnvs())
		maps.Copy(out.Annotations, a.response.GetAnnotations())
		for _, m := range a.response.GetMounts() {
			out.Mounts = append(out.Mounts, proto.Clone(m).(*v1beta1.Mount))
		}
		for _, d := range a.response.GetDevices() {
			out.Devices = append(out.Devices, proto.Clone(d).(*v1beta1.DeviceSpec))
		}
	}
	return out
}
