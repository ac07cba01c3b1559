package claim

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// A node's GPUs are offered by the device plugin or by this driver, and the device plugin's state says by
// whom. The record of prepared claims has the latest change that this driver has followed, and the devices
// that it has kept since. A claim is prepared only by an instance of the driver that has followed the same
// change, so that a device that was released is never given to a claim. All of it happens under the lock
// of the record.

// Reasons why a device is kept.
const (
	ReasonHeldByClaim gpu.Reason = "HeldByClaim"
	// ReasonOnTheWay means that the scheduler may have allocated the device to a claim that the kubelet
	// has not had prepared yet.
	ReasonOnTheWay gpu.Reason = "ClaimsOnTheWay"
)

// KeptDevice is a device that the driver has not released to the device plugin.
type KeptDevice struct {
	UUID   gpu.UUID `json:"uuid"`
	Parent gpu.UUID `json:"parent,omitempty"` // of a MIG device
}

// errNotFollowed means that who offers the GPUs is changing at this moment.
var errNotFollowed = errors.New("who offers the GPUs is changing; the kubelet tries again")

// keptOf returns what is kept of the hardware of a device. A partition is created and destroyed with its
// claim, so that its whole GPU is kept.
func keptOf(h inventory.Hardware) KeptDevice {
	if h.Partition || h.UUID == "" {
		return KeptDevice{UUID: h.Parent}
	}
	return KeptDevice{h.UUID, h.Parent}
}

func (k KeptDevice) hardware() inventory.Hardware {
	return inventory.Hardware{UUID: k.UUID, Parent: k.Parent}
}

// Follow records who offers the GPUs, before the driver acts on it. isCurrent reports whether the device
// plugin's state still says that; otherwise nothing happens, since another instance may be further.
func (p *Preparer) Follow(ctx context.Context, inv inventory.Inventory, isCurrent func() bool) error {
	if p.Store.hasFollowed(inv) {
		return nil
	}
	unlock, err := p.Store.lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	record, err := p.Store.Load(p.Log)
	switch {
	case err != nil:
		return err
	case inv.Serve == "" || record.hasFollowed(inv) || !isCurrent():
		return nil
	}
	return p.follow(ctx, record, inv)
}

// follow is Follow with the record locked.
func (p *Preparer) follow(ctx context.Context, record *Checkpoint, inv inventory.Inventory) error {
	kept := slices.Clone(record.Kept)
	switch {
	case inv.Serve == nodestate.ServeDRA && !record.follows(inv):
		kept = toKeep(inv.Devices)
	case inv.Serve == nodestate.ServeDRA:
		kept = append(kept, slices.DeleteFunc(toKeep(inv.Devices), func(k KeptDevice) bool { return record.hasKept(k.UUID) })...)
	case record.Lost, record.Serve == "" && len(record.Claims) > 0: // an earlier version records claims alone
		kept = toKeep(append(slices.Clone(inv.Devices), inv.Withheld...))
	case record.Serve == "": // unless the record was removed, no claim was prepared in this boot
		var held []holding
		allocations, err := p.Allocations(ctx)
		if err == nil {
			held, err = p.heldDevices(ctx, nodeState{record: record, inventory: inv, allocations: allocations}, "")
		}
		if err != nil {
			p.Log.Warn("it is not known yet which devices claims hold; all are kept until it is", "message", err.Error())
			kept = toKeep(append(slices.Clone(inv.Devices), inv.Withheld...))
		}
		for _, h := range held {
			if h.isClaim() {
				kept = append(kept, keptOf(h.hardware))
			}
		}
	}
	for _, h := range record.holdings() {
		if k := keptOf(h.hardware); !slices.Contains(kept, k) {
			kept = append(kept, k)
		}
	}
	record.Serve, record.SwitchID, record.Kept, record.Lost = inv.Serve, inv.SwitchID, kept, false
	return p.Store.Save(record)
}

func toKeep(devices []inventory.Device) (all []KeptDevice) {
	for _, d := range devices {
		if k := keptOf(d.Hardware); !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
}

// Release releases to the device plugin each device that no claim holds. again reports that a claim holds
// one by the kubelet's account alone, or that something is left of a partition, so that no event will say
// when that ends.
func (p *Preparer) Release(ctx context.Context) (again bool, err error) {
	unlock, err := p.Store.lock(ctx)
	defer unlock()
	if err != nil {
		return true, err
	}
	s, err := p.readState(ctx)
	if err != nil {
		return true, err
	}
	if err := p.checkFollowed(ctx, s); err != nil {
		return true, err
	}
	if s.record.Serve != nodestate.ServePlugin || !s.record.follows(s.inventory) || len(s.record.Kept) == 0 {
		return false, nil
	}
	// The device plugin would offer what is left of a partition to pods.
	if err := p.removeLeftovers(ctx, s.record); err != nil {
		return true, err
	}
	again = len(s.record.leftovers()) > 0
	held, err := p.heldDevices(ctx, s, "")
	if err != nil {
		return true, err
	}
	before := len(s.record.Kept)
	s.record.Kept = slices.DeleteFunc(slices.Clone(s.record.Kept), func(k KeptDevice) bool {
		i := slices.IndexFunc(held, func(h holding) bool { return h.isClaim() && k.hardware().Overlaps(h.hardware) })
		again = again || i >= 0 && held[i].uid == ""
		return i < 0
	})
	if len(s.record.Kept) == before {
		return again, nil
	}
	return again, p.Store.Save(s.record)
}

// isClaim reports whether a claim holds the device, not a pod by a resource of the device plugin.
func (h holding) isClaim() bool { return h.uid != "" || h.claim != types.NamespacedName{} }

// View calls use with the record, and with who holds each kept device, while the record is locked.
func (p *Preparer) View(ctx context.Context, use func(record *Checkpoint, holder func(KeptDevice) string) error) error {
	unlock, err := p.Store.lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	record, err := p.Store.Load(p.Log)
	if err != nil {
		return err
	}
	held := record.holdings()
	return use(record, func(k KeptDevice) string {
		for _, h := range held {
			if k.hardware().Overlaps(h.hardware) {
				return h.by
			}
		}
		return ""
	})
}

// follows reports whether the record is of the change that the inventory is of.
func (c *Checkpoint) follows(inv inventory.Inventory) bool {
	return c.Serve == inv.Serve && c.SwitchID == inv.SwitchID
}

// hasFollowed reports whether nothing is to be recorded for an inventory.
func (c *Checkpoint) hasFollowed(inv inventory.Inventory) bool {
	return c.follows(inv) && c.hasKeptAll(inv.Devices)
}

// hasFollowed is like that of the record in the file, which is replaced as a whole: it need not be locked.
func (s Store) hasFollowed(inv inventory.Inventory) bool {
	c, err := s.read()
	return err == nil && c.BootID == s.BootID && inv.Serve != "" && c.hasFollowed(inv)
}

// hasKeptAll reports whether none of the devices is released.
func (c *Checkpoint) hasKeptAll(devices []inventory.Device) bool {
	return !slices.ContainsFunc(devices, func(d inventory.Device) bool { return !c.hasKept(keptOf(d.Hardware).UUID) })
}

// hasKept reports whether the device is not released.
func (c *Checkpoint) hasKept(id gpu.UUID) bool {
	return slices.ContainsFunc(c.Kept, func(k KeptDevice) bool { return k.UUID == id })
}
