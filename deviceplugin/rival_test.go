package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// rival is a device plugin that behaves like the reference where that matters to its
// successor (github.com/NVIDIA/k8s-device-plugin, internal/plugin/server.go, v0.17):
// devices by UUID, NVIDIA_VISIBLE_DEVICES, a socket of that name, which it removes when
// it ends, one registration, and one channel of health changes from which all its
// streams receive.
type rival struct {
	v1beta1.UnimplementedDevicePluginServer
	testing.TB
	dir     string
	server  *grpc.Server
	ended   chan error
	stopped chan struct{}
	sick    chan string

	mu      sync.Mutex
	devices []*v1beta1.Device
	streams int // ever
	chooses []string
}

var offers = &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}

func newRival(m *machine, devices []*v1beta1.Device) *rival {
	m.Helper()
	r := &rival{TB: m, dir: m.path("/dp"), devices: devices, server: grpc.NewServer(), ended: make(chan error, 1), stopped: make(chan struct{}), sick: make(chan string)}
	socket := filepath.Join(r.dir, "nvidia-gpu.sock")
	_ = os.Remove(socket)
	ln, err := net.Listen("unix", socket)
	require.NoError(m, err)
	v1beta1.RegisterDevicePluginServer(r.server, r)
	go func() { r.ended <- r.server.Serve(ln) }()
	conn, err := grpc.NewClient("unix://"+m.kubelet.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(m, err)
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(soon(m), &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: "nvidia-gpu.sock", ResourceName: resource,
		Options: offers,
	})
	require.NoError(m, err)
	m.Cleanup(r.stop)
	return r
}

func (r *rival) stop() {
	select {
	case <-r.stopped:
		return
	default:
	}
	close(r.stopped)
	r.server.Stop()
	require.NoError(r, <-r.ended)
	_ = os.Remove(filepath.Join(r.dir, "nvidia-gpu.sock"))
}

// markUnhealthy marks a device as unhealthy.
func (r *rival) markUnhealthy(id string) { r.sick <- id }

func (r *rival) list() *v1beta1.ListAndWatchResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &v1beta1.ListAndWatchResponse{}
	for _, d := range r.devices {
		resp.Devices = append(resp.Devices, &v1beta1.Device{ID: d.GetID(), Health: d.GetHealth(), Topology: d.GetTopology()})
	}
	return resp
}

func (r *rival) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return offers, nil
}

// GetPreferredAllocation returns the test's choice.
func (r *rival) GetPreferredAllocation(_ context.Context, req *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &v1beta1.PreferredAllocationResponse{}
	for range req.GetContainerRequests() {
		resp.ContainerResponses = append(resp.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: r.chooses})
	}
	return resp, nil
}

func (r *rival) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	r.mu.Lock()
	r.streams++
	r.mu.Unlock()
	for {
		if err := stream.Send(r.list()); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-r.stopped:
			return nil
		case id := <-r.sick:
			r.mu.Lock()
			for _, d := range r.devices {
				if d.GetID() == id {
					d.Health = v1beta1.Unhealthy
				}
			}
			r.mu.Unlock()
		}
	}
}

func (r *rival) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		resp.ContainerResponses = append(resp.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.GetDevicesIds(), ",")},
		})
	}
	return resp, nil
}
