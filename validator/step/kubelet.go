package step

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// requestTimeout bounds a request. The kubelet answers in milliseconds; a socket without a server
// refuses at once, and the client reconnects until it is served.
const requestTimeout = 10 * time.Second

// maxAnswer bounds the kubelet's answer: 1,000 pods and 10,000 devices need 2 MiB.
const maxAnswer = 16 << 20

// ReadKubelet reads the kubelet's devices over the PodResources API, version 1.
func ReadKubelet(ctx context.Context, socket string) (Account, error) {
	if info, err := os.Stat(socket); err != nil {
		return Account{}, err
	} else if info.Mode().Type() != fs.ModeSocket {
		return Account{}, fmt.Errorf("%s is no socket", socket)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return Account{}, err
	}
	defer func() { _ = conn.Close() }()
	client := podresources.NewPodResourcesListerClient(conn)
	allocatable, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return Account{}, fmt.Errorf("GetAllocatableResources: %w", err)
	}
	pods, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return Account{}, fmt.Errorf("list of pods: %w", err)
	}
	return collectAccount(allocatable, pods), nil
}

func collectAccount(allocatable *podresources.AllocatableResourcesResponse, pods *podresources.ListPodResourcesResponse) Account {
	k := Account{Allocatable: map[string]map[string]bool{}, Allocated: map[string]map[string]string{}}
	for _, d := range allocatable.GetDevices() {
		ids := k.Allocatable[d.GetResourceName()]
		if ids == nil {
			ids = map[string]bool{}
			k.Allocatable[d.GetResourceName()] = ids
		}
		for _, id := range d.GetDeviceIds() {
			ids[id] = true
		}
	}
	for _, p := range pods.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				held := k.Allocated[d.GetResourceName()]
				if held == nil {
					held = map[string]string{}
					k.Allocated[d.GetResourceName()] = held
				}
				for _, id := range d.GetDeviceIds() {
					held[id] = p.GetNamespace() + "/" + p.GetName()
				}
			}
			for _, d := range claimedDevices(c) {
				k.claims = append(k.claims, podClaim{p.GetNamespace() + "/" + p.GetName(), d})
			}
		}
	}
	return k.withoutAdmin(nil)
}

// podClaim is a device that a pod has by a claim.
type podClaim struct {
	pod    string
	device nodestate.ClaimedDevice
}

// withoutAdmin returns the account in which claims with administrative access hold nothing.
func (k Account) withoutAdmin(admin []nodestate.ClaimedDevice) Account {
	k.Claimed = map[gpu.UUID][]string{}
	for _, c := range k.claims {
		if id := c.device.GPU; !slices.Contains(admin, c.device) && !slices.Contains(k.Claimed[id], c.pod) {
			k.Claimed[id] = append(k.Claimed[id], c.pod)
		}
	}
	return k
}

// adminAccess returns the devices of claims that hold nothing, as gpu-dra-driver tells.
func adminAccess(node check.Node) []nodestate.ClaimedDevice {
	state, err := node.State(nodestate.DRADriver)
	if err != nil || state.DRADriver == nil {
		return nil
	}
	return state.DRADriver.AdminAccess
}

// leaveOutAdmin wraps ask so that claims with administrative access hold nothing.
func leaveOutAdmin(node check.Node, ask readAccount) readAccount {
	return func(ctx context.Context, socket string) (Account, error) {
		k, err := ask(ctx, socket)
		if admin := adminAccess(node); err == nil && len(admin) > 0 {
			k = k.withoutAdmin(admin)
		}
		return k, err
	}
}

// claimDriver is the name of gpu-dra-driver in claims.
const claimDriver = "gpu.nvidia.com"

// claimedDevices returns the GPUs and MIG devices that a container holds by claims: gpu-dra-driver names them to the
// container runtime by their UUIDs.
func claimedDevices(c *podresources.ContainerResources) (all []nodestate.ClaimedDevice) {
	for _, d := range c.GetDynamicResources() {
		for _, r := range d.GetClaimResources() {
			for _, named := range r.GetCdiDevices() {
				_, name, _ := strings.Cut(named.GetName(), "=")
				if id := gpu.UUID(name); r.GetDriverName() == claimDriver && (strings.HasPrefix(name, "GPU-") || id.IsMIG()) {
					all = append(all, nodestate.ClaimedDevice{Claim: d.GetClaimNamespace() + "/" + d.GetClaimName(), GPU: id})
				}
			}
		}
	}
	return all
}
