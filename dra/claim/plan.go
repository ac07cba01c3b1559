package claim

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// node holds the inputs of a claim's preparation.
type node struct {
	pool      string
	inventory inventory.Inventory
	held      []holding
	prepared  *Prepared           // the claim's own record; nil: it is not prepared
	keeps     func(gpu.UUID) bool // reports whether a device that is withdrawn is not released yet
}

// holding is a device that somebody holds.
type holding struct {
	uid      types.UID            // of the claim, from the record
	claim    types.NamespacedName // of the claim; zero: a pod holds it by a resource
	hardware inventory.Hardware
	shares   int    // number of its shares; 0: the whole device
	by       string // who, for the administrator
	// Of whom names may be told: namespace is the holder's, "": it has none, and kind says what it is.
	namespace, kind string
}

// nameFor returns who holds the device, for a person who may see a namespace. The names of other tenants'
// claims and pods are not for the Events of its pods.
func (h holding) nameFor(namespace string) string {
	if h.namespace != "" && h.namespace == namespace {
		return h.by
	}
	return h.kind
}

// refusal is an error with details for the administrator alone.
type refusal struct {
	error
	holder string // who holds the device
}

// Unwrap returns the error without the details.
func (r refusal) Unwrap() error { return r.error }

// plan returns the record of a claim that is prepared, or why it cannot be. Devices that it has not got
// yet are still without CDI names.
func plan(c *resourceapi.ResourceClaim, n node) (Prepared, error) {
	wanted := Prepared{UID: c.UID, Namespace: c.Namespace, Name: c.Name}
	if c.Status.Allocation == nil {
		return wanted, fmt.Errorf("it is not allocated; next: wait for the scheduler")
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != inventory.Driver {
			continue // such as those of a ComputeDomain
		}
		d, err := n.planDevice(c, r, wanted.Devices)
		if err != nil {
			return wanted, err
		}
		wanted.Devices = append(wanted.Devices, d)
	}
	if err := n.checkControlDaemons(wanted.Devices); err != nil {
		return wanted, err
	}
	return wanted, n.checkConfigs(c.Status.Allocation.Devices, wanted.Devices)
}

// checkControlDaemons refuses devices that no program can use together: a client of an MPS control daemon sees
// the GPUs of that daemon alone, by one variable of its environment. Administrative access runs no program on
// them.
func (n node) checkControlDaemons(devices []PreparedDevice) error {
	var first *inventory.Device
	for _, p := range devices {
		d, found := n.inventory.FindAny(p.Name)
		if p.Admin || p.isPrepared() || !found {
			continue
		}
		if first == nil {
			first = &d
		}
		if d.MPS != first.MPS {
			return fmt.Errorf("device %s is %s, and device %s is %s: no program can use both; next: request devices of one kind in a claim, such as by the selector device.allowMultipleAllocations, or delete the pod, so that it is scheduled again",
				first.Name, describeMPS(first.MPS), d.Name, describeMPS(d.MPS))
		}
	}
	return nil
}

func describeMPS(resource string) string {
	if resource == "" {
		return "served by no MPS control daemon"
	}
	return "served by the MPS control daemon of " + resource
}

// planDevice checks one result of an allocation. before has the devices of the results before it.
func (n node) planDevice(c *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult, before []PreparedDevice) (PreparedDevice, error) {
	if r.Pool != n.pool {
		return PreparedDevice{}, fmt.Errorf("device %s is of pool %s, and this node serves pool %s; next: delete the pod, so that it is scheduled again", r.Device, r.Pool, n.pool)
	}
	d, found := n.findDevice(r.Device)
	if !found {
		if d, is := n.inventory.FindAny(r.Device); is && d.Withheld.Reason != "" {
			return PreparedDevice{}, withheldError(c, d)
		}
		if why := n.inventory.Why.String(); why != "" {
			return PreparedDevice{}, fmt.Errorf("device %s is not offered now: %s", r.Device, why)
		}
		return PreparedDevice{}, fmt.Errorf("device %s is not on this node any more; next: delete the pod, so that it is scheduled again", r.Device)
	}
	p := PreparedDevice{Request: r.Request, Name: d.Name, UUID: d.UUID, Parent: d.Parent, Admin: r.AdminAccess != nil && *r.AdminAccess}
	if r.ShareID != nil {
		p.ShareID, p.Shares = *r.ShareID, countShares(r)
	}
	if d.Partition {
		p.Placement = d.Placement
	}
	if p.Admin && d.Partition {
		return PreparedDevice{}, fmt.Errorf("device %s: a partition that is created for a claim has no administrative access; next: request the devices that exist, or delete the pod", d.Name)
	}
	has, err := n.findPrepared(p)
	if err != nil {
		return PreparedDevice{}, err
	}
	if has != nil {
		p.UUID, p.CDI, p.MPS = has.UUID, has.CDI, has.MPS
	} else if err := checkHealth(d, r.Tolerations); err != nil {
		return PreparedDevice{}, err
	}
	if p.Admin {
		return p, nil
	}
	return p, n.checkUse(c, d, p, sharesOf(before, d.UUID))
}

// withheldError returns the error of a device that is withheld.
func withheldError(c *resourceapi.ResourceClaim, d inventory.Device) error {
	w := d.Withheld
	all := string(w.Reason) + ": " + w.Message
	why := all
	if !w.MayShow(c.Namespace) {
		why = string(w.Reason)
	}
	return refusal{fmt.Errorf("device %s is withheld: %s; next: wait until that has ended, or delete this pod, so that it is scheduled again", d, why), all}
}

// countShares returns the number of shares that a result consumes; 0: it has the whole device.
func countShares(r resourceapi.DeviceRequestAllocationResult) int {
	if r.ShareID == nil {
		return 0
	}
	consumed := r.ConsumedCapacity[inventory.CapacityShares]
	return int(max(consumed.Value(), 1))
}

// sharesOf returns the number of shares of a device that a claim has or wants.
func sharesOf(devices []PreparedDevice, id gpu.UUID) (n int) {
	for _, d := range devices {
		if d.UUID == id && !d.Admin {
			n += d.Shares
		}
	}
	return n
}

// checkUse refuses a device that others hold. The scheduler has counted the shares; but the device may
// have fewer by now. before is the number of its shares that the same claim has or wants besides.
func (n node) checkUse(c *resourceapi.ResourceClaim, d inventory.Device, p PreparedDevice, before int) error {
	taken, last := 0, holding{}
	for _, h := range n.held {
		own := h.uid == c.UID && h.uid != "" || h.claim == types.NamespacedName{Namespace: c.Namespace, Name: c.Name} && h.uid == ""
		if own || !d.Overlaps(h.hardware) {
			continue
		}
		if p.Shares == 0 || h.shares == 0 || h.hardware.UUID != d.UUID {
			return refusal{fmt.Errorf("device %s is in use by %s; next: wait until that has ended, or delete this pod, so that it is scheduled again", d, h.nameFor(c.Namespace)), h.by}
		}
		taken += h.shares
		last = h
	}
	switch {
	case p.Shares == 0 || p.isPrepared():
		return nil
	case d.Shares == 0:
		return fmt.Errorf("device %s is not shared any more; next: delete the pod, so that it is scheduled again", d)
	case before+p.Shares > d.Shares:
		return fmt.Errorf("device %s has %d shares, and this claim wants %d; next: delete the pod, so that it is scheduled again", d, d.Shares, before+p.Shares)
	case taken+before+p.Shares > d.Shares:
		return refusal{fmt.Errorf("device %s has %d shares, and %d of them are in use, by %s among others; next: wait until some have ended, or delete this pod, so that it is scheduled again",
			d, d.Shares, taken, last.nameFor(c.Namespace)), last.by}
	}
	return nil
}

// findDevice returns a device that is offered, or that was until a moment ago: the scheduler may have
// allocated it just before. Once it is released, it is not found.
func (n node) findDevice(name string) (inventory.Device, bool) {
	if d, found := n.inventory.Find(name); found {
		return d, true
	}
	d, found := n.inventory.FindAny(name)
	awaited := n.inventory.SwitchID != "" || n.prepared != nil // without a change the device plugin has offered all from the start
	return d, found && awaited && n.inventory.Serve == nodestate.ServePlugin && n.keeps(keptOf(d.Hardware).UUID)
}

// findPrepared returns the claim's record of this device, nil if it does not have it already. It then
// keeps it even if the device has become unhealthy since. If the name means another device by now, that
// is an error: containers may still use the first.
func (n node) findPrepared(d PreparedDevice) (*PreparedDevice, error) {
	if n.prepared == nil {
		return nil, nil
	}
	for i, has := range n.prepared.Devices {
		switch {
		case has.Name != d.Name || has.ShareID != d.ShareID:
		case d.Placement != nil && has.Placement != nil && *d.Placement == *has.Placement, d.Placement == nil && has.UUID == d.UUID:
			return &n.prepared.Devices[i], nil
		case d.Placement == nil:
			return nil, fmt.Errorf("device %s was %s when the claim was prepared, and is %s now; next: delete all pods of this claim, so that it ends and they are scheduled again", d.Name, has.UUID, d.UUID)
		}
	}
	return nil, nil
}

// checkHealth refuses an unhealthy device, unless the claim tolerates its taint. The scheduler may
// have allocated it just before the taint was published.
func checkHealth(d inventory.Device, tolerations []resourceapi.DeviceToleration) error {
	for _, taint := range d.API.Taints {
		tolerated := false
		for _, t := range tolerations {
			tolerated = tolerated || resourceclaim.ToleratesTaint(t, taint)
		}
		if !tolerated {
			text := fmt.Sprintf("device %s is unhealthy: %s", d, d.Fault.Reason)
			if d.Fault.Message != "" {
				text += ": " + d.Fault.Message
			}
			next := "delete the pod, so that it is scheduled again"
			if d.Fault.Action != "" {
				next = d.Fault.Action
			}
			return fmt.Errorf("%s; next: %s", text, next)
		}
	}
	return nil
}

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }
