package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// KeptProofName is the name of the file beside cuda-ready that keeps the proof of layer cuda over
// restarts of the validator.
const KeptProofName = "cuda-proof.json"

const (
	keptVersion  = 1
	maxKeptBytes = 512 << 10 // 16 GPUs with 7 MIG devices each take 20 kB, or 200 kB if all have failed
	maxKeptUnits = 256
	maxKeptText  = 300
)

// keptProof lists the GPUs and MIG devices on which vectorAdd passed or failed, and on what that depends.
// It holds for one boot.
type keptProof struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	// Driver is check.Driver.Files: the driver, as it is loaded, and size and time of its libraries.
	Driver string `json:"driver"`
	// Toolkit is the generation of what the toolkit injects, without MIG instances; "": not known.
	Toolkit string                `json:"toolkit,omitempty"`
	Units   map[gpu.UUID]keptUnit `json:"units"`
	// Failed lists the devices on which vectorAdd failed in a way in which it fails on no good GPU, and has
	// not passed since. Nobody who uses such a device makes it a good one.
	Failed map[gpu.UUID]keptFailure `json:"failed,omitempty"`
}

// keptUnit is a GPU or MIG device on which vectorAdd passed.
type keptUnit struct {
	Place   string    `json:"place"` // see placeOf
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
}

// keptFailure is the failure of vectorAdd on a GPU or MIG device.
type keptFailure struct {
	Place   string     `json:"place"`
	Time    time.Time  `json:"time"`
	Reason  gpu.Reason `json:"reason"` // reasonSampleFailed or reasonSampleTimeout
	Message string     `json:"message"`
}

// newKeptFailure returns the failure of a unit; false: it says nothing of the unit.
func newKeptFailure(u check.Unit, r unitResult) (keptFailure, bool) {
	if !r.isFailed() || r.kept || !r.BlamesDevice() {
		return keptFailure{}, false
	}
	f := keptFailure{Place: placeOf(u), Time: time.Now().UTC(), Reason: reasonSampleFailed, Message: record.Clean(r.Message, maxKeptText)}
	if r.Outcome == probe.SampleNoResult {
		f.Reason = reasonSampleTimeout
	}
	return f, true
}

// again returns the failure as the result of a unit that is not tried now, since others use it.
func (f keptFailure) again(busy check.Unproven) unitResult {
	r := probe.SampleResult{Outcome: probe.SampleFailed, Message: fmt.Sprintf("%s (at %s, and not tried since: %s)", f.Message, f.Time.UTC().Format(time.RFC3339), busy.Message)}
	if f.Reason == reasonSampleTimeout {
		r.Outcome = probe.SampleNoResult
	}
	return unitResult{SampleResult: r, kept: true, at: f.Time}
}

// placeOf identifies the hardware behind a UUID: a MIG device that is created again in another size has
// the UUID of the earlier one.
func placeOf(u check.Unit) string {
	for _, m := range u.GPU.MIG {
		if m.UUID == u.UUID {
			return fmt.Sprintf("%s %s %d/%d", u.GPU.PCI, m.Profile, m.GPUInstance, m.ComputeInstance)
		}
	}
	return string(u.GPU.PCI)
}

// newKeptProof returns a proof of nothing for a node and its driver.
func newKeptProof(node check.Node, driver check.Driver) keptProof {
	return keptProof{Version: keptVersion, BootID: node.BootID, Driver: driver.Files(), Toolkit: toolkitGeneration(node), Units: map[gpu.UUID]keptUnit{}, Failed: map[gpu.UUID]keptFailure{}}
}

// toolkitGeneration returns the generation of what this process got from the toolkit or, outside of
// injected containers, of what the toolkit injects now; "": not known.
func toolkitGeneration(node check.Node) string {
	if node.Injection != "" && node.Injection != injection.Expected {
		return injection.BaseOf(node.Injection)
	}
	state, err := node.State(nodestate.Toolkit)
	if err != nil || state.Toolkit == nil || state.Toolkit.Injection == nil {
		return ""
	}
	return injection.BaseOf(state.Toolkit.Injection.Generation)
}

// readKept reads the proof that an earlier process of this boot left. A file that is damaged, of another
// version or written by another program proves nothing.
func readKept(path string) (keptProof, error) {
	data, err := record.Read(path, maxKeptBytes)
	if err != nil {
		return keptProof{}, err
	}
	var k keptProof
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&k); err != nil {
		return keptProof{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return keptProof{}, errors.New("there is more behind the proof")
	}
	if k.Version != keptVersion {
		return keptProof{}, fmt.Errorf("version %d is not %d", k.Version, keptVersion)
	}
	if n := max(len(k.Units), len(k.Failed)); n > maxKeptUnits {
		return keptProof{}, fmt.Errorf("%d GPUs are too many", n)
	}
	for id, u := range k.Units {
		if u.Time.IsZero() || u.Seconds < 0 {
			return keptProof{}, fmt.Errorf("%s has no time", id)
		}
	}
	return k, nil
}

// within returns what of k still holds for the units of a driver: the passes of those with the same hardware,
// driver and injection in the same boot. Failures need not have the same injection, and those of units that
// are away stay, since a GPU may be lost for a moment.
func (k keptProof) within(now keptProof, units []check.Unit) keptProof {
	if k.BootID != now.BootID || k.Driver != now.Driver {
		return now
	}
	gone := maps.Clone(k.Failed)
	for _, u := range units {
		if old, ok := k.Failed[u.UUID]; ok && old.Place == placeOf(u) {
			now.Failed[u.UUID] = old
		}
		delete(gone, u.UUID)
	}
	for id, old := range gone {
		if len(now.Failed) < maxKeptUnits/2 {
			now.Failed[id] = old
		}
	}
	if k.Toolkit != "" && now.Toolkit != "" && k.Toolkit != now.Toolkit {
		return now
	}
	if now.Toolkit == "" {
		now.Toolkit = k.Toolkit
	}
	for _, u := range units {
		_, failed := now.Failed[u.UUID]
		if old, ok := k.Units[u.UUID]; ok && !failed && old.Place == placeOf(u) {
			now.Units[u.UUID] = old
		}
	}
	return now
}

// dropFaulty drops the passes of devices that have been faulty since: the device plugin has recorded a fault that
// only a reset of the GPU or of the driver ends. NVML may not report it.
func (k keptProof) dropFaulty(node check.Node, units []check.Unit) {
	state, err := node.State(nodestate.DevicePlugin)
	if err != nil || state.DevicePlugin == nil {
		return
	}
	for _, u := range units {
		for _, f := range state.DevicePlugin.Faults {
			endsAlone := f.Needs == nodestate.EvidenceSnapshot || f.Needs == nodestate.EvidenceQuiet
			if f.GPU == u.GPU.UUID && !endsAlone && isInInstance(u, f.GPUInstance) && f.Since.After(k.Units[u.UUID].Time) {
				delete(k.Units, u.UUID)
			}
		}
	}
}

// isInInstance reports whether a fault of a GPU instance, nil for the whole GPU, concerns a unit.
func isInInstance(u check.Unit, instance *int) bool {
	return instance == nil || u.UUID == u.GPU.UUID ||
		slices.ContainsFunc(u.GPU.MIG, func(m gpu.MIGDevice) bool { return m.UUID == u.UUID && m.GPUInstance == *instance })
}

// add adds the results of samples that ran. If ended, samples without a result were ended by us.
func (k keptProof) add(units []check.Unit, results []unitResult, ended bool) {
	for i, u := range units {
		r := results[i]
		if r.isPassed() && !r.kept {
			k.Units[u.UUID] = keptUnit{Place: placeOf(u), Time: time.Now().UTC(), Seconds: r.Elapsed.Seconds()}
			delete(k.Failed, u.UUID)
		}
		if f, ok := newKeptFailure(u, r); ok && (!ended || r.Outcome != probe.SampleNoResult) {
			k.Failed[u.UUID] = f
		}
	}
}

// equal reports whether two proofs are the same.
func (k keptProof) equal(other keptProof) bool {
	return k.Version == other.Version && k.BootID == other.BootID && k.Driver == other.Driver && k.Toolkit == other.Toolkit &&
		maps.EqualFunc(k.Units, other.Units, func(a, b keptUnit) bool { return a.Place == b.Place && a.Seconds == b.Seconds && a.Time.Equal(b.Time) }) &&
		maps.EqualFunc(k.Failed, other.Failed, func(a, b keptFailure) bool {
			return a.Place == b.Place && a.Reason == b.Reason && a.Message == b.Message && a.Time.Equal(b.Time)
		})
}

// write replaces the file. What was proven and no longer is must not stay, also where there is no room.
func (k keptProof) write(path string) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return record.Replace(path, append(data, '\n'))
}
