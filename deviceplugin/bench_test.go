package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// BenchmarkStartToFirstList measures the built plugin from exec until the kubelet has
// its eight devices. Build it without the race detector: GPUREADY_BIN=bin.
func BenchmarkStartToFirstList(b *testing.B) {
	m := newMachine(b).up().withKubelet()
	built.Path(b, "gpu-device-plugin") // building is not starting
	for b.Loop() {
		m.start()
		_, err := m.kubelet.Wait(soon(b), resource, func(r kubelettest.Resource) bool { return r.Allocatable == 8 && !r.Gone })
		require.NoError(b, err)
		b.StopTimer()
		m.stop()
		b.StartTimer()
	}
}

// BenchmarkKubeletRestart measures from the new kubelet's start to its first list.
func BenchmarkKubeletRestart(b *testing.B) {
	m := newMachine(b).up().withKubelet().start()
	m.wait(8)
	for b.Loop() {
		require.NoError(b, m.kubelet.Restart())
		m.wait(8)
	}
}

// BenchmarkAllocate measures one call to the built plugin over its socket.
func BenchmarkAllocate(b *testing.B) {
	m := newMachine(b).up().withKubelet().start()
	r := m.wait(8)
	conn, err := grpc.NewClient("unix:"+m.path("/dp/"+kubelet.Endpoint(resource)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer func() { _ = conn.Close() }()
	client := v1beta1.NewDevicePluginClient(conn)
	request := &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
		{DevicesIds: []string{r.Devices[0].GetID(), r.Devices[1].GetID()}},
	}}
	for b.Loop() {
		if _, err := client.Allocate(b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
}
