package nvml

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// This file looks at the PCI bus, without the driver. The kernel tells of a GPU that is
// plugged in, removed, or bound to the driver again, but not of one that answers again
// after it fell off the bus: its configuration space is read for that, which does not
// open it and so blocks no reset.

// busEvery is the interval at which the configuration space of GPUs that are lost or
// released is read.
const busEvery = 2 * time.Second

// bus holds what a watch knows of the PCI bus.
type bus struct {
	follower sync.WaitGroup        // the goroutine that receives the kernel's events
	events   chan gpu.PCIAddress   // "": any GPU may have changed
	timer    *time.Timer           // runs while there are GPUs to look at
	silent   map[gpu.UUID]struct{} // those that did not answer when they were last looked at
}

// followBus starts to receive the kernel's events until the watch ends.
func (w *watch) followBus() {
	w.bus = bus{events: make(chan gpu.PCIAddress), timer: time.NewTimer(busEvery), silent: map[gpu.UUID]struct{}{}}
	if w.watchDevices == nil {
		return
	}
	w.bus.follower.Go(func() {
		err := w.watchDevices(w.ctx, func(e host.DeviceEvent) {
			select {
			case w.bus.events <- e.PCI:
			case <-w.ctx.Done():
			}
		})
		if w.ctx.Err() == nil {
			w.log.Warn("a GPU that comes or goes is only noticed by polling", "interval", w.probe.String(), "message", err.Error())
		}
	})
}

// leaveBus waits for the goroutine that followBus started. w.ctx has ended.
func (w *watch) leaveBus() {
	w.bus.timer.Stop()
	w.bus.follower.Wait()
}

// handleBusEvent reads the GPUs after an event of the PCI device at an address, of any of them if that is "". A
// released GPU is read from outside.
func (w *watch) handleBusEvent(address gpu.PCIAddress) {
	lost, out := w.outOfReach()
	for id, at := range lost {
		if out[id] && (address == "" || at == address) {
			delete(w.outsideReadAt, id)
		}
	}
	w.readNextOutside()
	w.again = w.again || w.cycled == nil // else they are read once NVML is initialised
}

// lookAtBus looks which of the GPUs that are lost or released answer on the bus. A released one that answers again
// is read from outside.
func (w *watch) lookAtBus() {
	lost, out := w.outOfReach()
	for id := range w.bus.silent {
		if _, still := lost[id]; !still {
			delete(w.bus.silent, id)
		}
	}
	for id, address := range lost {
		if !w.places.answersOnBus(address) {
			w.bus.silent[id] = struct{}{}
		} else if _, was := w.bus.silent[id]; was && out[id] {
			delete(w.bus.silent, id)
			delete(w.outsideReadAt, id)
		}
	}
	w.readNextOutside()
	if len(lost) > 0 {
		w.bus.timer.Reset(busEvery)
	}
}

// outOfReach returns the PCI addresses of the GPUs that are lost or released, and which are released.
func (w *watch) outOfReach() (lost map[gpu.UUID]gpu.PCIAddress, out map[gpu.UUID]bool) {
	lost, out = map[gpu.UUID]gpu.PCIAddress{}, map[gpu.UUID]bool{}
	for _, d := range w.seen {
		if d.Fault.Reason == gpu.ReasonLost {
			lost[d.UUID] = d.PCI
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.memory.out {
		lost[id], out[id] = w.memory.devices[id].PCI, true
	}
	return lost, out
}

// answersOnBus reports whether the PCI device at an address answers on the bus: its vendor ID
// reads as all ones if it does not (PCI Local Bus Specification 3.0, 6.1).
func (p places) answersOnBus(address gpu.PCIAddress) bool {
	if p.sys == nil {
		return false
	}
	file, err := os.OpenFile(p.sys.Path(filepath.Join(host.PCIDevices, string(address), "config")), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	var vendor [2]byte
	n, err := file.ReadAt(vendor[:], 0)
	return err == nil && n == len(vendor) && vendor != [2]byte{0xff, 0xff}
}
