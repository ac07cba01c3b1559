// Package claim prepares ResourceClaims: it checks that a claim may have the devices that the
// scheduler has allocated to it, remembers that it has them, and returns their CDI names. It writes no
// CDI specification; the toolkit's names every device.
//
// The record of prepared claims (checkpoint.go) is read at the beginning of each call and replaced
// atomically at its end, so that two instances of the driver may run during an update, and a process may be
// killed at any time. plan.go has the decision, which does no I/O. partition.go has partitions created
// and destroyed for claims.
package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/partition"
)

// Preparer prepares claims. Its methods wait for each other, in this process and others.
type Preparer struct {
	Store Store
	Pool  string // of this node
	// Inventory returns what the node offers now.
	Inventory func() inventory.Inventory
	// CDIName returns the name by which a container runtime injects a device, if it can: the
	// specification and all that it names are there.
	CDIName func(gpu.UUID) (string, error)
	// MPSName returns the name by which a container finds the MPS control daemon of a device.
	MPSName func(gpu.UUID) (string, error)
	// AwaitCDIName is CDIName for a MIG device that was just created: it waits until the toolkit has named
	// it.
	AwaitCDIName func(context.Context, gpu.UUID) (string, error)
	// Partitions creates and destroys partitions.
	Partitions partition.Maker
	// Allocations returns the kubelet's account of the devices that pods hold.
	Allocations func(ctx context.Context) ([]Allocation, error)
	// Claim returns a claim from the API.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Log   *slog.Logger
	// OnResult is called with the result of each claim, for the metrics; nil: nobody is interested.
	OnResult func(operation string, err error)
}

// Allocation is a device that a pod holds according to the kubelet.
type Allocation struct {
	Pod      string               // namespace/name
	Resource string               // "nvidia.com/gpu"; "": it is held by a claim
	UUID     gpu.UUID             // with Resource
	Claim    types.NamespacedName // without Resource
	Pool     string               // without Resource
	Device   string               // without Resource, the name in the pool
}

// Prepare prepares claims, and returns a result for each. Calling it again for a prepared claim
// returns the same.
func (p *Preparer) Prepare(ctx context.Context, claims []*resourceapi.ResourceClaim) map[types.UID]kubeletplugin.PrepareResult {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	unlock, failed := p.Store.lock(ctx)
	defer unlock()
	var state nodeState
	if failed == nil {
		state, failed = p.readState(ctx)
	}
	if failed == nil {
		failed = p.checkFollowed(ctx, state)
	}
	if failed == nil {
		failed = p.removeLeftovers(ctx, state.record)
	}
	for _, c := range claims {
		devices, err := []kubeletplugin.Device(nil), failed
		if failed == nil {
			devices, err = p.prepareOne(ctx, c, state)
		}
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		p.report("prepare", types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, c.UID, err)
		results[c.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results
}

// nodeState holds the inputs that the claims of one call share.
type nodeState struct {
	record      *Checkpoint
	allocations []Allocation
	inventory   inventory.Inventory
}

func (p *Preparer) readState(ctx context.Context) (s nodeState, err error) {
	if s.record, err = p.Store.Load(p.Log); err != nil {
		return s, fmt.Errorf("%w; next: make it readable, or remove it; the kubelet tries again", err)
	}
	if s.allocations, err = p.Allocations(ctx); err != nil {
		return s, fmt.Errorf("the kubelet does not tell which devices pods hold: %w; next: see that the kubelet's PodResources socket is mounted; the kubelet tries again", err)
	}
	s.inventory = p.Inventory()
	return s, nil
}

// checkFollowed returns an error unless the record is of the change of who offers the GPUs that the
// inventory is of. The first inventory of a boot is followed here, too.
func (p *Preparer) checkFollowed(ctx context.Context, s nodeState) error {
	switch {
	case s.inventory.Serve == "" || s.record.follows(s.inventory):
		return nil
	case s.record.Serve == "":
		return p.follow(ctx, s.record, s.inventory)
	}
	return errNotFollowed
}

func (p *Preparer) prepareOne(ctx context.Context, c *resourceapi.ResourceClaim, s nodeState) ([]kubeletplugin.Device, error) {
	held, err := p.heldDevices(ctx, s, c.Namespace)
	if err != nil {
		return nil, err
	}
	wanted, err := plan(c, node{pool: p.Pool, inventory: s.inventory, held: held, prepared: s.record.Find(c.UID), keeps: s.record.hasKept})
	if err != nil {
		return nil, err
	}
	if err := p.nameControlDaemons(&wanted, s.inventory); err != nil {
		return nil, err
	}
	if err := p.createPartitions(ctx, &wanted, s.record); err != nil {
		return nil, err
	}
	if err := p.finish(ctx, &wanted, s.record); err != nil {
		if s.record.Find(c.UID) == nil {
			err = errors.Join(err, p.removeLeftovers(ctx, s.record))
		}
		return nil, err
	}
	return wanted.result(p.Pool), nil
}

// nameControlDaemons sets, of the devices that are shared by MPS, the name by which containers find the
// control daemon. A prepared device stays as it is. Administrative access makes nobody a client: the variable of
// the daemon would hold for the claim's other devices, too.
func (p *Preparer) nameControlDaemons(wanted *Prepared, inv inventory.Inventory) (err error) {
	for i := range wanted.Devices {
		d := &wanted.Devices[i]
		if one, _ := inv.FindAny(d.Name); d.Admin || d.isPrepared() && d.MPS == "" || !d.isPrepared() && one.MPS == "" {
			continue
		}
		if d.MPS, err = p.MPSName(d.UUID); err != nil {
			return fmt.Errorf("device %s (%s) is shared by MPS, and its control daemon cannot be reached: %w; next: see the log of nvidia-device-plugin-mps-control-daemon on this node; the kubelet tries again", d.Name, d.UUID, err)
		}
	}
	return nil
}

// finish names the devices of a claim for the container runtime, and records the claim.
func (p *Preparer) finish(ctx context.Context, wanted *Prepared, record *Checkpoint) (err error) {
	for i := range wanted.Devices {
		d := &wanted.Devices[i]
		if d.Placement != nil {
			d.CDI, err = p.AwaitCDIName(ctx, d.UUID)
		} else {
			d.CDI, err = p.CDIName(d.UUID)
		}
		if err != nil {
			return fmt.Errorf("device %s (%s): no container can be given it: %w; next: see the log and state of gpu-toolkit on this node; the kubelet tries again", d.Name, d.UUID, err)
		}
	}
	before := record.Clone()
	if changed := record.Put(*wanted); changed {
		if err := p.Store.Save(record); err != nil {
			*record = before
			return fmt.Errorf("its preparation cannot be recorded: %w; the kubelet tries again", err)
		}
	}
	return nil
}

// Unprepare ends claims, and returns a result for each: their partitions are destroyed, and they are
// forgotten. A claim that is not prepared is no error.
func (p *Preparer) Unprepare(ctx context.Context, claims []kubeletplugin.NamespacedObject) map[types.UID]error {
	results := map[types.UID]error{}
	unlock, err := p.Store.lock(ctx)
	defer unlock()
	var record *Checkpoint
	if err == nil {
		record, err = p.Store.Load(p.Log)
	}
	changed := false
	if err == nil {
		for _, c := range claims {
			kept := len(record.Partitions)
			results[c.UID] = p.destroyPartitions(ctx, record, func(o OwnPartition) bool { return o.Claim == c.UID })
			if results[c.UID] == nil {
				changed = record.Remove(c.UID) || changed
			}
			changed = changed || len(record.Partitions) < kept
		}
	}
	if changed {
		err = p.Store.Save(record)
	}
	for _, c := range claims {
		if err != nil {
			results[c.UID] = fmt.Errorf("its end cannot be recorded: %w; the kubelet tries again", err)
		}
		if results[c.UID] != nil {
			results[c.UID] = fmt.Errorf("claim %s: %w", c.NamespacedName, results[c.UID])
		}
		p.report("unprepare", c.NamespacedName, c.UID, results[c.UID])
	}
	return results
}

func (p *Preparer) report(operation string, claim types.NamespacedName, uid types.UID, err error) {
	if p.OnResult != nil {
		p.OnResult(operation, err)
	}
	if err != nil {
		log := p.Log
		if details, has := errors.AsType[refusal](err); has {
			log = log.With("holder", details.holder)
		}
		log.Error("claim refused", "operation", operation, "claim", claim.String(), "uid", string(uid), "message", err.Error())
		return
	}
	p.Log.Info("claim done", "operation", operation, "claim", claim.String(), "uid", string(uid))
}

// claimTimeout bounds the lookup of a claim that the record lacks.
const claimTimeout = 10 * time.Second

// heldDevices returns the devices that claims and pods hold: by the record, and by the kubelet's
// account, which has those that a lost record had. Of the latter only the API knows whether a claim
// has administrative access, which holds nothing, or a share. An error names claims of the namespace alone.
func (p *Preparer) heldDevices(ctx context.Context, s nodeState, namespace string) ([]holding, error) {
	held := s.record.holdings()
	lost := map[types.NamespacedName]bool{} // claims that the record lacks
	for _, a := range s.allocations {
		if a.Resource != "" {
			of := ", by the resource " + a.Resource + " of the device plugin"
			held = append(held, holding{hardware: s.inventory.Hardware(a.UUID), by: "pod " + a.Pod + of, namespace: podNamespace(a.Pod), kind: "a pod of another namespace" + of})
			continue
		}
		if _, ours := s.inventory.FindAny(a.Device); a.Pool != p.Pool || !ours || s.record.hasClaim(a.Claim) || lost[a.Claim] {
			continue
		}
		lost[a.Claim] = true
		use, err := p.readUse(ctx, a.Claim)
		if err != nil {
			err = fmt.Errorf("a pod holds claim %s, which the record of prepared claims lacks, and it cannot be read: %w; next: see that the API server can be reached; the kubelet tries again", a.Claim, err)
			if a.Claim.Namespace != namespace {
				err = refusal{errors.New("a pod of another namespace holds a claim that the record of prepared claims lacks, and it cannot be read; next: see that the API server can be reached; the kubelet tries again"), err.Error()}
			}
			return nil, err
		}
		held = append(held, heldBy(a.Claim, s, use)...)
	}
	return held, nil
}

// anotherClaim stands for a claim whose name is not told.
const anotherClaim = "a claim of another namespace"

func podNamespace(pod string) string {
	namespace, _, _ := strings.Cut(pod, "/")
	return namespace
}

// heldBy returns the devices that the pods of a claim hold by the kubelet's account. use is what the
// API has; a device that it lacks counts as whole.
func heldBy(claim types.NamespacedName, s nodeState, use map[string]deviceUse) (held []holding) {
	seen := map[string]bool{} // several pods may have a claim
	for _, a := range s.allocations {
		d, ours := s.inventory.FindAny(a.Device)
		if a.Claim != claim || a.Resource != "" || !ours || seen[a.Device] {
			continue
		}
		seen[a.Device] = true
		u := use[a.Device]
		if u.admin {
			continue
		}
		held = append(held, holding{claim: claim, hardware: d.Hardware, shares: u.shares, by: fmt.Sprintf("claim %s of pod %s", claim, a.Pod), namespace: claim.Namespace, kind: anotherClaim})
	}
	return held
}

// deviceUse describes how a claim uses a device. The zero value is the use of the whole device.
type deviceUse struct {
	admin  bool // by administrative access alone
	shares int  // number of its shares; 0: all of it
}

// readUse reads from the API how a claim uses each of its devices on this node. The result is empty for
// a claim that is gone, or not allocated.
func (p *Preparer) readUse(ctx context.Context, name types.NamespacedName) (map[string]deviceUse, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	c, err := p.Claim(ctx, name.Namespace, name.Name)
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case c.Status.Allocation == nil:
		return nil, nil
	}
	use, whole := map[string]deviceUse{}, map[string]bool{}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != inventory.Driver || r.Pool != p.Pool {
			continue
		}
		u, known := use[r.Device]
		switch {
		case r.AdminAccess != nil && *r.AdminAccess:
			u.admin = !known || u.admin
		default:
			u.admin = false
			u.shares += countShares(r)
			whole[r.Device] = whole[r.Device] || r.ShareID == nil
		}
		if whole[r.Device] {
			u.shares = 0
		}
		use[r.Device] = u
	}
	return use, nil
}
