package claim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/partition"
)

// createPartitions creates the partitions of a claim that is not prepared yet. They are recorded
// before: whatever kills this process, the next call finds them and either has the claim prepared or
// destroys them. After an error nothing of them is left, or it is recorded as to be destroyed.
func (p *Preparer) createPartitions(ctx context.Context, wanted *Prepared, record *Checkpoint) error {
	var missing []*PreparedDevice
	for i := range wanted.Devices {
		d := &wanted.Devices[i]
		if d.Placement == nil || d.UUID != "" {
			continue
		}
		// What is there now is somebody else's, and must not get into the record.
		if err := p.checkFree(ctx, *d.Placement); err != nil {
			return fmt.Errorf("device %s: its partition cannot be created: %w; next: %s", d.Name, err, nextForPartition(err))
		}
		missing = append(missing, d)
	}
	if len(missing) == 0 {
		return nil
	}
	for _, d := range missing {
		record.Partitions = append(record.Partitions, OwnPartition{*d.Placement, wanted.UID})
	}
	if err := p.Store.Save(record); err != nil {
		record.forget(func(o OwnPartition) bool { return o.Claim == wanted.UID })
		return fmt.Errorf("the partitions to be created cannot be recorded: %w; the kubelet tries again", err)
	}
	for i, d := range missing {
		began := time.Now()
		made, err := p.Partitions.CreatePartition(ctx, *d.Placement)
		if err == nil {
			d.UUID = made.UUID
			p.Log.Info("partition created", "device", d.Name, "uuid", string(made.UUID), "duration", time.Since(began).Round(time.Millisecond))
			continue
		}
		untouched := missing[i+1:]
		if !errors.Is(err, gpu.ErrLeftover) { // nothing is there, or somebody else's partition
			untouched = missing[i:]
			if !errors.Is(err, gpu.ErrNoRoom) { // it may have been there for a moment
				record.addDestroyed(*d.Placement)
			}
		}
		record.forget(func(o OwnPartition) bool {
			return o.Claim == wanted.UID && slices.ContainsFunc(untouched, func(d *PreparedDevice) bool { return *d.Placement == o.Placement })
		})
		err = fmt.Errorf("device %s: its partition cannot be created: %w; next: %s", d.Name, err, nextForPartition(err))
		p.destroyLeftovers(ctx, record)
		return errors.Join(err, p.saveRemoved(record))
	}
	return nil
}

// checkFree returns an error that wraps gpu.ErrNoRoom if a GPU instance is at a placement.
func (p *Preparer) checkFree(ctx context.Context, at gpu.Placement) error {
	instances, err := p.Partitions.Instances(ctx, at.GPU)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if at.Overlaps(gpu.Placement{GPU: at.GPU, Start: i.Start, Size: i.Size}) {
			return fmt.Errorf("%w: GPU instance %d is at memory slice %d", gpu.ErrNoRoom, i.ID, i.Start)
		}
	}
	return nil
}

// nextForPartition returns what a person should do after an error of creating a partition.
func nextForPartition(err error) string {
	switch {
	case errors.Is(err, gpu.ErrNoRoom):
		return "remove what was created there by hand, or delete this pod, so that it is scheduled again"
	case errors.Is(err, gpu.ErrNoPermission):
		return "let gpu-device-plugin have the capability mig/config, /dev/nvidia-caps/nvidia-cap1"
	case errors.Is(err, gpu.ErrNoMIGMode):
		return "switch MIG mode on, or delete this pod, so that it is scheduled again"
	case errors.Is(err, gpu.ErrUnreachable):
		return "delete this pod, so that it is scheduled again; see the health of the GPU"
	case errors.Is(err, partition.ErrUnavailable):
		return "see that gpu-device-plugin runs on this node with --mig=dynamic; the kubelet tries again"
	}
	return "see the log of gpu-device-plugin and the kernel's on this node; the kubelet tries again"
}

// nextForRemoval returns what a person should do after an error of destroying a partition.
func nextForRemoval(err error) string {
	switch {
	case errors.Is(err, gpu.ErrInUse):
		return "end what uses it; the kubelet tries again"
	case errors.Is(err, partition.ErrUnavailable):
		return "see that gpu-device-plugin runs on this node, with --mig=dynamic until the last claim with a partition has ended; the kubelet tries again"
	}
	return "see the log of gpu-device-plugin and the kernel's on this node; the kubelet tries again"
}

// removeLeftovers destroys the partitions of claims that are not prepared, and records that: the
// process was killed, or an earlier attempt failed.
func (p *Preparer) removeLeftovers(ctx context.Context, record *Checkpoint) error {
	if !p.destroyLeftovers(ctx, record) {
		return nil
	}
	return p.saveRemoved(record)
}

// destroyLeftovers destroys the partitions of claims that are not prepared, and reports whether it has
// destroyed one. One that cannot be destroyed now stays recorded, and its error is in the log alone: it
// does not concern the claims of this call.
func (p *Preparer) destroyLeftovers(ctx context.Context, record *Checkpoint) (changed bool) {
	before := len(record.Partitions)
	if err := p.destroyPartitions(ctx, record, func(o OwnPartition) bool { return record.Find(o.Claim) == nil }); err != nil {
		p.Log.Error("what is left of a partition is destroyed later", "message", err.Error())
	}
	return len(record.Partitions) < before
}

func (p *Preparer) saveRemoved(record *Checkpoint) error {
	if err := p.Store.Save(record); err != nil {
		return fmt.Errorf("that partitions were removed cannot be recorded: %w; the kubelet tries again", err)
	}
	return nil
}

// destroyPartitions destroys the chosen partitions, and removes from the record those that are gone. One on
// a GPU that nothing reaches stays recorded, which is no error: it is destroyed if the GPU returns without a
// reset, and until then nobody is given its place.
func (p *Preparer) destroyPartitions(ctx context.Context, record *Checkpoint, chosen func(OwnPartition) bool) error {
	var errs []error
	inv := p.Inventory()
	record.forget(func(o OwnPartition) bool {
		if !chosen(o) {
			return false
		}
		began, err := time.Now(), gpu.ErrUnreachable
		if !inv.IsLost(o.GPU) { // or else NVML would only hang
			err = p.Partitions.DestroyPartition(ctx, o.Placement)
		}
		switch {
		case errors.Is(err, gpu.ErrUnreachable):
			if record.Find(o.Claim) != nil {
				p.Log.Warn("partition is destroyed when its GPU returns", "uuid", string(o.GPU), "profile", o.Profile, "start", o.Start, "message", err.Error())
			}
			return false
		case err != nil:
			errs = append(errs, fmt.Errorf("its partition of profile %d at memory slice %d of GPU %s cannot be destroyed: %w; next: %s", o.Profile, o.Start, o.GPU, err, nextForRemoval(err)))
			return false
		}
		record.addDestroyed(o.Placement)
		p.Log.Info("partition destroyed", "uuid", string(o.GPU), "profile", o.Profile, "start", o.Start, "duration", time.Since(began).Round(time.Millisecond))
		return true
	})
	return errors.Join(errs...)
}

// HasLeftovers reports whether something is left of a partition on a GPU that can be reached again. It does not
// wait for the record: a claim that is being prepared may count as well.
func (p *Preparer) HasLeftovers(inv inventory.Inventory) bool {
	record, err := p.Store.read()
	return err == nil && record.BootID == p.Store.BootID &&
		slices.ContainsFunc(record.leftovers(), func(o OwnPartition) bool { return !inv.IsLost(o.GPU) })
}

// Recover destroys incomplete partitions of an earlier process. It is called at the start.
func (p *Preparer) Recover(ctx context.Context) error {
	unlock, err := p.Store.lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	record, err := p.Store.Load(p.Log)
	if err != nil || len(record.Partitions) == 0 {
		return err
	}
	return p.removeLeftovers(ctx, record)
}

// forget removes partitions from the record.
func (c *Checkpoint) forget(gone func(OwnPartition) bool) {
	c.Partitions = slices.DeleteFunc(c.Partitions, gone)
}

// Clone returns a copy that shares no slice with c.
func (c *Checkpoint) Clone() Checkpoint {
	clone := *c
	clone.Claims, clone.Partitions, clone.Kept = slices.Clone(c.Claims), slices.Clone(c.Partitions), slices.Clone(c.Kept)
	clone.Destroyed = slices.Clone(c.Destroyed)
	return clone
}

// settleTime is the time that the state of an earlier version of the device plugin takes at most to lack a MIG
// device that was destroyed, if that is not held up.
const settleTime = 10 * time.Second

// Own returns the places in which a GPU instance of the device plugin's state is this driver's: those of
// the record of this boot, and those where a partition was destroyed after the reading of the instances began.
// An earlier version of the device plugin does not tell when that was. Then they are those where one was destroyed
// after the state was written, or less than settleTime ago. If an instance counts as this driver's for the latter
// reason alone, until is when that ends.
// The error is that of the file system. A file that is no record counts as an empty one.
func (s Store) Own(state nodestate.State) (own []gpu.Placement, until time.Time, err error) {
	c, err := s.read()
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errDamaged), errors.Is(err, record.ErrInvalid):
		return nil, until, nil
	case err != nil:
		return nil, until, fmt.Errorf("read the record of prepared claims: %w", err)
	case c.BootID != s.BootID:
		return nil, until, nil
	}
	for _, o := range c.Partitions {
		own = append(own, o.Placement)
	}
	now, read := time.Now(), layoutRead(state)
	for _, d := range c.Destroyed {
		switch settled := d.Time.Add(settleTime); {
		case d.Time.After(now): // from before the clock was set back
		case !read.IsZero():
			if !read.After(d.Time) {
				own = append(own, d.Placement)
			}
		case !state.Time.After(d.Time):
			own = append(own, d.Placement)
		case now.Before(settled):
			if own = append(own, d.Placement); hasInstance(state, d.Placement) && settled.After(until) {
				until = settled
			}
		}
	}
	return own, until, nil
}

func layoutRead(s nodestate.State) time.Time {
	if s.DevicePlugin == nil {
		return time.Time{}
	}
	return s.DevicePlugin.LayoutRead
}

// hasInstance reports whether a GPU instance of a state is at a placement.
func hasInstance(s nodestate.State, at gpu.Placement) bool {
	if s.DevicePlugin == nil {
		return false
	}
	return slices.ContainsFunc(s.DevicePlugin.Inventory, func(g nodestate.GPU) bool {
		return g.UUID == at.GPU && slices.ContainsFunc(g.Instances, func(i nodestate.GPUInstance) bool {
			return i.Profile == at.Profile && i.Start == at.Start && i.Size == at.Size
		})
	})
}

// addDestroyed records that nothing of a partition is left.
func (c *Checkpoint) addDestroyed(at gpu.Placement) {
	c.Destroyed = append(slices.DeleteFunc(c.Destroyed, func(d DestroyedPartition) bool { return d.Placement == at }),
		DestroyedPartition{at, time.Now().UTC()})
}

// destroyedLimit is the age from which the record of a destroyed partition is of no use: no state of the
// device plugin is older, unless the device plugin has been held up for as long.
const destroyedLimit = 10 * time.Minute

// dropSettled removes the records of destroyed partitions that are of no use any more. One of the future is from
// before the clock was set back.
func (c *Checkpoint) dropSettled(now time.Time) {
	c.Destroyed = slices.DeleteFunc(c.Destroyed, func(d DestroyedPartition) bool {
		age := now.Sub(d.Time)
		return age < 0 || age > destroyedLimit
	})
}

// Bounds of waiting for the record. The kernel tells nobody with a deadline when a lock is free.
const (
	lockTimeout  = 35 * time.Second // the kubelet waits 45 s for an answer
	lockInterval = 10 * time.Millisecond
)

// lock makes this call the only one that uses the record, until unlock is called. Another instance that
// hangs with it ends the waiting with an error.
func (s Store) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	again := time.NewTicker(lockInterval)
	defer again.Stop()
	path := s.Path + ".lock"
	for {
		f, err := fileutil.TryLockFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			return func() { _ = f.Close() }, nil // and with it the lock
		}
		if !errors.Is(err, fileutil.ErrLocked) {
			return func() {}, fmt.Errorf("lock the record of prepared claims: %w; next: see that the driver's folder is mounted", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return func() {}, fmt.Errorf("another call or instance of this driver has locked %s: %w; next: see its log, and delete its pod if it hangs; the kubelet tries again", path, ctx.Err())
		}
	}
}
