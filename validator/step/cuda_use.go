package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// holdersTimeout bounds the request to the kubelet for the pods that hold GPUs.
const holdersTimeout = 3 * time.Second

// usedGPUs describes who uses the node's GPUs at one moment.
type usedGPUs struct {
	pods   map[gpu.UUID][]string  // that hold a GPU or MIG device, according to the kubelet
	silent error                  // why the kubelet does not tell; nil: it does, or there is none
	usage  map[gpu.UUID]gpu.Usage // according to the driver
	mps    map[gpu.UUID]mpsShare  // GPUs that our MPS control daemons have
}

// mpsShare describes a GPU that an MPS control daemon shares.
type mpsShare struct {
	ready bool
	pipe  string // the folder of its pipes, a path of this process; "": not mounted here
	shm   string // the folder in which it shares memory with its clients, likewise
}

// readUse asks kubelet, driver and mps-daemon who uses the GPUs. What driver or mps-daemon do not answer is
// missing.
func readUse(ctx context.Context, node check.Node, driver check.Driver) usedGPUs {
	u := usedGPUs{mps: readShares(node)}
	// Without a kubelet, as on a machine of its own, there are no pods. One that does not answer may have any.
	if u.pods, u.silent = readHolders(ctx, node, driver); errors.Is(u.silent, fs.ErrNotExist) {
		u.silent = nil
	}
	if node.ReadUsage != nil {
		// A driver that does not answer fails the sample, too, and that is reported.
		node.DriverRoot = driver.Info.Root
		u.usage, _ = node.ReadUsage(ctx, node)
	}
	return u
}

// podsOf returns the pods that hold a unit, or all of its GPU.
func (u usedGPUs) podsOf(unit check.Unit) []string {
	if unit.UUID == unit.GPU.UUID {
		return u.pods[unit.UUID]
	}
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(u.pods[unit.UUID], u.pods[unit.GPU.UUID]))))
}

// modeOf returns the compute mode of a unit. MIG devices have none of their own.
func (u usedGPUs) modeOf(unit check.Unit) gpu.ComputeMode {
	if usage, ok := u.usage[unit.UUID]; ok {
		return usage.Mode
	}
	if unit.UUID != unit.GPU.UUID {
		return gpu.ComputeDefault
	}
	return unit.GPU.ComputeMode
}

// computes reports whether a process that the driver shows computes on a unit.
func (u usedGPUs) computes(unit check.Unit) bool {
	return slices.ContainsFunc(u.usage[unit.UUID].Processes, func(p gpu.Process) bool { return !p.Graphics })
}

// unproven returns the description of a unit that others use. why is its beginning, "" for none.
func (u usedGPUs) unproven(unit check.Unit, reason gpu.Reason, why string) *check.Unproven {
	found := &check.Unproven{Unit: unit, Reason: reason, Pods: u.podsOf(unit), Processes: u.usage[unit.UUID].Processes}
	var parts []string
	if why != "" {
		parts = append(parts, why)
	}
	if len(found.Pods) > 0 {
		parts = append(parts, "held by pod "+listSome(found.Pods))
	}
	if len(found.Processes) > 0 {
		var all []string
		for _, p := range found.Processes {
			all = append(all, fmt.Sprint(p.PID))
		}
		parts = append(parts, "used by process "+listSome(all))
	}
	found.Message = strings.Join(parts, ", ")
	return found
}

// unknown returns the description of what the kubelet does not tell.
func (u usedGPUs) unknown() string {
	return "the kubelet does not tell whether a pod holds it: " + record.Clean(u.silent.Error(), 200)
}

// before returns why nothing may be computed on a unit now; nil: it may. client is the MPS control daemon
// whose client the sample has to be; its pipe is "" for none.
func (u usedGPUs) before(unit check.Unit) (busy *check.Unproven, client mpsShare) {
	var none mpsShare
	share, shared := u.mps[unit.UUID]
	switch mode := u.modeOf(unit); {
	case mode == gpu.ComputeProhibited:
		return u.unproven(unit, ReasonProhibited, "its compute mode is "+mode.String()), none
	case u.silent != nil:
		return u.unproven(unit, ReasonInUse, u.unknown()), none
	case len(u.podsOf(unit)) > 0:
		return u.unproven(unit, ReasonInUse, ""), none
	case shared && !share.ready:
		return u.unproven(unit, ReasonInUse, "its MPS control daemon is not ready"), none
	case shared && share.pipe == "":
		return u.unproven(unit, ReasonInUse, "an MPS control daemon shares it, whose folder is not mounted here"), none
	case shared:
		return nil, share // its server is the process that the driver shows
	case u.computes(unit):
		return u.unproven(unit, ReasonInUse, ""), none
	}
	return nil, none
}

// after returns who makes a sample fail on a good GPU; nil: nobody, so that the failure counts.
func (u usedGPUs) after(unit check.Unit, r unitResult) *check.Unproven {
	code, hangs := r.Answer.Code, r.Outcome == probe.SampleNoResult
	_, shared := u.mps[unit.UUID]
	mode := u.modeOf(unit)
	var busy *check.Unproven
	switch {
	case mode == gpu.ComputeProhibited:
		busy = u.unproven(unit, ReasonProhibited, "its compute mode is "+mode.String())
	case len(u.podsOf(unit)) > 0 || !hangs && len(u.usage[unit.UUID].Processes) > 0: // the daemon's server is one
		busy = u.unproven(unit, ReasonInUse, "")
	case u.silent != nil:
		busy = u.unproven(unit, ReasonInUse, u.unknown())
	case hangs:
		return nil
	case shared:
		busy = u.unproven(unit, ReasonInUse, "its MPS control daemon does not serve another client")
	case mode == gpu.ComputeExclusive && code == probe.CUDADeviceUnavailable:
		// The driver shows no processes of other containers.
		busy = u.unproven(unit, ReasonInUse, "its compute mode is "+mode.String()+", and a process that is not visible here has it")
	default:
		return nil
	}
	busy.Code = code
	return busy
}

// watchTurn calls giveUp once a pod holds the unit, and returns when ctx ends.
func watchTurn(ctx context.Context, node check.Node, driver check.Driver, unit check.Unit, giveUp func()) {
	const interval = 100 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pods, err := readHolders(ctx, node, driver)
		if errors.Is(err, fs.ErrNotExist) {
			return // no kubelet, no pods
		}
		if len(usedGPUs{pods: pods}.podsOf(unit)) > 0 {
			giveUp()
			return
		}
	}
}

// DescribeUse returns who uses the driver's GPUs, so that nothing should be run on all of them now; "":
// nobody.
func DescribeUse(ctx context.Context, node check.Node, driver check.Driver) string {
	u := readUse(ctx, node, driver)
	var busy []string
	for _, unit := range driver.Units() {
		one, _ := u.before(unit)
		if one == nil && u.modeOf(unit) != gpu.ComputeDefault {
			one = u.unproven(unit, ReasonInUse, "its compute mode is "+u.modeOf(unit).String())
		}
		if one != nil {
			busy = append(busy, unit.Name+": "+one.Message)
		}
	}
	return listSome(busy)
}

// DescribeUser returns who uses a GPU or MIG device on which the sample failed with a CUresult, so that the
// failure does not count; "": nobody.
func DescribeUser(ctx context.Context, node check.Node, driver check.Driver, id gpu.UUID, code int) string {
	for _, unit := range driver.Units() {
		if unit.UUID != id {
			continue
		}
		r := unitResult{SampleResult: probe.SampleResult{Outcome: probe.SampleFailed, Answer: probe.SampleAnswer{Code: code}}}
		if busy := readUse(ctx, node, driver).after(unit, r); busy != nil {
			return busy.Message
		}
	}
	return ""
}

// readHolders asks the kubelet for the pods that hold each GPU and MIG device, as devices of a device
// plugin or through claims.
func readHolders(ctx context.Context, node check.Node, driver check.Driver) (map[gpu.UUID][]string, error) {
	if node.PodResources == "" {
		return nil, fs.ErrNotExist
	}
	socket := node.Root.Path(node.PodResources)
	if info, err := os.Stat(socket); err != nil {
		return nil, err
	} else if info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s is no socket", socket)
	}
	ctx, cancel := context.WithTimeout(ctx, holdersTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	pods, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list of pods: %w", err)
	}
	state, _ := node.State(nodestate.DevicePlugin) // without it, devices are named by UUID
	held := collectHolders(pods, driver, state.DevicePlugin, adminAccess(node))
	for id := range held {
		held[id] = slices.DeleteFunc(held[id], func(pod string) bool { return pod == node.OwnPod })
	}
	return held, nil
}

// collectHolders maps the kubelet's devices to GPUs and MIG devices: by the device plugin's state, or because a
// name begins with the UUID, as those of other device plugins do (HAMi's for shares: GPU-…-3), or is that of a
// claim's CDI device. Claims with administrative access hold nothing.
func collectHolders(pods *podresources.ListPodResourcesResponse, driver check.Driver, plugin *nodestate.DevicePluginInfo, admin []nodestate.ClaimedDevice) map[gpu.UUID][]string {
	known := map[string]gpu.UUID{} // by resource and device ID
	if plugin != nil {
		for _, r := range plugin.Resources {
			for _, d := range r.Devices {
				for _, id := range d.IDs() {
					known[r.Name+" "+id] = d.GPU
				}
			}
		}
	}
	uuids := driverDevices(driver)
	held := map[gpu.UUID][]string{}
	hold := func(id gpu.UUID, pod string) {
		if !slices.Contains(held[id], pod) {
			held[id] = append(held[id], pod)
			slices.Sort(held[id])
		}
	}
	for _, p := range pods.GetPodResources() {
		pod := p.GetNamespace() + "/" + p.GetName()
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					device, ok := known[d.GetResourceName()+" "+id]
					if !ok {
						device, ok = uuidOf(id, uuids)
					}
					if ok {
						hold(device, pod)
					}
				}
			}
			for _, claim := range c.GetDynamicResources() {
				for _, r := range claim.GetClaimResources() {
					for _, d := range r.GetCdiDevices() {
						_, name, _ := strings.Cut(d.GetName(), "=")
						one := nodestate.ClaimedDevice{Claim: claim.GetClaimNamespace() + "/" + claim.GetClaimName(), GPU: gpu.UUID(name)}
						if _, ok := uuids[one.GPU]; ok && (r.GetDriverName() != claimDriver || !slices.Contains(admin, one)) {
							hold(gpu.UUID(name), pod)
						}
					}
				}
			}
		}
	}
	return held
}

// uuidOf returns the UUID with which the ID of a device begins: that of a replica goes on with "::3" or "-3".
func uuidOf[T any](id string, uuids map[gpu.UUID]T) (gpu.UUID, bool) {
	for device := range uuids {
		if rest, ok := strings.CutPrefix(id, string(device)); ok && device != "" && (rest == "" || strings.HasPrefix(rest, "::") || rest[0] == '-') {
			return device, true
		}
	}
	return "", false
}

// readShares returns the GPUs that mps-daemon has set aside for its control daemons.
func readShares(node check.Node) map[gpu.UUID]mpsShare {
	state, err := node.State(nodestate.MPS)
	if err != nil || state.MPS == nil {
		return nil
	}
	shares := map[gpu.UUID]mpsShare{}
	for _, id := range state.MPS.Claimed {
		shares[id] = mpsShare{}
	}
	for _, r := range state.MPS.Resources {
		if !r.Ready {
			continue
		}
		pipe := node.Root.Path(path.Join("/", r.Root, r.Name, "pipe"))
		if _, err := os.Stat(path.Join(pipe, "control")); err != nil {
			pipe = ""
		}
		for _, id := range r.GPUs {
			shares[id] = mpsShare{ready: true, pipe: pipe, shm: node.Root.Path(path.Join("/", r.Root, "shm"))}
		}
	}
	return shares
}
