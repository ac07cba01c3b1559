// This file writes the files <layer>-ready and <layer>-notready, by which other pods learn whether a
// layer of the node works. A ready file is also called a proof. Both the daemon and the commands that
// replace NVIDIA's validator write and remove them with ProofWriter. Package readiness reads them.

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
)

// proofFiles is the pair of files that report on one name; at most one of the two exists. Package
// readiness derives the files' names. They are written out here so that a search for them finds
// this file; a test compares them.
type proofFiles struct {
	name            readiness.Layer
	ready, notReady string
}

// allProofs lists all pairs: those of the layers, and those of the components of NVIDIA's
// validator, except components that are named as a layer.
var allProofs = []proofFiles{
	{readiness.Driver, "driver-ready", "driver-notready"},
	{readiness.Toolkit, "toolkit-ready", "toolkit-notready"},
	{readiness.CUDA, "cuda-ready", "cuda-notready"},
	{readiness.Plugin, "plugin-ready", "plugin-notready"},

	{readiness.Peermem, "peermem-ready", "peermem-notready"},
	{readiness.GDS, "gds-ready", "gds-notready"},
	{readiness.GDRCopy, "gdrcopy-ready", "gdrcopy-notready"},
	{readiness.MOFED, "mofed-ready", "mofed-notready"},
	{readiness.Fabric, "fabric-ready", "fabric-notready"},
	{readiness.VFIO, "vfio-ready", "vfio-notready"},
	{readiness.VGPU, "vgpu-ready", "vgpu-notready"},

	{"nvidia-peermem", "nvidia-peermem-ready", "nvidia-peermem-notready"},
	{"nvidia-fs", "nvidia-fs-ready", "nvidia-fs-notready"},
	{"vfio-pci", "vfio-pci-ready", "vfio-pci-notready"},
	{"vgpu-devices", "vgpu-devices-ready", "vgpu-devices-notready"},
	{"vgpu-manager", "vgpu-manager-ready", "vgpu-manager-notready"},
	{"metrics", "metrics-ready", "metrics-notready"}, // never written; removed because NVIDIA's validator may have left it
}

// ProofWriter writes the proofs of a folder, and remembers what it wrote. Its methods must not be
// called concurrently.
type ProofWriter struct {
	dir, bootID string
	signatures  map[readiness.Layer]string        // of the outcomes written
	outcomes    map[readiness.Layer]check.Outcome // the outcomes written
}

// NewProofWriter returns a ProofWriter for a folder, a path of this process, and a boot.
func NewProofWriter(dir, bootID string) *ProofWriter {
	return &ProofWriter{dir, bootID, map[readiness.Layer]string{}, map[readiness.Layer]check.Outcome{}}
}

// Write writes <name>-ready or, if the outcome is no pass, <name>-notready with the reason. It
// removes the other of the two.
func (w *ProofWriter) Write(name readiness.Layer, o check.Outcome) error {
	if !slices.ContainsFunc(allProofs, func(f proofFiles) bool { return f.name == name }) {
		return fmt.Errorf("%s has no files for a proof", name)
	}
	if o.Proof != nil {
		p := *o.Proof
		p.BootID = w.bootID
		return readiness.WriteReady(w.dir, name, p)
	}
	r := *o.NotReady
	r.BootID = w.bootID
	return readiness.WriteNotReady(w.dir, name, r)
}

// Remove removes the files of a name.
func (w *ProofWriter) Remove(name readiness.Layer) error { return readiness.Clear(w.dir, name) }

// RemoveAll removes the files of all names, and what is kept of layer cuda. Other files in the folder stay.
func (w *ProofWriter) RemoveAll() error {
	errs := []error{record.Remove(filepath.Join(w.dir, step.KeptProofName))}
	for _, f := range allProofs {
		errs = append(errs, w.Remove(f.name))
	}
	return errors.Join(errs...)
}

// RemoveStale removes the files of layers that are from an earlier boot or invalid, and those of
// optional layers that are not among the steps. The files by NVIDIA's names for components stay. It
// reports whether files of this boot remain.
func (w *ProofWriter) RemoveStale(steps []check.Step, log *slog.Logger) (remain bool) {
	remove := func(layer readiness.Layer) bool {
		err := w.Remove(layer)
		if err != nil {
			log.Error("cannot remove a stale proof", "layer", layer, "message", err.Error())
		}
		return err == nil
	}
	for _, layer := range readiness.Layers() {
		_, err := readiness.Read(w.dir, layer, w.bootID)
		remain = remain || err == nil
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if remove(layer) {
			log.Info("removed a stale proof", "layer", layer, "message", err.Error())
		}
	}
	for _, layer := range readiness.Optional() {
		if !slices.ContainsFunc(steps, func(s check.Step) bool { return s.Layer == layer }) {
			remove(layer) // it is no longer wanted
		}
	}
	return remain
}

// EffectiveOutcome returns the outcome that is to be written for a new one: while a check is
// pending, the pass before it stays.
func (w *ProofWriter) EffectiveOutcome(o check.Outcome) check.Outcome {
	if before := w.outcomes[o.Layer]; o.Kind == check.Pending && before.Kind == check.Passed {
		return before
	}
	return o
}

// WriteIfChanged writes the outcome of a layer unless the file has it already. It reports whether
// the outcome differs from the last one written.
func (w *ProofWriter) WriteIfChanged(o check.Outcome) (changed bool, err error) {
	current := signature(o)
	changed = w.signatures[o.Layer] != current
	if !changed && w.isWritten(o) {
		return false, nil
	}
	if err := w.Write(o.Layer, o); err != nil {
		delete(w.signatures, o.Layer)
		return false, err
	}
	w.signatures[o.Layer], w.outcomes[o.Layer] = current, o
	return changed, nil
}

// isWritten reports whether the file written for an outcome is still there.
func (w *ProofWriter) isWritten(o check.Outcome) bool {
	s, err := readiness.Read(w.dir, o.Layer, w.bootID)
	return err == nil && (s.Proof != nil) == (o.Proof != nil)
}

// signature returns a text that is equal for equal outcomes: time and duration are left out.
func signature(o check.Outcome) string {
	if p := o.Proof; p != nil {
		driver := nodestate.DriverInfo{}
		if p.Driver != nil { // an optional layer has none
			driver = *p.Driver
		}
		return fmt.Sprintf("ready %+v %s %s %d %v %q %q", driver, p.HostRoot, p.DevRoot, p.GPUs, p.Resources, p.Summary, o.Notes)
	}
	return fmt.Sprintf("not ready %s %q %q", o.NotReady.Reason, o.NotReady.Message, o.NotReady.Action)
}
