package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// connected is a kubelet that refuses each registration and lists the plugin's devices all the same, as that of
// Kubernetes 1.37 does by a connection to the plugin before.
type connected struct {
	v1beta1.UnimplementedRegistrationServer
	conn *grpc.ClientConn
}

func (c *connected) Register(context.Context, *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	if _, err := v1beta1.NewDevicePluginClient(c.conn).ListAndWatch(context.Background(), &v1beta1.Empty{}, grpc.WaitForReady(true)); err != nil {
		return nil, err
	}
	return nil, errors.New("device plugin already connected")
}

func TestAKubeletThatRefusesAndListsTheDevicesIsConnected(t *testing.T) {
	dir := t.TempDir()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "gpu.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	socket := filepath.Join(dir, "kubelet.sock")
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	registration, served := grpc.NewServer(), make(chan error, 1)
	v1beta1.RegisterRegistrationServer(registration, &connected{conn: conn})
	go func() { served <- registration.Serve(ln) }()

	ctx, cancel := context.WithCancel(soon(t))
	ready, registered := make(chan struct{}), false
	close(ready)
	server := NewServer(backend{}, nil)
	server.SetDevices(list("a"))
	err = Run(ctx, Config{
		Socket: socket, Endpoint: "gpu.sock", Resource: "nvidia.com/gpu", Log: slog.New(slog.DiscardHandler), Ready: ready, OnAttempt: func(error) {},
		OnStatus: func(s Status) {
			if s.Registered {
				registered = true
				cancel()
			}
		},
	}, server, nil, func(*net.UnixListener) bool { return false })
	cancel()
	require.NoError(t, err)
	require.True(t, registered, "the kubelet lists the devices")
	require.NoError(t, conn.Close())
	registration.Stop()
	server.Stop()
	require.NoError(t, <-served)
}
