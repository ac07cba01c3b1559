// Package nodestate reads and writes the states of the components on a node.
// Each component reports its own state to the others in a file that only it
// writes, <state-dir>/<component>/state.json.
//
// Readers treat a state as untrusted input: it is bounded in size, checked field by field, and
// used only if it was written in the current boot.
package nodestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Component names the writer of a state; its directory has the same name.
type Component string

// The components of a node.
const (
	Driver       Component = "driver"
	Toolkit      Component = "toolkit"
	DevicePlugin Component = "deviceplugin"
	Validator    Component = "validator"
	MPS          Component = "mps"
	DRADriver    Component = "dra-driver"
)

// Phase is the progress of a component.
type Phase string

// The phases. Ready and Degraded components do their work; Reason and Message say what is missing.
const (
	Waiting  Phase = "Waiting"  // it cannot work yet, but needs no intervention: it waits for something, or has ended in good order
	Ready    Phase = "Ready"    // all that the configuration asks for works, even if that is nothing
	Degraded Phase = "Degraded" // it works in part
	Failed   Phase = "Failed"   // it does not work, and somebody has to do something
)

// Version is the version of the schema. A reader refuses a version that it does
// not know; within a version fields are only ever added.
const Version = 1

// FileName is the name of the state file in its component's directory.
const FileName = "state.json"

// MaxBytes bounds the size of a state.
const MaxBytes = 1 << 20

// State is a component's report about itself.
type State struct {
	Version   int        `json:"version"`
	Component Component  `json:"component"`
	BootID    string     `json:"bootID"` // of the boot in which it was written
	Time      time.Time  `json:"time"`   // when it was written
	Phase     Phase      `json:"phase"`
	Reason    gpu.Reason `json:"reason,omitempty"`  // CamelCase; why the phase is what it is
	Message   string     `json:"message,omitempty"` // one sentence for people
	// Unserved lists the settings that are accepted and have no effect. It has at most MaxUnserved
	// entries.
	Unserved []Setting `json:"unserved,omitempty"`

	Driver       *DriverInfo       `json:"driver,omitempty"`
	Toolkit      *ToolkitInfo      `json:"toolkit,omitempty"`
	DevicePlugin *DevicePluginInfo `json:"devicePlugin,omitempty"`
	Validator    *ValidatorInfo    `json:"validator,omitempty"`
	MPS          *MPSInfo          `json:"mps,omitempty"`
	DRADriver    *DRADriverInfo    `json:"draDriver,omitempty"`
}

// Setting is a setting that a component accepts, but does not follow.
type Setting struct {
	Name    string `json:"name"`    // as the user wrote it: "CREATE_DEVICE_NODES", "deviceListStrategy=envvar"
	Message string `json:"message"` // why it has no effect, and what to do
}

// MaxUnserved bounds State.Unserved.
const MaxUnserved = 64

// DriverInfo is the driver that a component works with.
type DriverInfo struct {
	Root        string `json:"root"`    // host path
	Version     string `json:"version"` // "580.95.05"
	CUDAVersion string `json:"cudaVersion,omitempty"`
	Simulated   bool   `json:"simulated,omitempty"`
}

// ToolkitInfo lists the files and settings that the toolkit has put in place.
type ToolkitInfo struct {
	Specs   []Spec `json:"specs,omitempty"`
	Hook    string `json:"hook,omitempty"`    // host path of gpu-cdi-hook
	Handler string `json:"handler,omitempty"` // name of the runtime handler that the configuration asks for; "": none
	// HandlerAccepts lists how that handler lets unprivileged containers request GPUs: envvar,
	// volume-mounts. nil: there is no handler, or the state is of an earlier version.
	HandlerAccepts []string   `json:"handlerAccepts,omitzero"`
	Runtime        *Runtime   `json:"runtime,omitempty"`   // nil: the runtime was not queried
	Injection      *Injection `json:"injection,omitempty"` // nil: injection is off, or the toolkit has not tried it yet
}

// Runtime describes the container runtime as reported over its CRI socket.
type Runtime struct {
	Socket   string   `json:"socket"`         // host path
	Name     string   `json:"name,omitempty"` // "containerd"; "" if it has not answered
	Version  string   `json:"version,omitempty"`
	CDI      *bool    `json:"cdi,omitempty"` // whether it resolves CDI names; nil: it does not report that
	CDIDirs  []string `json:"cdiDirs,omitempty"`
	Handlers []string `json:"handlers,omitempty"`
	// GPUHandlers lists the handlers that give containers the GPUs that they request by
	// variables or mounts. nil: they are not known.
	GPUHandlers    []string `json:"gpuHandlers,omitzero"`
	DefaultHandler string   `json:"defaultHandler,omitempty"` // of pods that name none; "": not known
	Message        string   `json:"message,omitempty"`        // why containers may not get GPUs with it, and what to change; "": no problem is known
}

// Injection describes whether the toolkit injects the GPUs' device nodes and the driver's
// libraries into containers: into those of node agents, and of workloads that may request them.
// See package injection.
type Injection struct {
	Working    bool   `json:"working"`              // a container created now gets the devices and libraries
	Generation string `json:"generation,omitempty"` // hash of what is injected; "" while there is nothing to inject
	Message    string `json:"message,omitempty"`    // why it does not work, and what to do
	// Missed lists containers, namespace/pod/container, that were created without their
	// GPUs because no injector was running. It has at most MaxMissed entries;
	// MissedCount counts all. Deleting their pods helps.
	Missed      []string `json:"missed,omitempty"`
	MissedCount int      `json:"missedCount,omitempty"`
}

// MaxMissed bounds Injection.Missed.
const MaxMissed = 16

// Spec is a CDI spec file.
type Spec struct {
	Kind    string   `json:"kind"` // "k8s.gpuready.io/gpu"
	Path    string   `json:"path"` // host path
	Devices []string `json:"devices,omitempty"`
}

// DevicePluginInfo describes the devices that the device plugin offers to the kubelet.
type DevicePluginInfo struct {
	KubeletSocket string `json:"kubeletSocket"` // host path
	Registered    bool   `json:"registered"`    // all resources are registered with the kubelet
	// Serve names the program that offers the GPUs to pods: ServePlugin or ServeDRA. "": written
	// by an earlier version, whose device plugin offers them.
	Serve string `json:"serve,omitempty"`
	// MIG is MIGDynamic if the device plugin creates and destroys partitions of GPUs in MIG mode on
	// request; "" or MIGExisting: it does not.
	MIG string `json:"mig,omitempty"`
	// LayoutRead is the time at which the reading of the GPUs began that first showed the present GPU
	// instances of the inventory. zero: there was none, or written by an earlier version.
	LayoutRead time.Time `json:"layoutRead,omitzero"`
	// SwitchID identifies the latest change of Serve, which gpu-dra-driver repeats when it has
	// followed. "": Serve is as it was at the start of this boot.
	SwitchID string `json:"switchID,omitempty"`
	// Wanted names the program that is to offer the GPUs next; "": Serve names it.
	Wanted string `json:"wanted,omitempty"`
	// DRADriverSeen reports that gpu-dra-driver has run in this boot, so that claims may hold devices.
	DRADriverSeen bool `json:"draDriverSeen,omitempty"`
	// Withheld lists the devices that nobody is offered, since pods of the other side may hold them.
	Withheld  []Withheld      `json:"withheld,omitempty"`
	Resources []Resource      `json:"resources,omitempty"`
	LeftOut   []LeftOutDevice `json:"left,omitempty"`
	Faults    []Fault         `json:"faults,omitempty"`
	// Inventory lists the GPUs and MIG devices of this boot, for a program that offers them in
	// another way than Resources. nil: not known yet, or written by an earlier version.
	Inventory []GPU `json:"inventory,omitzero"`
	// Labels are the labels to set on the Node, by full name. They are features of
	// GPUs and nothing else: see labels.go. nil: they are in a feature file instead, or not
	// known yet; a reader then leaves the Node's labels as they are.
	Labels map[string]string `json:"labels,omitzero"`
	// IgnoredKeys are the unknown keys of the configuration file that were ignored
	// because of --unknown-keys=warn. It has at most MaxIgnoredKeys entries.
	IgnoredKeys []string `json:"ignoredKeys,omitempty"`
}

// The values of DevicePluginInfo.Serve.
const (
	ServePlugin = "plugin" // the device plugin, as resources that it registers with the kubelet
	ServeDRA    = "dra"    // gpu-dra-driver, as ResourceSlices; the device plugin registers nothing
)

// The values of DevicePluginInfo.MIG.
const (
	MIGExisting = "existing" // the MIG devices that exist are offered
	MIGDynamic  = "dynamic"  // those that can be created as well
)

// MaxIgnoredKeys bounds DevicePluginInfo.IgnoredKeys.
const MaxIgnoredKeys = 64

// ConfigLabel is the label by which a node chooses the device plugin's configuration.
const ConfigLabel = "nvidia.com/device-plugin.config"

// ValidatorInfo is information for the other components from the validator, the only
// one that reads the Node.
type ValidatorInfo struct {
	// NodeLabels holds the Node's labels that select a configuration, today only
	// ConfigLabel. nil: the Node has not been read yet in this boot. A label
	// that the Node does not have is absent.
	NodeLabels map[string]string `json:"nodeLabels,omitzero"`
	// Serve is the value of the Node's ServeLabel. "": it has no such label, or NodeLabels is nil.
	Serve string `json:"serve,omitempty"`
}

// MPSInfo lists the resources that the MPS control daemons on the node serve.
type MPSInfo struct {
	Resources []MPSResource `json:"resources,omitempty"`
	// Claimed lists the GPUs whose compute mode the writer has set, or is about to
	// set, and has not restored.
	Claimed []gpu.UUID `json:"claimed,omitempty"`
	// ClaimsLost reports that a state of this boot could not be read, so that Claimed may lack GPUs whose
	// mode an earlier process has set.
	ClaimsLost bool `json:"claimsLost,omitempty"`
}

// MPSResource is the control daemon of one resource.
type MPSResource struct {
	Name string     `json:"name"`           // "nvidia.com/gpu.shared"
	Root string     `json:"root,omitempty"` // host path of the daemon's own folder
	GPUs []gpu.UUID `json:"gpus,omitempty"` // the GPUs that it was started for
	// Replicas is the number of replicas for which the limits of each GPU are set.
	// Allocating more than that overcommits the GPU.
	Replicas map[gpu.UUID]int `json:"replicas,omitempty"`
	Ready    bool             `json:"ready"` // the daemon answers, and its limits are set
	Reason   gpu.Reason       `json:"reason,omitempty"`
	Message  string           `json:"message,omitempty"` // why it is not ready
}

// LeftOutDevice is a GPU or MIG device that is not offered to the kubelet at all.
type LeftOutDevice struct {
	GPU     gpu.UUID   `json:"gpu,omitempty"` // the GPU or MIG device; "": the driver cannot tell
	Reason  gpu.Reason `json:"reason"`
	Message string     `json:"message,omitempty"`
}

// Resource is an extended resource, "nvidia.com/gpu".
type Resource struct {
	Name    string   `json:"name"`
	Devices []Device `json:"devices,omitempty"`
}

// Health is the health of a device, in the kubelet's words.
type Health string

// The health values.
const (
	Healthy   Health = "Healthy"
	Unhealthy Health = "Unhealthy"
)

// Device is an allocatable unit: a GPU, a MIG device, or the replicas of one.
type Device struct {
	ID       string     `json:"id"`
	GPU      gpu.UUID   `json:"gpu"`                // the GPU or MIG device behind it
	Replicas int        `json:"replicas,omitempty"` // 0: not shared; else see IDs
	Health   Health     `json:"health"`
	Reason   gpu.Reason `json:"reason,omitempty"`
	Message  string     `json:"message,omitempty"`
	Action   string     `json:"action,omitempty"` // what a person should do; "": nothing, or the message has it
	Since    time.Time  `json:"since,omitzero"`   // of Reason
	NUMANode *int       `json:"numaNode,omitempty"`
	MIG      *MIG       `json:"mig,omitempty"` // nil: a whole GPU, or written by an earlier version
}

// MIG describes a MIG device for readers that cannot query its GPU, for example
// because the GPU is gone.
type MIG struct {
	Parent          gpu.UUID `json:"parent"` // the GPU
	Index           int      `json:"index"`  // among the MIG devices of the GPU
	Profile         string   `json:"profile"`
	GPUInstance     int      `json:"gpuInstance"`
	ComputeInstance int      `json:"computeInstance"`
}

// IDs returns the device IDs known to the kubelet: the device's own, or those of
// its replicas, ID::0 and so on. Replicas share the health of the device. A state
// lists the device once because there may be more replicas than it can hold.
func (d Device) IDs() []string {
	if d.Replicas <= 0 {
		return []string{d.ID}
	}
	ids := make([]string, d.Replicas)
	for i := range ids {
		ids[i] = d.ID + "::" + strconv.Itoa(i)
	}
	return ids
}

// Fault records why a GPU, or one MIG instance of it, is unhealthy. The device
// plugin keeps it across its own restarts.
type Fault struct {
	GPU             gpu.UUID   `json:"gpu"`
	GPUInstance     *int       `json:"gpuInstance,omitempty"`     // nil: the whole GPU
	ComputeInstance *int       `json:"computeInstance,omitempty"` // nil: the whole GPU instance
	Reason          gpu.Reason `json:"reason"`
	Message         string     `json:"message,omitempty"`
	XID             uint64     `json:"xid,omitempty"`
	Since           time.Time  `json:"since"`
	// Needs is the evidence required, besides a snapshot without faults, before the GPU counts
	// as healthy again. "" means EvidenceReset; a reader treats an unknown value as
	// EvidenceReload.
	Needs Evidence `json:"needs,omitempty"`
	// Evidence was found since: EvidenceReset or EvidenceReload; "": neither.
	Evidence Evidence `json:"evidence,omitempty"`
}

// Evidence names an observation that shows a faulty GPU to be healthy again.
type Evidence string

// The kinds of evidence, from the weakest.
const (
	EvidenceSnapshot Evidence = "snapshot" // a snapshot without a fault, which every kind requires
	EvidenceQuiet    Evidence = "quiet"    // a period without another event, and a probe that passed
	EvidenceReset    Evidence = "reset"    // the GPU was seen out of service
	EvidenceReload   Evidence = "reload"   // the driver's kernel module was unloaded or replaced
)

// Errors that Read wraps, besides fs.ErrNotExist.
var (
	// ErrStale means that the state is from before the machine was started.
	ErrStale = errors.New("from an earlier boot")
	// ErrInvalid means that the file is not a state.
	ErrInvalid = errors.New("not a valid state")
	// ErrUnwritten means that the file is empty: its writer could not write it, and emptied it
	// because the old state was no longer true. It is also an ErrInvalid.
	ErrUnwritten = fmt.Errorf("%w: it is empty, because its writer cannot write it", ErrInvalid)
)

// Write replaces the state in dir, which is <state-dir>/<component>. It sets
// Version and Time, and BootID if it is empty. After an error the file is empty or
// gone, because the old state is no longer true: see record.Replace.
func Write(dir string, s State) error {
	path := filepath.Join(dir, FileName)
	data, err := s.encode()
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), record.Clear(path))
	}
	return record.Replace(path, data)
}

// encode returns the content of a file with the state.
func (s State) encode() ([]byte, error) {
	s.Version, s.Time = Version, time.Now().UTC()
	if s.BootID == "" {
		boot, err := BootID()
		if err != nil {
			return nil, err
		}
		s.BootID = boot
	}
	s = s.sanitized()
	if err := s.validate(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	if len(data) >= MaxBytes {
		return nil, fmt.Errorf("the state has %d bytes, no more than %d may be written", len(data), MaxBytes)
	}
	return append(data, '\n'), nil
}

// Read returns the state in dir, if it was written in this boot.
func Read(dir string) (State, error) {
	boot, err := BootID()
	if err != nil {
		return State{}, err
	}
	return ReadBoot(dir, boot)
}

// ReadBoot is like Read with the boot ID given, as from BootIDAt. With ErrStale it
// also returns the State, which was written before the reboot.
func ReadBoot(dir, boot string) (State, error) {
	path := filepath.Join(dir, FileName)
	data, err := record.Read(path, MaxBytes)
	switch {
	case errors.Is(err, record.ErrInvalid):
		return State{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return State{}, err
	}
	if len(data) == 0 {
		return State{}, fmt.Errorf("%s: %w; %s", path, ErrUnwritten, record.FreeSpace(dir))
	}
	s, err := Parse(data)
	if err != nil {
		return State{}, fmt.Errorf("%s: %w", path, err)
	}
	if want := Component(filepath.Base(filepath.Clean(dir))); want.isKnown() && s.Component != want {
		return State{}, fmt.Errorf("%s: %w: it says that it is of component %q", path, ErrInvalid, s.Component)
	}
	if s.BootID != boot {
		return s, fmt.Errorf("%s: %w (boot %s, now %s)", path, ErrStale, s.BootID, boot)
	}
	return s, nil
}

// Watch calls deliver at once and whenever the state in dir changes, until ctx
// ends; it then returns ctx.Err(). dir need not exist yet. An error that stays
// the same is delivered once.
func Watch(ctx context.Context, dir string, deliver func(State, error)) error {
	boot, err := BootID()
	if err != nil {
		return err
	}
	return WatchBoot(ctx, dir, boot, deliver)
}

// WatchBoot is like Watch with the boot ID given, as from BootIDAt.
func WatchBoot(ctx context.Context, dir, boot string, deliver func(State, error)) error {
	last := ""
	return record.Watch(ctx, []string{filepath.Join(dir, FileName)}, func() {
		s, err := ReadBoot(dir, boot)
		current := s.Time.String()
		if err != nil {
			current = err.Error()
		}
		if current == last {
			return
		}
		last = current
		deliver(s, err)
	})
}

// IsAbsent reports whether err means that a component has not written a state in
// this boot: there is none, or it is from an earlier boot.
func IsAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrStale)
}
