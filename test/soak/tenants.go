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

// admitted is an admitted pod.
type admitted struct {
	mu  sync.Mutex
	pod kubelettest.Pod
	ids []part
	cdi []string
	end bool
}

// holds are all admitted pods.
type holds struct {
	mu  sync.Mutex
	all map[*admitted]bool
}

func (h *holds) list() []*admitted {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*admitted
	for one := range h.all {
		all = append(all, one)
	}
	return all
}

// tenant is a user that runs one pod after the other.
func (s *soak) tenant(ctx context.Context, name string, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for n := 0; f.pause(ctx, time.Second); n++ {
		resource := s.wish(r)
		if resource == "" {
			continue
		}
		pod := kubelettest.Pod{
			Namespace: "soak", Name: fmt.Sprintf("%s-%d", name, n), Container: "main",
			Requests: map[string]int{resource: 1 + r.IntN(1+r.IntN(4))},
		}
		h, err := s.admit(ctx, pod)
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		f.pause(ctx, 3*time.Second)
		s.remove(h)
	}
	return nil
}

// wish returns a random resource with devices.
func (s *soak) wish(r *rand.Rand) string {
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

// admit runs a pod; nil: it was refused, or the kubelet stopped.
func (s *soak) admit(ctx context.Context, pod kubelettest.Pod) (*admitted, error) {
	began := time.Now()
	asked := 0
	for _, n := range pod.Requests {
		asked += n
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
	case err != nil: // it is stopped
		s.count("cut off")
		return nil, nil
	}
	h := &admitted{pod: pod, cdi: a.CDIDevices}
	for resource, ids := range a.DeviceIDs {
		for _, id := range ids {
			h.ids = append(h.ids, part{resource, id})
		}
	}
	if len(h.ids) != asked { // the kubelet was killed before it recorded the allocation
		s.node.kubelet.Remove(pod.Namespace, pod.Name)
		s.count("cut off")
		return nil, nil
	}
	if err := named(h); err != nil {
		return nil, err
	}
	lost, err := s.truth.allocate(pod.Name, h.ids, began, s.settle)
	if err != nil {
		return nil, err
	}
	if lost != nil {
		s.node.kubelet.Remove(pod.Namespace, pod.Name)
		s.count("too late")
		return nil, nil
	}
	s.holds.mu.Lock()
	s.holds.all[h] = true
	s.holds.mu.Unlock()
	s.count("admitted")
	return h, nil
}

// named returns an error unless the runtime was given the devices that the kubelet allocated.
func named(h *admitted) error {
	var want []string
	for _, p := range h.ids {
		want = append(want, "k8s.gpuready.io/gpu="+baseID(p.id))
	}
	slices.Sort(want)
	have := slices.Sorted(slices.Values(h.cdi))
	if !slices.Equal(slices.Compact(want), slices.Compact(have)) {
		return fmt.Errorf("pod %s has %v, and the runtime was told %v", h.pod.Name, h.ids, h.cdi)
	}
	return nil
}

func (s *soak) remove(h *admitted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = true
	s.holds.mu.Lock()
	delete(s.holds.all, h)
	s.holds.mu.Unlock()
	s.truth.release(h.ids)
	s.node.kubelet.Remove(h.pod.Namespace, h.pod.Name)
}

// again admits a running pod once more, as a kubelet does when it starts. The pod must get the
// same devices.
func (s *soak) again(ctx context.Context, h *admitted) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end || !s.truth.usable(h.ids, s.settle) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settle)
	defer cancel()
	a, err := s.node.kubelet.Admit(ctx, h.pod)
	if err == nil && slices.Equal(a.CDIDevices, h.cdi) || !s.truth.usable(h.ids, s.settle) {
		return nil
	}
	return fmt.Errorf("pod %s has %v; after the kubelet's restart it is given %v: %w", h.pod.Name, h.cdi, a.CDIDevices, err)
}

// kubelets kills the kubelet from time to time, and starts it at once or later.
func (s *soak) kubelets(ctx context.Context, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for f.pause(ctx, 20*time.Second) {
		s.node.kubelet.Stop()
		if r.IntN(2) == 0 {
			f.pause(ctx, 3*time.Second)
		}
		if err := s.restart(); err != nil {
			return err
		}
		f.pause(ctx, 2*time.Second)
		for _, h := range s.holds.list() {
			if err := s.again(ctx, h); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *soak) restart() error {
	s.count("kubelet")
	s.check.disturbed()
	err := s.node.kubelet.Restart()
	s.check.disturbed()
	return err
}

// stranger is another client on the plugin's sockets. It requests forbidden devices, and reads
// lists and disconnects.
func (s *soak) stranger(ctx context.Context, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for f.pause(ctx, time.Second) {
		name, id, c := s.truth.broken(s.settle)
		if c == nil || r.IntN(2) == 0 {
			name, id = gpuResource, "GPU-00000000-0000-4000-8000-000000000000"
		}
		res, ok := s.node.kubelet.Resource(name)
		if !ok || res.Gone || res.Endpoint == "" {
			continue
		}
		if err := s.requestDevice(ctx, res.Endpoint, id); err != nil {
			s.truth.mu.Lock()
			mended := c != nil && s.truth.gpuOf[baseID(id)] == c && c.health != sick
			s.truth.mu.Unlock()
			if mended { // just now
				continue
			}
			return err
		}
	}
	return nil
}

// requestDevice requests a device, on a new connection; the plugin must refuse.
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
