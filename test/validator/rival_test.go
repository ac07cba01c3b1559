package validator

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
)

// rival is another device plugin of our resource, as left behind on a node. The kubelet uses the plugin
// that registered last. Ours is suspended meanwhile.
type rival struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
	respond func() (*v1beta1.ContainerAllocateResponse, error) // response to Allocate
	server  *grpc.Server
	ended   chan struct{}
}

const rivalSocket = "rival.sock"

// startRival starts a rival that offers that many of the node's GPUs instead of ours.
func (n *node) startRival(t *testing.T, gpus int, respond func() (*v1beta1.ContainerAllocateResponse, error)) *rival {
	t.Helper()
	r := &rival{respond: respond, server: grpc.NewServer(), ended: make(chan struct{})}
	for _, resource := range n.State(t, n.name, nodestate.DevicePlugin).DevicePlugin.Resources {
		for _, d := range resource.Devices {
			r.devices = append(r.devices, &v1beta1.Device{ID: d.ID, Health: v1beta1.Healthy})
		}
	}
	require.Len(t, r.devices, n.gpus)
	r.devices = r.devices[:gpus]
	n.signal(t, "STOP", "gpu-device-plugin")
	folder := n.path("/var/lib/kubelet/device-plugins/")
	listener, err := net.Listen("unix", folder+"/"+rivalSocket)
	require.NoError(t, err)
	v1beta1.RegisterDevicePluginServer(r.server, r)
	go func() {
		defer close(r.ended)
		_ = r.server.Serve(listener)
	}()
	conn, err := grpc.NewClient("unix://"+n.path(kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: rivalSocket, ResourceName: string(e2e.GPU),
	})
	require.NoError(t, err)
	return r
}

// endRival ends it and restarts ours: the kubelet ignores a plugin that has been replaced.
func (n *node) endRival(t *testing.T, r *rival) {
	t.Helper()
	r.server.Stop()
	<-r.ended
	_ = os.Remove(n.path("/var/lib/kubelet/device-plugins/" + rivalSocket))
	n.signal(t, "CONT", "gpu-device-plugin")
	n.restart(t, plugin)
}

func (r *rival) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (r *rival) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: r.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (r *rival) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for range request.GetContainerRequests() {
		one, err := r.respond()
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, one)
	}
	return response, nil
}

// refuses and allocatesNothing are responses to Allocate.
func refuses() (*v1beta1.ContainerAllocateResponse, error) {
	return nil, errors.New("this plugin gives nothing away today")
}

func allocatesNothing() (*v1beta1.ContainerAllocateResponse, error) {
	return &v1beta1.ContainerAllocateResponse{}, nil
}
