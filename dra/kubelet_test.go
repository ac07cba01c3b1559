package main

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet plays the kubelet: it registers the driver, asks it to prepare claims, and serves its account
// of the pods.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	dir string

	mu   sync.Mutex
	pods []*podresources.PodResources
}

func newKubelet(t *testing.T, dir string) *kubelet {
	k := &kubelet{dir: dir}
	ln, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	require.NoError(t, err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(ln)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return k
}

// List returns the pods that hold.
func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

// hold sets the pods of the account.
func (k *kubelet) hold(pods ...*podresources.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register waits for the driver of a pod and registers it, as the kubelet's plugin watcher does.
func (k *kubelet) register(t *testing.T, podUID string) drapb.DRAPluginClient {
	t.Helper()
	socket := filepath.Join(k.dir, "plugins_registry", "gpu.nvidia.com-"+podUID+"-reg.sock")
	client := registration.NewRegistrationClient(dial(t, socket))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	info, err := client.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, registration.DRAPlugin, info.GetType())
	require.Equal(t, "gpu.nvidia.com", info.GetName())
	require.Contains(t, info.GetSupportedVersions(), drapb.DRAPluginService)
	_, err = client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	require.NoError(t, err)
	return drapb.NewDRAPluginClient(dial(t, info.GetEndpoint()))
}

func claimRequest(c *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}
}

// prepare asks for one claim. It returns the CDI names, and the driver's refusal or the failure to
// reach it.
func prepare(ctx context.Context, client drapb.DRAPluginClient, c *resourceapi.ResourceClaim) (names []string, refusal string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	resp, err := client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claimRequest(c)})
	if err != nil {
		return nil, "", err
	}
	r := resp.GetClaims()[string(c.UID)]
	for _, d := range r.GetDevices() {
		names = append(names, d.GetCdiDeviceIds()...)
	}
	return names, r.GetError(), nil
}

func unprepare(ctx context.Context, client drapb.DRAPluginClient, c *resourceapi.ResourceClaim) (refusal string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	resp, err := client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claimRequest(c)})
	if err != nil {
		return "", err
	}
	return resp.GetClaims()[string(c.UID)].GetError(), nil
}
