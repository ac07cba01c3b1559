package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// admittedPod is a pod that the kubelet has admitted.
type admittedPod struct {
	mu      sync.Mutex
	pod     kubelettest.Pod
	devices []part   // that the kubelet allocated
	cdi     []string // CDI names that the plugin gave for them
	removed bool
}

// podSet holds the pods that are admitted now.
type podSet struct {
	mu  sync.Mutex
	all map[*admittedPod]bool
}

func (set *podSet) list() []*admittedPod {
	set.mu.Lock()
	defer set.mu.Unlock()
	var all []*admittedPod
	for p := range set.all {
		all = append(all, p)
	}
	return all
}

// runTenant runs one pod after the other, as a user does, until ctx ends.
func (s *soak) runTenant(ctx context.Context, name string, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for n := 0; f.pause(ctx, time.Second); n++ {
		resource := s.pickResource(r)
		if resource == "" {
			continue
		}
		pod := kubelettest.Pod{
			Namespace: "soak", Name: fmt.Sprintf("%s-%d", name, n), Container: "main",
			Requests: map[string]int{resource: 1 + r.IntN(1+r.IntN(4))}, // up to 4, most often 1
		}
		p, err := s.admit(ctx, pod)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		f.pause(ctx, 3*time.Second)
		s.remove(p)
	}
	return nil
}

// pickResource returns a random resource with allocatable devices, or "".
func (s *soak) pickResource(r *rand.Rand) string {
	var names []string
	for _, res := range s.node.kubelet.Resources() {
		if res.Allocatable > 0 {
			names = append(names, res.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return pick(r, names)
}

// admit admits a pod. It returns nil, without an error, if the pod could rightly not run: it was
// refused, the kubelet stopped meanwhile, or a device has just been lost.
func (s *soak) admit(ctx context.Context, pod kubelettest.Pod) (*admittedPod, error) {
	began := time.Now()
	requested := 0
	for _, n := range pod.Requests {
		requested += n
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settle)
	defer cancel()
	a, err := s.node.kubelet.Admit(ctx, pod)
	var refused *kubelettest.AdmissionError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("pod %s was not answered within %v", pod.Name, s.settle)
	case errors.As(err, &refused):
		s.node.kubelet.Remove(pod.Namespace, pod.Name)
		s.count("refused")
		return nil, nil
	case err != nil: // the kubelet was stopped
		s.count("cut off")
		return nil, nil
	}
	p := &admittedPod{pod: pod, cdi: a.CDIDevices}
	for resource, ids := range a.DeviceIDs {
		for _, id := range ids {
			p.devices = append(p.devices, part{resource, id})
		}
	}
	if len(p.devices) != requested { // the kubelet was killed before it recorded the allocation
		s.node.kubelet.Remove(pod.Namespace, pod.Name)
		s.count("cut off")
		return nil, nil
	}
	if err := checkCDINames(p); err != nil {
		return nil, err
	}
	lost, err := s.truth.allocate(pod.Name, p.devices, began, s.settle)
	if err != nil {
		return nil, err
	}
	if lost != nil {
		s.node.kubelet.Remove(pod.Namespace, pod.Name)
		s.count("too late")
		return nil, nil
	}
	s.pods.mu.Lock()
	s.pods.all[p] = true
	s.pods.mu.Unlock()
	s.count("admitted")
	return p, nil
}

// checkCDINames returns an error unless the CDI names for the runtime are those of the devices that
// the kubelet allocated.
func checkCDINames(p *admittedPod) error {
	var want []string
	for _, d := range p.devices {
		want = append(want, "k8s.gpuready.io/gpu="+baseID(d.id))
	}
	slices.Sort(want)
	have := slices.Sorted(slices.Values(p.cdi))
	if !slices.Equal(slices.Compact(want), slices.Compact(have)) {
		return fmt.Errorf("pod %s has %v, and the runtime was told %v", p.pod.Name, p.devices, p.cdi)
	}
	return nil
}

func (s *soak) remove(p *admittedPod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed = true
	s.pods.mu.Lock()
	delete(s.pods.all, p)
	s.pods.mu.Unlock()
	s.truth.release(p.devices)
	s.node.kubelet.Remove(p.pod.Namespace, p.pod.Name)
}

// readmit admits a running pod once more, as a kubelet does when it starts. The pod must get the
// same devices.
func (s *soak) readmit(ctx context.Context, p *admittedPod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed || !s.truth.usable(p.devices, s.settle) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settle)
	defer cancel()
	a, err := s.node.kubelet.Admit(ctx, p.pod)
	// A device may have broken since the first check.
	if err == nil && slices.Equal(a.CDIDevices, p.cdi) || !s.truth.usable(p.devices, s.settle) {
		return nil
	}
	return fmt.Errorf("pod %s has %v; after the kubelet's restart it is given %v: %w", p.pod.Name, p.cdi, a.CDIDevices, err)
}

// restartKubelets stops the kubelet from time to time, starts it at once or a little later, and
// readmits the pods that run.
func (s *soak) restartKubelets(ctx context.Context, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for f.pause(ctx, 20*time.Second) {
		s.node.kubelet.Stop()
		if r.IntN(2) == 0 {
			f.pause(ctx, 3*time.Second)
		}
		if err := s.restartKubelet(); err != nil {
			return err
		}
		f.pause(ctx, 2*time.Second)
		for _, p := range s.pods.list() {
			if err := s.readmit(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *soak) restartKubelet() error {
	s.count("kubelet")
	// The lists are lost when the kubelet stops. The plugin can send new ones when it runs again.
	s.check.disturbed()
	err := s.node.kubelet.Restart()
	s.check.disturbed()
	return err
}

// runStranger is another client on the plugin's sockets. It reads a list, requests a device that
// must not be allocated, and disconnects.
func (s *soak) runStranger(ctx context.Context, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for f.pause(ctx, time.Second) {
		name, id, gpu := s.truth.broken(s.settle)
		if gpu == nil || r.IntN(2) == 0 { // a device that does not exist
			name, id = gpuResource, "GPU-00000000-0000-4000-8000-000000000000"
		}
		res, ok := s.node.kubelet.Resource(name)
		if !ok || res.Gone || res.Endpoint == "" {
			continue
		}
		if err := s.requestDevice(ctx, res.Endpoint, id); err != nil {
			s.truth.mu.Lock()
			mended := gpu != nil && s.truth.gpuOf[baseID(id)] == gpu && gpu.health != sick
			s.truth.mu.Unlock()
			if mended { // since it was chosen
				continue
			}
			return err
		}
	}
	return nil
}

// requestDevice reads a list and requests a device, on a new connection. It returns an error unless
// the plugin refuses.
func (s *soak) requestDevice(ctx context.Context, endpoint, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settle)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+s.node.path("dp/"+endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := v1beta1.NewDevicePluginClient(conn)
	if stream, err := client.ListAndWatch(ctx, &v1beta1.Empty{}); err == nil {
		_, _ = stream.Recv() // the socket may be gone with its kubelet
	}
	response, err := client.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
	if err == nil {
		return fmt.Errorf("the plugin gives %s away, which is broken or no device: %v", id, strings.TrimSpace(response.String()))
	}
	s.count("asked in vain")
	return nil
}
