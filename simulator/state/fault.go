// Faults and their repair. Each method changes the state as a real driver's would change, and returns
// the events that a real driver would raise.

package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Types of events, nvmlEventType….
const (
	EventSingleBitECC   = 0x1
	EventDoubleBitECC   = 0x2
	EventXID            = 0x8
	EventRecoveryAction = 0x8000
)

// The driver's recovery actions after a fault, nvmlDeviceGpuRecoveryAction_t.
const (
	recoverNone       = 0
	recoverReset      = 1
	recoverDrainReset = 4
)

// recoveryActions maps XIDs to the driver's recovery action; other XIDs leave the GPU usable.
// NVIDIA's catalogue of XIDs lists which need a reset, and which let running work
// drain first.
var recoveryActions = map[uint64]uint32{
	46: recoverReset, 48: recoverReset, 62: recoverReset, 64: recoverReset, 74: recoverReset,
	79: recoverReset, 92: recoverReset, 95: recoverReset, 109: recoverReset, 110: recoverReset,
	119: recoverReset, 120: recoverReset, 136: recoverReset, 140: recoverReset, 143: recoverReset,
	63: recoverDrainReset, 94: recoverDrainReset,
}

// xidRecoveryChanged is reported when the driver asks for another recovery action, or for none any more.
const xidRecoveryChanged = 154

// XIDFallenOff is reported when a GPU has fallen off the bus.
const XIDFallenOff = 79

// maxXID is well above the XIDs that NVIDIA has defined.
const maxXID = 1023

// recoveryNames holds the names of the driver's recovery actions by their number in nvml.h.
var recoveryNames = []string{"none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot"}

// RecoveryNames returns the names of the recovery actions.
func RecoveryNames() []string { return slices.Clone(recoveryNames) }

// SetRecovery makes the driver ask for a recovery action, by its name or number, or for none any more. The
// driver reports the change as XID 154, too (NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/gpu.c).
func (s *State) SetRecovery(index int, action string) ([]Event, error) {
	number := uint64(slices.Index(recoveryNames, action))
	if !slices.Contains(recoveryNames, action) {
		var err error
		if number, err = strconv.ParseUint(action, 10, 32); err != nil {
			return nil, fmt.Errorf("recovery: %q is neither a number nor one of %s", action, strings.Join(recoveryNames, ", "))
		}
	}
	s.Gpu[index].RecoveryAction = uint32(number)
	return []Event{
		{Type: EventXID, Data: xidRecoveryChanged, Gpu: uint32(index), Gi: None, Ci: None},
		{Type: EventRecoveryAction, Data: number, Gpu: uint32(index), Gi: None, Ci: None},
	}, nil
}

// ReportXID reports an XID on the GPU with the given index, or on one of its instances. The driver then asks for
// the recovery action that is usual for the XID.
func (s *State) ReportXID(index int, xid uint64, gi, ci uint32) ([]Event, error) {
	if xid == 0 || xid > maxXID {
		return nil, fmt.Errorf("xid: %d is not 1 to %d", xid, maxXID)
	}
	g := &s.Gpu[index]
	if err := checkInstance(g, gi, ci); err != nil {
		return nil, err
	}
	events := []Event{{Type: EventXID, Data: xid, Gpu: uint32(index), Gi: gi, Ci: ci}}
	return append(events, requestRecovery(g, index, recoveryActions[xid])...), nil
}

// requestRecovery makes the driver ask for a recovery, unless it already asks for a
// graver one.
func requestRecovery(g *GPU, index int, action uint32) []Event {
	if action == recoverNone || g.RecoveryAction == recoverReset || g.RecoveryAction == action {
		return nil
	}
	g.RecoveryAction = action
	return []Event{{Type: EventRecoveryAction, Data: uint64(action), Gpu: uint32(index), Gi: None, Ci: None}}
}

func checkInstance(g *GPU, gi, ci uint32) error {
	if gi == None {
		if ci != None {
			return fmt.Errorf("ci: %d; say --gi, too", ci)
		}
		return nil
	}
	if !slices.ContainsFunc(g.Gi[:], func(i GI) bool { return i.Used != 0 && i.Id == gi }) {
		return fmt.Errorf("gi: the GPU has no GPU instance %d; see gpusim status", gi)
	}
	if ci != None && !slices.ContainsFunc(g.Ci[:], func(i CI) bool { return i.Used != 0 && i.Gi == gi && i.Id == ci }) {
		return fmt.Errorf("ci: GPU instance %d has no compute instance %d; see gpusim status", gi, ci)
	}
	return nil
}

// eccLocations maps the locations of ECC errors to the indexes of their counters
// (nvmlMemoryLocation_t).
var eccLocations = map[string]int{
	"l1": 0, "l2": 1, "dram": 2, "register": 3, "texture": 4, "shared": 5, "cbu": 6, "sram": 7,
}

// ECCLocationNames returns the names of the locations of ECC errors, sorted.
func ECCLocationNames() []string { return slices.Sorted(maps.Keys(eccLocations)) }

// CountECCErrors adds errors in one location of the GPU's memory.
func (s *State) CountECCErrors(index int, location string, corrected, uncorrected uint64) ([]Event, error) {
	g := &s.Gpu[index]
	where, ok := eccLocations[location]
	switch {
	case !ok:
		return nil, fmt.Errorf("location: %q is not one of %s", location, strings.Join(ECCLocationNames(), ", "))
	case g.EccCurrent == 0:
		return nil, fmt.Errorf("%s has no ECC", Text(g.Name[:]))
	case corrected == 0 && uncorrected == 0:
		return nil, fmt.Errorf("no errors to count; give --corrected or --uncorrected")
	}
	for kind, n := range []uint64{corrected, uncorrected} {
		g.EccVolatile[kind][where] += n
		g.EccAggregate[kind][where] += n
	}
	var events []Event
	emit := func(kind uint64) {
		events = append(events, Event{Type: kind, Gpu: uint32(index), Gi: None, Ci: None})
	}
	if corrected > 0 {
		emit(EventSingleBitECC)
	}
	if uncorrected > 0 {
		emit(EventDoubleBitECC)
		if where == eccLocations["dram"] {
			retire(g, uncorrected)
		}
		events = append(events, requestRecovery(g, index, recoverDrainReset)...)
	}
	return events, nil
}

// retire takes bad memory out of use from the next reset on: rows if the GPU can remap
// them, else pages.
func retire(g *GPU, n uint64) {
	rows := uint32(min(n, 512))
	if g.RemapSupported != 0 {
		g.RemapUncorrected += rows
		g.RemapPending = 1
		return
	}
	g.RetiredDbe += rows
	g.RetiredPending = 1
}

// remaps maps names to states of faulty rows of memory. On a GPU that retires pages
// they are pages that wait for that.
var remaps = map[string]func(g *GPU) (xid uint64){
	"pending": func(g *GPU) uint64 { g.RemapUncorrected++; g.RemapPending = 1; return 63 },
	"failed":  func(g *GPU) uint64 { g.RemapFailed = 1; return 64 },
	"none":    func(g *GPU) uint64 { g.RemapPending, g.RemapFailed = 0, 0; return 0 },
}

// RemapKinds returns the kinds for RemapRow, sorted.
func RemapKinds() []string { return slices.Sorted(maps.Keys(remaps)) }

// RemapRow marks a row of the GPU's memory, and reports the matching XID. The driver asks
// for no recovery, because drivers before R570 cannot.
func (s *State) RemapRow(index int, kind string) ([]Event, error) {
	g := &s.Gpu[index]
	mark, ok := remaps[kind]
	switch {
	case !ok:
		return nil, fmt.Errorf("kind: %q is not one of %s", kind, strings.Join(RemapKinds(), ", "))
	case g.RemapSupported == 0 && g.EccCurrent == 0:
		return nil, fmt.Errorf("%s remaps no rows, and retires no pages while ECC is off", Text(g.Name[:]))
	case g.RemapSupported == 0 && kind == "pending":
		g.RetiredDbe++
		g.RetiredPending = 1
		return []Event{{Type: EventXID, Data: 63, Gpu: uint32(index), Gi: None, Ci: None}}, nil
	case g.RemapSupported == 0 && kind == "none":
		g.RetiredPending = 0
		return nil, nil
	case g.RemapSupported == 0:
		return nil, fmt.Errorf("%s remaps no rows, it retires pages: --kind pending or none", Text(g.Name[:]))
	}
	xid := mark(g)
	if xid == 0 {
		return nil, nil
	}
	return []Event{{Type: EventXID, Data: xid, Gpu: uint32(index), Gi: None, Ci: None}}, nil
}

// lostWays maps names to the ways to lose a GPU.
var lostWays = map[string]uint32{
	"calls": LostCalls, "handle": LostHandle, "gone": LostGone,
	"unknown": LostUnknown, "events": LostEvents,
}

// LostWays returns the names of the ways to lose a GPU, sorted.
func LostWays() []string { return slices.Sorted(maps.Keys(lostWays)) }

// LoseGPU makes the GPU inaccessible in one of the ways in which NVML reports that.
// With xid, the driver reports that it has fallen off the bus.
func (s *State) LoseGPU(index int, how string, xid bool) ([]Event, error) {
	way, ok := lostWays[how]
	if !ok {
		return nil, fmt.Errorf("how: %q is not one of %s", how, strings.Join(LostWays(), ", "))
	}
	s.Gpu[index].Lost = way
	if !xid {
		return nil, nil
	}
	return s.ReportXID(index, XIDFallenOff, None, None)
}

// LostWay returns the name of a value of GPU.Lost; "" for a GPU that is not lost.
func LostWay(lost uint32) string {
	for name, way := range lostWays {
		if way == lost {
			return name
		}
	}
	return ""
}

// ResetGPU resets a GPU: the GPU is accessible, its volatile counters are 0, memory due
// to be retired is retired, and every degradation ends.
func (s *State) ResetGPU(index int) {
	g := &s.Gpu[index]
	g.Lost, g.RecoveryAction = LostNo, recoverNone
	g.EccVolatile = [2][ECCLocations]uint64{}
	g.RemapPending, g.RetiredPending = 0, 0
	g.MemfaultKind, g.MemfaultBit, g.MemfaultOffset = MemfaultNone, 0, 0
	g.WrongEvery, g.WrongBit = 0, 0
	g.PcieGenLimit, g.PcieWidthLimit, g.Throttle = 0, 0, 0
	if g.FabricSupported != 0 {
		g.FabricState, g.FabricStatus, g.FabricBad, g.FabricWrong = uint32(len(fabricStates)), 0, 0, 0
	}
	for l := range g.Nlinks {
		s.switchLink(index, l, true)
		g.Link[l].CrcErrors, g.Link[l].ReplayErrors, g.Link[l].RecoveryErrors = 0, 0, 0
	}
}

// memfaults maps names to the kinds of memory faults.
var memfaults = map[string]uint32{
	"none": MemfaultNone, "stuck": MemfaultStuck, "flip": MemfaultFlip,
	"stuck-at-0": MemfaultStuckAt0, "stuck-at-1": MemfaultStuckAt1,
}

// MemfaultKinds returns the names of memory faults, sorted.
func MemfaultKinds() []string { return slices.Sorted(maps.Keys(memfaults)) }

// MemfaultName returns the name of a value of GPU.MemfaultKind.
func MemfaultName(memfault uint32) string {
	for name, kind := range memfaults {
		if kind == memfault {
			return name
		}
	}
	return ""
}

// CorruptMemory makes libcuda corrupt one bit of the word at offset: in each allocation, or
// with stuck-at-0 and stuck-at-1 in the GPU's memory.
func (s *State) CorruptMemory(index int, kind string, offset uint64, bit uint32) error {
	value, ok := memfaults[kind]
	switch {
	case !ok:
		return fmt.Errorf("kind: %q is not one of %s", kind, strings.Join(MemfaultKinds(), ", "))
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

// errorCodes maps names to errors of NVML that a whole driver may return (nvmlReturn_t).
var errorCodes = map[string]uint32{
	"none": 0, "no-permission": 4, "driver-not-loaded": 9, "timeout": 10, "irq-issue": 11, "gpu-is-lost": 15,
	"operating-system": 17, "lib-rm-version-mismatch": 18, "in-use": 19, "memory": 20, "unknown": 999,
}

// ErrorNames returns the names of the errors, sorted.
func ErrorNames() []string { return slices.Sorted(maps.Keys(errorCodes)) }

// ParseError parses the name or the number of an error; "" means none.
func ParseError(text string) (uint32, error) {
	if code, ok := errorCodes[text]; ok || text == "" {
		return code, nil
	}
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil || code > uint64(errorCodes["unknown"]) {
		return 0, fmt.Errorf("%q is neither a number up to %d nor one of %s", text, errorCodes["unknown"], strings.Join(ErrorNames(), ", "))
	}
	return uint32(code), nil
}

// ErrorName returns the name of an error, or its number if it has none.
func ErrorName(code uint32) string {
	for name, known := range errorCodes {
		if known == code {
			return name
		}
	}
	return strconv.FormatUint(uint64(code), 10)
}
