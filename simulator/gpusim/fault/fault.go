// Package fault breaks and mends simulated GPUs. Each function changes a state
// as a real driver's would change, and returns the events that a real driver
// would raise.
package fault

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// Types of events, nvmlEventType….
const (
	EventSingleBitECC   = 0x1
	EventDoubleBitECC   = 0x2
	EventXID            = 0x8
	EventRecoveryAction = 0x8000
)

// What the driver asks for after a fault, nvmlDeviceGpuRecoveryAction_t.
const (
	recoverNone       = 0
	recoverReset      = 1
	recoverDrainReset = 4
)

// recovery is what the driver asks for after an XID; those that are not here
// leave the GPU usable. From NVIDIA's catalogue of XIDs: which of them need a
// reset, and which let running work be drained first.
var recovery = map[uint64]uint32{
	46: recoverReset, 48: recoverReset, 62: recoverReset, 64: recoverReset, 74: recoverReset,
	79: recoverReset, 92: recoverReset, 95: recoverReset, 109: recoverReset, 110: recoverReset,
	119: recoverReset, 120: recoverReset, 136: recoverReset, 140: recoverReset, 143: recoverReset,
	63: recoverDrainReset, 94: recoverDrainReset,
}

// XIDFallenOff is reported when a GPU has fallen off the bus.
const XIDFallenOff = 79

// maxXID is well beyond those that NVIDIA has defined.
const maxXID = 1023

// XID reports one on the GPU with the given index, or on one of its instances.
func XID(s *state.State, index int, xid uint64, gi, ci uint32) ([]state.Event, error) {
	if xid == 0 || xid > maxXID {
		return nil, fmt.Errorf("xid: %d is not 1 to %d", xid, maxXID)
	}
	g := &s.Gpu[index]
	if err := checkInstance(g, gi, ci); err != nil {
		return nil, err
	}
	events := []state.Event{{Type: EventXID, Data: xid, Gpu: uint32(index), Gi: gi, Ci: ci}}
	return append(events, ask(g, index, recovery[xid])...), nil
}

// ask makes the driver ask for a recovery. It does not take back a graver one.
func ask(g *state.GPU, index int, action uint32) []state.Event {
	if action == recoverNone || g.RecoveryAction == recoverReset || g.RecoveryAction == action {
		return nil
	}
	g.RecoveryAction = action
	return []state.Event{{Type: EventRecoveryAction, Data: uint64(action), Gpu: uint32(index), Gi: state.None, Ci: state.None}}
}

func checkInstance(g *state.GPU, gi, ci uint32) error {
	if gi == state.None {
		if ci != state.None {
			return fmt.Errorf("ci: %d; say --gi, too", ci)
		}
		return nil
	}
	if !slices.ContainsFunc(g.Gi[:], func(i state.GI) bool { return i.Used != 0 && i.Id == gi }) {
		return fmt.Errorf("gi: the GPU has no GPU instance %d; see gpusim status", gi)
	}
	if ci != state.None && !slices.ContainsFunc(g.Ci[:], func(i state.CI) bool { return i.Used != 0 && i.Gi == gi && i.Id == ci }) {
		return fmt.Errorf("ci: GPU instance %d has no compute instance %d; see gpusim status", gi, ci)
	}
	return nil
}

// Locations of ECC errors, as indexes of the counters (nvmlMemoryLocation_t).
var locations = map[string]int{
	"l1": 0, "l2": 1, "dram": 2, "register": 3, "texture": 4, "shared": 5, "cbu": 6, "sram": 7,
}

// Locations are the names of those that ECC knows, sorted.
func Locations() []string { return slices.Sorted(maps.Keys(locations)) }

// ECC counts errors in one location of the GPU's memory.
func ECC(s *state.State, index int, location string, corrected, uncorrected uint64) ([]state.Event, error) {
	g := &s.Gpu[index]
	where, ok := locations[location]
	switch {
	case !ok:
		return nil, fmt.Errorf("location: %q is not one of %s", location, strings.Join(Locations(), ", "))
	case g.EccCurrent == 0:
		return nil, fmt.Errorf("%s has no ECC", state.Text(g.Name[:]))
	case corrected == 0 && uncorrected == 0:
		return nil, fmt.Errorf("no errors to count; give --corrected or --uncorrected")
	}
	for kind, n := range []uint64{corrected, uncorrected} {
		g.EccVolatile[kind][where] += n
		g.EccAggregate[kind][where] += n
	}
	var events []state.Event
	emit := func(kind uint64) {
		events = append(events, state.Event{Type: kind, Gpu: uint32(index), Gi: state.None, Ci: state.None})
	}
	if corrected > 0 {
		emit(EventSingleBitECC)
	}
	if uncorrected > 0 {
		emit(EventDoubleBitECC)
		if where == locations["dram"] {
			retire(g, uncorrected)
		}
		events = append(events, ask(g, index, recoverDrainReset)...)
	}
	return events, nil
}

// retire takes bad memory out of use from the next reset on: rows where the GPU
// can remap them, else pages.
func retire(g *state.GPU, n uint64) {
	rows := uint32(min(n, 512))
	if g.RemapSupported != 0 {
		g.RemapUncorrected += rows
		g.RemapPending = 1
		return
	}
	g.RetiredDbe += rows
	g.RetiredPending = 1
}

// remaps are what can become of rows of faulty memory, by name. Where a GPU retires
// pages they can wait for that, too.
var remaps = map[string]func(g *state.GPU) (xid uint64){
	"pending": func(g *state.GPU) uint64 { g.RemapUncorrected++; g.RemapPending = 1; return 63 },
	"failed":  func(g *state.GPU) uint64 { g.RemapFailed = 1; return 64 },
	"none":    func(g *state.GPU) uint64 { g.RemapPending, g.RemapFailed = 0, 0; return 0 },
}

// Remaps are the names of those that Remap knows, sorted.
func Remaps() []string { return slices.Sorted(maps.Keys(remaps)) }

// Remap marks a row of the GPU's memory, and reports the XID that goes with it. The
// driver asks for no recovery: those before R570 cannot.
func Remap(s *state.State, index int, kind string) ([]state.Event, error) {
	g := &s.Gpu[index]
	mark, ok := remaps[kind]
	switch {
	case !ok:
		return nil, fmt.Errorf("kind: %q is not one of %s", kind, strings.Join(Remaps(), ", "))
	case g.RemapSupported == 0 && g.EccCurrent == 0:
		return nil, fmt.Errorf("%s remaps no rows, and retires no pages while ECC is off", state.Text(g.Name[:]))
	case g.RemapSupported == 0 && kind == "pending":
		g.RetiredDbe++
		g.RetiredPending = 1
		return []state.Event{{Type: EventXID, Data: 63, Gpu: uint32(index), Gi: state.None, Ci: state.None}}, nil
	case g.RemapSupported == 0 && kind == "none":
		g.RetiredPending = 0
		return nil, nil
	case g.RemapSupported == 0:
		return nil, fmt.Errorf("%s remaps no rows, it retires pages: --kind pending or none", state.Text(g.Name[:]))
	}
	xid := mark(g)
	if xid == 0 {
		return nil, nil
	}
	return []state.Event{{Type: EventXID, Data: xid, Gpu: uint32(index), Gi: state.None, Ci: state.None}}, nil
}

// ways to lose a GPU, by name.
var ways = map[string]uint32{
	"calls": state.LostCalls, "handle": state.LostHandle, "gone": state.LostGone,
	"unknown": state.LostUnknown, "events": state.LostEvents,
}

// Ways are the names of the ways to lose a GPU, sorted.
func Ways() []string { return slices.Sorted(maps.Keys(ways)) }

// Lose makes the GPU inaccessible in one of the ways in which NVML says so.
// With xid, the driver reports that it has fallen off the bus.
func Lose(s *state.State, index int, how string, xid bool) ([]state.Event, error) {
	way, ok := ways[how]
	if !ok {
		return nil, fmt.Errorf("how: %q is not one of %s", how, strings.Join(Ways(), ", "))
	}
	s.Gpu[index].Lost = way
	if !xid {
		return nil, nil
	}
	return XID(s, index, XIDFallenOff, state.None, state.None)
}

// Way is the name of a value of GPU.Lost; "" for one that is not lost.
func Way(lost uint32) string {
	for name, way := range ways {
		if way == lost {
			return name
		}
	}
	return ""
}

// Restore is what a reset does: the GPU is there, its volatile counters are 0,
// memory that was to be taken out of use is out of use, and what was worse than it
// should be is as it should.
func Restore(s *state.State, index int) {
	g := &s.Gpu[index]
	g.Lost, g.RecoveryAction = state.LostNo, recoverNone
	g.EccVolatile = [2][state.ECCLocations]uint64{}
	g.RemapPending, g.RetiredPending = 0, 0
	g.MemfaultKind, g.MemfaultBit, g.MemfaultOffset = state.MemfaultNone, 0, 0
	g.WrongEvery, g.WrongBit = 0, 0
	g.PcieGenLimit, g.PcieWidthLimit, g.Throttle = 0, 0, 0
	for l := range g.Nlinks {
		switchLink(s, index, l, true)
		g.Link[l].CrcErrors, g.Link[l].ReplayErrors, g.Link[l].RecoveryErrors = 0, 0, 0
	}
}

// kinds of memory faults, by name.
var kinds = map[string]uint32{
	"none": state.MemfaultNone, "stuck": state.MemfaultStuck, "flip": state.MemfaultFlip,
	"stuck-at-0": state.MemfaultStuckAt0, "stuck-at-1": state.MemfaultStuckAt1,
}

// Kinds are the names of memory faults, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Kind is the name of a value of GPU.MemfaultKind.
func Kind(memfault uint32) string {
	for name, kind := range kinds {
		if kind == memfault {
			return name
		}
	}
	return ""
}

// Memory makes libcuda corrupt one bit of the word at offset: in each allocation, or
// with stuck-at-0 and stuck-at-1 in the GPU's memory.
func Memory(s *state.State, index int, kind string, offset uint64, bit uint32) error {
	value, ok := kinds[kind]
	switch {
	case !ok:
		return fmt.Errorf("kind: %q is not one of %s", kind, strings.Join(Kinds(), ", "))
	case bit > 31:
		return fmt.Errorf("bit: %d is not 0 to 31", bit)
	case offset%4 != 0:
		return fmt.Errorf("offset: %d is no multiple of 4; the bit is within a 32-bit word", offset)
	case offset >= s.Gpu[index].MemoryTotal:
		return fmt.Errorf("offset: %d lies beyond the %d bytes of memory", offset, s.Gpu[index].MemoryTotal)
	}
	g := &s.Gpu[index]
	g.MemfaultKind, g.MemfaultOffset, g.MemfaultBit = value, offset, bit
	return nil
}

// codes are errors of NVML that a driver as a whole may answer with
// (nvmlReturn_t), by name.
var codes = map[string]uint32{
	"none": 0, "no-permission": 4, "driver-not-loaded": 9, "timeout": 10, "irq-issue": 11, "gpu-is-lost": 15,
	"operating-system": 17, "lib-rm-version-mismatch": 18, "in-use": 19, "memory": 20, "unknown": 999,
}

// Errors are their names, sorted.
func Errors() []string { return slices.Sorted(maps.Keys(codes)) }

// Error reads the name or the number of an error; "" is none.
func Error(text string) (uint32, error) {
	if code, ok := codes[text]; ok || text == "" {
		return code, nil
	}
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil || code > uint64(codes["unknown"]) {
		return 0, fmt.Errorf("%q is neither a number up to %d nor one of %s", text, codes["unknown"], strings.Join(Errors(), ", "))
	}
	return uint32(code), nil
}

// ErrorName is the name of an error, or else its number.
func ErrorName(code uint32) string {
	for name, known := range codes {
		if known == code {
			return name
		}
	}
	return strconv.FormatUint(uint64(code), 10)
}
