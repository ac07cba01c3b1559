// Package readiness reads and writes the readiness contract of a node: which layers
// from driver to pod are proven, and why one is not.
//
// Only the validator writes it. For each layer there is either <dir>/<layer>-ready,
// the proof, or <dir>/<layer>-notready, the reason, or neither while nothing is known.
// Both are lines of KEY=value that a shell can source, quoted so that sourcing them
// runs nothing. A file from an earlier boot is ignored.
package readiness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/suggest"
)

// DefaultDir is the default directory of the proofs, a host path.
const DefaultDir = "/run/nvidia/validations"

// Layer is one layer of the stack from driver to pod.
type Layer string

// The layers.
const (
	Driver  Layer = "driver"  // kernel modules and user libraries
	Toolkit Layer = "toolkit" // containers can be given GPUs
	CUDA    Layer = "cuda"    // every GPU computes
	Plugin  Layer = "plugin"  // the kubelet offers every GPU
)

// The optional layers, which are checked only on request.
const (
	Peermem Layer = "peermem" // network cards reach GPUs' memory (nvidia-peermem)
	GDS     Layer = "gds"     // storage reaches GPUs' memory (GPUDirect Storage)
	GDRCopy Layer = "gdrcopy" // the CPU reaches GPUs' memory, for small copies
	MOFED   Layer = "mofed"   // the driver of the network cards is loaded
	Fabric  Layer = "fabric"  // GPUs have joined the fabric of NVSwitches
	VFIO    Layer = "vfio"    // GPUs are set aside for virtual machines
	VGPU    Layer = "vgpu"    // GPUs are divided among virtual machines
)

// Layers returns the required layers, each after those it depends on.
func Layers() []Layer { return []Layer{Driver, Toolkit, CUDA, Plugin} }

// Optional returns the optional layers, which no other layer depends on.
func Optional() []Layer { return []Layer{Peermem, GDS, GDRCopy, MOFED, Fabric, VFIO, VGPU} }

// StartupTaints returns the keys of the taints that keep pods off a node until all layers are
// proven. The validator adds the first again when a layer fails later. The second is that of
// earlier versions.
func StartupTaints() []string { return []string{"nvidia.com/gpu-not-ready", "gpuready.io/not-ready"} }

// ReasonStopped is the reason of the Node's conditions after the validator has ended. Their status is
// Unknown.
const ReasonStopped = "ValidatorStopped"

// Proof is the result of proving a layer.
type Proof struct {
	BootID string // "" when written: this boot's
	Time   time.Time
	// Driver is the driver under the layer; nil if the node has no GPU and so
	// nothing to prove.
	Driver    *nodestate.DriverInfo
	HostRoot  string               // mount point of the host's root in the validator; "" is "/"
	DevRoot   string               // host path below which dev/nvidia* are; "" is "/"
	GPUs      int                  // the GPUs and MIG devices that the proof covers
	Summary   string               // one line for people
	Seconds   map[gpu.UUID]float64 // how long vectoradd ran on each GPU or MIG device (layer cuda)
	Resources map[string]int       // allocatable devices, by resource name
	// Unproven lists the GPUs and MIG devices that could not be tried, with the reason: others use
	// them (layer cuda). GPUs does not count them.
	Unproven map[gpu.UUID]gpu.Reason
}

// NotReady describes why a layer is not ready.
type NotReady struct {
	BootID  string // "" when written: this boot's
	Time    time.Time
	Reason  gpu.Reason // one CamelCase word
	Message string     // what is wrong, one sentence
	Action  string     // what to do next
}

// Status is the known status of a layer; exactly one field is set.
type Status struct {
	Proof    *Proof
	NotReady *NotReady
}

// Errors that Read wraps, besides fs.ErrNotExist.
var (
	// ErrStale means that the status of the layer is from an earlier boot.
	ErrStale = errors.New("from an earlier boot")
	// ErrInvalid means that the file is neither a proof nor a reason.
	ErrInvalid = errors.New("not a valid readiness file")
)

const maxBytes = 64 << 10

func readyPath(dir string, l Layer) string    { return filepath.Join(dir, string(l)+"-ready") }
func notReadyPath(dir string, l Layer) string { return filepath.Join(dir, string(l)+"-notready") }

// WriteReady records the proof of a layer and removes why it was not ready.
func WriteReady(dir string, l Layer, p Proof) error {
	data, err := p.encode(l)
	if err != nil {
		return fmt.Errorf("write %s: %w", readyPath(dir, l), err)
	}
	// Never both files at once; for a moment there is neither.
	if err := record.Remove(notReadyPath(dir, l)); err != nil {
		return err
	}
	return record.Write(readyPath(dir, l), data)
}

// WriteNotReady removes the proof of a layer and records why it is not ready. The
// proof is gone even if recording fails.
func WriteNotReady(dir string, l Layer, r NotReady) error {
	if err := record.Remove(readyPath(dir, l)); err != nil {
		return err
	}
	data, err := r.encode(l)
	if err != nil {
		return fmt.Errorf("write %s: %w", notReadyPath(dir, l), err)
	}
	return record.Write(notReadyPath(dir, l), data)
}

// Clear removes all files of a layer.
func Clear(dir string, l Layer) error {
	return errors.Join(record.Remove(readyPath(dir, l)), record.Remove(notReadyPath(dir, l)))
}

// Read returns the status of a layer in the given boot, "" for this one.
func Read(dir string, l Layer, boot string) (Status, error) {
	if boot == "" {
		var err error
		if boot, err = nodestate.BootID(); err != nil {
			return Status{}, err
		}
	}
	// The reason first: it counts if, against the rules, there are both.
	status, err := readFile(notReadyPath(dir, l), l, boot, false)
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrStale) {
		return status, err
	}
	proven, readyErr := readFile(readyPath(dir, l), l, boot, true)
	if errors.Is(readyErr, fs.ErrNotExist) && errors.Is(err, ErrStale) {
		return Status{}, err
	}
	return proven, readyErr
}

func readFile(path string, l Layer, boot string, ready bool) (Status, error) {
	data, err := record.Read(path, maxBytes)
	switch {
	case errors.Is(err, record.ErrInvalid):
		return Status{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return Status{}, err
	}
	values, err := parse(data)
	if err != nil {
		return Status{}, fmt.Errorf("%s: %w", path, err)
	}
	if values["BOOT_ID"] != boot {
		return Status{}, fmt.Errorf("%s: %w", path, ErrStale)
	}
	var s Status
	if ready {
		s.Proof, err = decodeProof(values, l)
	} else {
		s.NotReady, err = decodeNotReady(values, l)
	}
	if err != nil {
		return Status{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// NotReadyError is the error of Wait when its time is over: the first layer that is
// not ready, and its status.
type NotReadyError struct {
	Layer  Layer
	Status Status // with NotReady, where the reason is known
	Err    error  // of Read
	Cause  error  // why the wait ended
}

func (e *NotReadyError) Error() string {
	if r := e.Status.NotReady; r != nil {
		return fmt.Sprintf("%s is not ready: %s: %s", e.Layer, r.Reason, r.Message)
	}
	return fmt.Sprintf("%s is not ready: %s", e.Layer, DescribeError(e.Err))
}

func (e *NotReadyError) Unwrap() error { return e.Cause }

// nextAction separates a message from the next action in a text for people.
const nextAction = "; next: "

// WithAction joins a message and the next action in one text: "MESSAGE; next: ACTION", or only the
// message if there is no action. SplitAction is its inverse.
func WithAction(message, action string) string {
	if action == "" {
		return message
	}
	return message + nextAction + action
}

// SplitAction splits a text into a message and the next action. The texts of driver containers and
// of earlier versions end with "; " and the action.
func SplitAction(text string) (message, action string) {
	if message, action, ok := strings.Cut(text, nextAction); ok {
		return message, action
	}
	if i := strings.LastIndex(text, "; "); i >= 0 {
		return text[:i], text[i+2:]
	}
	return text, ""
}

// Shorten returns a text without control characters and of at most limit bytes. A long one is cut in the
// message rather than in the next action, for which it keeps at least half of the bytes.
func Shorten(text string, limit int) string {
	message, action, found := strings.Cut(text, nextAction)
	if !found || len(text) <= limit {
		return record.Clean(text, limit)
	}
	action = record.Clean(nextAction+action, max(limit/2, limit-len(message)))
	return record.Clean(message, limit-len(action)) + action
}

// Unknown is the message about a layer for which the validator has written no file.
const Unknown = "the validator has not reported on it yet"

// DescribeError describes an error of Read, for a layer of unknown status.
func DescribeError(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Unknown
	case errors.Is(err, ErrStale):
		return "what is known is from an earlier boot"
	}
	return err.Error()
}

// Watch calls report for each layer at once and whenever its status changes, until ctx
// ends; it then returns ctx.Err(). boot is as for Read.
func Watch(ctx context.Context, dir string, layers []Layer, boot string, report func(Layer, Status, error)) error {
	return watch(ctx, dir, layers, boot, report, func() {})
}

// watch is like Watch, and calls done after each check of all layers.
func watch(ctx context.Context, dir string, layers []Layer, boot string, report func(Layer, Status, error), done func()) error {
	var paths []string
	for _, l := range layers {
		paths = append(paths, readyPath(dir, l), notReadyPath(dir, l))
	}
	last := map[Layer]string{}
	return record.Watch(ctx, paths, func() {
		for _, l := range layers {
			s, err := Read(dir, l, boot)
			if current := statusKey(s, err); current != last[l] {
				last[l] = current
				report(l, s, err)
			}
		}
		done()
	})
}

// Wait returns nil as soon as all layers are ready at the same time, and a
// *NotReadyError when ctx ends first. report, when not nil, is as for Watch.
func Wait(ctx context.Context, dir string, layers []Layer, boot string, report func(Layer, Status, error)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	unready := map[Layer]*NotReadyError{}
	checked := false
	first := func() *NotReadyError {
		for _, l := range layers {
			if n, found := unready[l]; found {
				return n
			}
		}
		return nil
	}
	err := watch(ctx, dir, layers, boot, func(l Layer, s Status, err error) {
		delete(unready, l)
		if s.Proof == nil {
			unready[l] = &NotReadyError{Layer: l, Status: s, Err: err}
		}
		if report != nil {
			report(l, s, err)
		}
	}, func() {
		checked = true
		if len(unready) == 0 {
			stop()
		}
	})
	switch pending := first(); {
	case checked && pending == nil:
		return nil
	case pending != nil && ctx.Err() != nil:
		pending.Cause = err
		return pending
	}
	return err
}

// statusKey returns a text that differs for different statuses.
func statusKey(s Status, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case s.Proof != nil:
		return "ready " + s.Proof.Summary
	}
	return strings.Join([]string{string(s.NotReady.Reason), s.NotReady.Message, s.NotReady.Action}, "\x00")
}

// ParseLayer returns the layer with the given name, required or optional.
func ParseLayer(name string) (Layer, error) {
	return parseLayer(name, slices.Concat(Layers(), Optional()))
}

// ParseOptional returns the optional layer with the given name.
func ParseOptional(name string) (Layer, error) { return parseLayer(name, Optional()) }

func parseLayer(name string, all []Layer) (Layer, error) {
	if slices.Contains(all, Layer(name)) {
		return Layer(name), nil
	}
	names := make([]string, len(all))
	for i, l := range all {
		names[i] = string(l)
	}
	return "", fmt.Errorf("unknown layer %q%s", name, suggest.Hint(name, names))
}
