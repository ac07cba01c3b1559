package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// yard is a controllable Machines.
type yard struct {
	mu   sync.Mutex
	fail error
	have map[string]bool
}

func (y *yard) Add(_ context.Context, name string) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.fail == nil {
		y.have[name] = true
	}
	return y.fail
}

func (y *yard) Remove(_ context.Context, name string) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.have, name)
	return nil
}

// serve serves a provider and returns how to call it.
func serve(t *testing.T, p *Provider) func(method string, in, out any) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	p.register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return func(method string, in, out any) error {
		return client.Invoke(t.Context(), "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/"+method, in, out)
	}
}

// eventually polls a condition.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 10*time.Second, time.Millisecond)
}

func TestAGroupGrowsAndShrinks(t *testing.T) {
	y := &yard{have: map[string]bool{}}
	p := NewProvider(Group{Name: "gpu", Max: 2}, y, nil)
	defer p.Close()
	call := serve(t, p)

	var groups nodeGroups
	require.NoError(t, call("NodeGroups", &empty{}, &groups))
	require.Len(t, groups.NodeGroups, 1)
	require.Equal(t, "gpu", groups.NodeGroups[0].ID)
	require.EqualValues(t, 2, groups.NodeGroups[0].MaxSize)

	require.NoError(t, call("NodeGroupIncreaseSize", &sizeRequest{ID: "gpu", Delta: 2}, &empty{}))
	require.Equal(t, codes.InvalidArgument, status.Code(call("NodeGroupIncreaseSize", &sizeRequest{ID: "gpu", Delta: 1}, &empty{})))
	require.Equal(t, []string{"gpu-1", "gpu-2"}, p.Machines())
	eventually(t, func() bool {
		var all instances
		require.NoError(t, call("NodeGroupNodes", &groupID{ID: "gpu"}, &all))
		return len(all.Instances) == 2 && all.Instances[0].Status.State == running && all.Instances[1].Status.State == running
	})

	node := &externalNode{Name: "gpu-1", ProviderID: "gpuready-test://gpu-1"}
	var of groupForNode
	require.NoError(t, call("NodeGroupForNode", &groupForNodeRequest{Node: node}, &of))
	require.Equal(t, "gpu", of.NodeGroup.ID)
	var other groupForNode
	require.NoError(t, call("NodeGroupForNode", &groupForNodeRequest{Node: &externalNode{Name: "n1"}}, &other))
	require.Empty(t, other.NodeGroup.ID, "a node that is not the autoscaler's")

	require.NoError(t, call("NodeGroupDeleteNodes", &deleteRequest{ID: "gpu", Nodes: []*externalNode{node}}, &empty{}))
	var size targetSize
	require.NoError(t, call("NodeGroupTargetSize", &groupID{ID: "gpu"}, &size))
	require.EqualValues(t, 1, size.TargetSize)
	eventually(t, func() bool { y.mu.Lock(); defer y.mu.Unlock(); return len(y.have) == 1 && y.have["gpu-2"] })
	h := p.History()
	require.Len(t, h.Increases, 1)
	require.Equal(t, []string{"gpu-1"}, h.Deletes[0].Machines)
}

func TestAFailedMachineIsReportedAndForgotten(t *testing.T) {
	p := NewProvider(Group{Name: "gpu", Max: 1}, &yard{fail: errors.New("no room")}, nil)
	defer p.Close()
	call := serve(t, p)
	require.NoError(t, call("NodeGroupIncreaseSize", &sizeRequest{ID: "gpu", Delta: 1}, &empty{}))
	var all instances
	eventually(t, func() bool {
		all = instances{}
		require.NoError(t, call("NodeGroupNodes", &groupID{ID: "gpu"}, &all))
		return len(all.Instances) == 1 && all.Instances[0].Status.Error != nil
	})
	require.Equal(t, "no room", all.Instances[0].Status.Error.Message)
	require.NoError(t, call("NodeGroupDeleteNodes", &deleteRequest{ID: "gpu", Nodes: []*externalNode{{ProviderID: all.Instances[0].ID}}}, &empty{}))
	eventually(t, func() bool { return len(p.Machines()) == 0 })
}

func TestOptionalMethodsAreNotImplemented(t *testing.T) {
	p := NewProvider(Group{Name: "gpu"}, &yard{}, nil)
	defer p.Close()
	require.Equal(t, codes.Unimplemented, status.Code(serve(t, p)("NodeGroupGetOptions", &groupID{ID: "gpu"}, &empty{})))
}

// TestTheTemplateIsANode checks the template, which is a message in the protocol and bytes here:
// both are the same on the wire.
func TestTheTemplateIsANode(t *testing.T) {
	p := NewProvider(Group{Name: "gpu", Template: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "as-new"}}}, &yard{}, nil)
	defer p.Close()
	var response template
	require.NoError(t, serve(t, p)("NodeGroupTemplateNodeInfo", &groupID{ID: "gpu"}, &response))
	var node corev1.Node
	require.NoError(t, node.Unmarshal(response.Node))
	require.Equal(t, "as-new", node.Name)
}

func TestMessagesHaveTheNumbersOfTheProtocol(t *testing.T) {
	got, err := proto.Marshal(protoadapt.MessageV2Of(&instance{ID: "i", Status: &instanceStatus{State: creating, Error: &instanceError{Code: "c", Class: 99}}}))
	require.NoError(t, err)
	require.Equal(t, []byte("\x0a\x01i\x12\x09\x08\x02\x12\x05\x0a\x01c\x18\x63"), got)
}
