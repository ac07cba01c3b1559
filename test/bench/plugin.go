package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// start measures the time from exec until the kubelet has its first list of 8 GPUs.
func (b *bench) start(ctx context.Context) error {
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return err
	}
	defer n.close()
	for _, row := range []struct {
		name       string
		init, call time.Duration
		goal       goal
	}{
		{"start → the kubelet has 8 GPUs", 0, 0, within(12*time.Millisecond, 0)},
		{"start, NVML takes 200 ms and 10 µs a call", initCost, callCost, within(230*time.Millisecond, 0)},
	} {
		if err := n.setLatency(row.init, row.call); err != nil {
			return err
		}
		var took []time.Duration
		for range b.starts {
			p, err := n.startPlugin(ctx, 8, "")
			if err != nil {
				return err
			}
			took = append(took, p.took)
			if err := p.stop(ctx); err != nil {
				return err
			}
		}
		show("device plugin: "+row.name, took, row.goal)
	}
	return nil
}

// allocate measures the calls of an admission, each over the plugin's socket,
// and a whole admission.
func (b *bench) allocate(ctx context.Context) error {
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return err
	}
	defer n.close()
	p, err := n.startPlugin(ctx, 8, "")
	if err != nil {
		return err
	}
	listed, _ := n.kubelet.Resource(resource)
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.dir, "dp", listed.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	plugin := v1beta1.NewDevicePluginClient(conn)
	var ids []string
	for _, d := range listed.Devices {
		ids = append(ids, d.GetID())
	}
	for _, gpus := range []int{1, 4} {
		took, err := repeat(b.allocations, func() error {
			_, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids[:gpus]}}})
			return err
		})
		if err != nil {
			return err
		}
		show(fmt.Sprintf("device plugin: Allocate, %d of 8", gpus), took, within(100*time.Microsecond, 300*time.Microsecond))
	}
	prefer := func() error {
		_, err := plugin.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: ids, AllocationSize: 4}}})
		return err
	}
	for _, row := range []struct {
		name string
		call time.Duration
	}{{"GetPreferredAllocation, 4 of 8", 0}, {"the same, NVML takes 10 µs a call", callCost}} {
		if err := n.setLatency(0, row.call); err != nil {
			return err
		}
		took, err := repeat(b.allocations, prefer)
		if err != nil {
			return err
		}
		show("device plugin: "+row.name, took, within(250*time.Microsecond, 0))
	}
	for _, gpus := range []int{1, 4} {
		pod := kubelettest.Pod{Namespace: "bench", Name: "pod", Container: "c", Requests: map[string]int{resource: gpus}}
		took, err := repeat(b.allocations, func() error {
			_, err := n.kubelet.Admit(ctx, pod)
			return err
		}, func() { n.kubelet.Remove(pod.Namespace, pod.Name) })
		if err != nil {
			return err
		}
		show(fmt.Sprintf("device plugin: GetPreferredAllocation + Allocate, %d of 8", gpus), took, goal{})
	}
	return p.stop(ctx)
}

// repeat measures do repeatedly; calls of after are not measured.
func repeat(times int, do func() error, after ...func()) ([]time.Duration, error) {
	var took []time.Duration
	for range times {
		began := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		for _, f := range after {
			f()
		}
	}
	return took, nil
}
