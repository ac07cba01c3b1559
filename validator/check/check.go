// Package check defines the vocabulary of the validator: a node, its driver, and the
// outcome of the check of a layer.
//
// The steps (validator/step) each check one layer; Pipeline runs them in order.
package check

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
)

// Node locates the parts of the node that is checked. All paths are the host's.
type Node struct {
	Root            *host.Root
	BootID          string
	DriverRoot      string // "": found by FindDriverRoot
	DevRoot         string // "" likewise
	StateDir        string
	CDIDirs         []string // in rising order of precedence
	PodResources    string   // the kubelet's socket
	AllowSimulated  bool
	ExpectGPUs      int           // how many GPUs must be usable; 0: at least one
	Strict          bool          // whether each GPU that the node shows must be usable
	Injection       string        // set by the toolkit for this container: see internal/injection; "" outside of such a container
	Settle          time.Duration // how long the accounts of plugin and kubelet may differ
	VectorAdd       string        // the sample, a path of this process; "" where there is none
	CUDATimeout     time.Duration // for one GPU
	CUDAConcurrency int           // GPUs at a time
	Status          func() Status // the Node's status in the API server; nil: it is not read
	// ReadUsage asks the driver who uses each GPU and MIG device; nil: it is not asked.
	ReadUsage func(context.Context, Node) (map[gpu.UUID]gpu.Usage, error)
	// OwnPod is the pod, "namespace/name", that proves layer plugin: it uses a GPU for a moment, and does not
	// count as its holder.
	OwnPod string
	// KeptProof is the file, a path of this process, by which the proof of layer cuda survives restarts
	// of the validator; "": each check computes.
	KeptProof string
}

// Status is the node's status that the kubelet reported to the API server.
type Status struct {
	Kubelet  string   // version, "v1.31.2"; "" not known
	Handlers []string // of the container runtime; nil: not reported, or not known
	// Allocatable counts the devices that pods may use, by extended resource, "nvidia.com/gpu".
	// The kubelet's own answer is newer; a change here is a reason to ask for it.
	Allocatable map[string]int64
}

// KnownStatus returns the status, as far as it is known.
func (n Node) KnownStatus() Status {
	if n.Status == nil {
		return Status{}
	}
	return n.Status()
}

// State reads the state file of a component of the node.
func (n Node) State(c nodestate.Component) (nodestate.State, error) {
	return nodestate.ReadBoot(n.StatePath(c), n.BootID)
}

// Visible reports whether a host path names the same file for this process. A container
// with injected GPUs has its own root, with few of the host's folders in it. Of a driver
// container's root it has the root file system and /dev, but none of the mounts elsewhere
// in it, such as sockets and firmware.
func (n Node) Visible(hostPath string) bool {
	if n.Injection == "" || n.Root.Dir() != "/" {
		return true
	}
	below := func(dir string) bool {
		return dir != "/" && (hostPath == dir || strings.HasPrefix(hostPath, dir+"/"))
	}
	if below(n.StateDir) {
		return true
	}
	return below(n.DriverRoot) && !strings.Contains(hostPath, "/lib/firmware/") &&
		slices.ContainsFunc([]string{"usr", "lib", "lib64", "bin", "sbin", "dev"}, func(dir string) bool { return below(path.Join(n.DriverRoot, dir)) })
}

// StatePath returns the directory of a component's state, as this process sees it.
func (n Node) StatePath(c nodestate.Component) string {
	return n.Root.Path(n.StateDir + "/" + string(c))
}

// Reading is one answer of NVML about the node.
type Reading struct {
	Snapshot gpu.Snapshot
	Library  string // real path of the libnvidia-ml that answered, as this process sees it
}

// Driver is the proven driver, on which the later steps build.
type Driver struct {
	Info    nodestate.DriverInfo
	DevRoot string   // host path
	LibDirs []string // the folders of its libraries, as this process sees them: first that of libnvidia-ml
	// Module identifies one loading of the kernel module; "": not known, as with a simulated driver.
	Module string
	GPUs   []gpu.Device
	// OnDemand reports whether MIG devices are created for claims. They come and go, and belong to the
	// pods with the claims: GPUs has none then, and nothing is run on them.
	OnDemand bool
}

// Unit is a device for a CUDA program: a GPU, or a MIG device of a GPU that is divided.
type Unit struct {
	UUID gpu.UUID
	GPU  gpu.Device
	Name string // for people: "GPU 3 (GPU-…, 0000:3b:00.0)"
}

// Units returns the units of all GPUs without a fault reported by the driver.
func (d Driver) Units() []Unit {
	var units []Unit
	for _, g := range d.GPUs {
		if g.Fault != (gpu.Fault{}) {
			continue
		}
		if !g.MIGEnabled {
			units = append(units, Unit{UUID: g.UUID, GPU: g, Name: Name(g)})
		}
		for _, m := range g.MIG {
			units = append(units, Unit{UUID: m.UUID, GPU: g, Name: migName(g, m)})
		}
	}
	return units
}

// Subject identifies everything that the result of a CUDA program depends on: the
// driver, its files, and the GPUs.
func (d Driver) Subject() string {
	var b strings.Builder
	b.WriteString(d.Files())
	for _, u := range d.Units() {
		fmt.Fprint(&b, " ", u.UUID)
	}
	return b.String()
}

// Files identifies the driver, as it is loaded, and the files of it that a CUDA program loads.
func (d Driver) Files() string {
	var b strings.Builder
	fmt.Fprint(&b, d.Info, d.LibDirs)
	if d.Module != "" {
		fmt.Fprint(&b, " ", d.Module)
	}
	for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		for _, dir := range d.LibDirs {
			if info, err := os.Stat(dir + "/" + library); err == nil {
				fmt.Fprint(&b, " ", info.Size(), " ", info.ModTime().UnixNano())
				break
			}
		}
	}
	return b.String()
}

// Name returns the name of a GPU for people.
func Name(g gpu.Device) string {
	return fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.UUID, g.PCI)
}

func migName(g gpu.Device, m gpu.MIGDevice) string {
	return fmt.Sprintf("MIG device %d:%d (%s, %s)", g.Index, m.Index, m.UUID, m.Profile)
}

// Names returns the names of GPUs and their MIG devices for people.
func Names(gpus []gpu.Device) map[gpu.UUID]string {
	names := map[gpu.UUID]string{}
	for _, g := range gpus {
		names[g.UUID] = Name(g)
		for _, m := range g.MIG {
			names[m.UUID] = migName(g, m)
		}
	}
	return names
}

// Kind is the kind of an Outcome.
type Kind string

// The kinds of Outcome.
const (
	Passed Kind = "passed"
	Failed Kind = "failed"
	NotRun Kind = "not run" // an earlier layer is not ready
	Absent Kind = "absent"  // no GPU on this node: nothing to prove
	// Pending: the proof is not finished, and its end triggers a check. An earlier
	// proof holds until then.
	Pending   Kind = "pending"
	NotWanted Kind = "not asked for" // an optional layer
)

// Reasons that several steps share.
const (
	ReasonNotRun      gpu.Reason = "NotRun"
	ReasonNotWanted   gpu.Reason = "NotAsked"
	ReasonNoGPU       gpu.Reason = "NoGPU"
	ReasonInterrupted gpu.Reason = "Interrupted"
	// ReasonInjection: this container was created without the GPUs.
	ReasonInjection gpu.Reason = "InjectionMissing"
)

// Outcome is the result of the check of a layer.
type Outcome struct {
	Layer    readiness.Layer
	Kind     Kind
	Proof    *readiness.Proof    // with Passed
	NotReady *readiness.NotReady // with all others
	Notes    []string            // oddities that are no failure
	Retry    bool                // with Passed: less was proven than could be; try again later
	// Unproven lists the devices on which layer cuda is not proven now, since others use them. That is
	// no failure: with Passed, they were left out.
	Unproven []Unproven
	// Away is set, with Failed, while the component of the layer may be being replaced.
	Away Absence
	// Allocatable counts the devices that the kubelet can allocate to pods, by resource. Layer
	// plugin sets it once all accounts agree, even while a pod is still proving it.
	Allocatable map[string]int
	// Holders are the pods ("namespace/name") that hold each device, as the kubelet reported them to
	// layer plugin at HoldersTime.
	Holders     map[gpu.UUID][]string
	HoldersTime time.Time
	Elapsed     time.Duration
}

// Absence is the state of a component that may be being replaced.
type Absence string

// The states of a component that is replaced, in their order.
const (
	Present Absence = ""
	Stopped Absence = "stopped"  // it was told to end, or has just begun
	Waiting Absence = "starting" // it runs, and does not serve yet
)

// Unproven describes a GPU or MIG device that was not proven, since others use it.
type Unproven struct {
	Unit   Unit
	Reason gpu.Reason
	// Code is the result (CUresult) with which the sample failed there; 0: it was not run.
	Code      int
	Pods      []string      // that hold it, "namespace/name"
	Processes []gpu.Process // that use it, as far as this process can see
	Message   string        // for people: who uses it
}

// maxText bounds a message: it may hold the findings of several GPUs.
const maxText = 4096

// NewPass returns the Outcome of a proven layer. Text from other programs is cleaned for a
// terminal.
func NewPass(p readiness.Proof, notes ...string) Outcome {
	p.Summary = record.Clean(p.Summary, maxText)
	for i := range notes {
		notes[i] = record.Clean(notes[i], maxText)
	}
	return Outcome{Kind: Passed, Proof: &p, Notes: notes}
}

// Fail returns the Outcome of a failed layer: a reason of one CamelCase word, what is
// wrong, and what to do next.
func Fail(reason gpu.Reason, message, action string) Outcome {
	return Outcome{Kind: Failed, NotReady: &readiness.NotReady{
		Reason: reason, Message: record.Clean(message, maxText), Action: record.Clean(action, maxText),
	}}
}

// NoGPU returns the Outcome of a node without a GPU.
func NoGPU(message string) Outcome {
	return Outcome{Kind: Absent, NotReady: &readiness.NotReady{
		Reason: ReasonNoGPU, Message: message, Action: "nothing, unless this node should have a GPU",
	}}
}

// Simulated reports whether the layer was proven on a driver with no GPU under it.
func (o Outcome) Simulated() bool {
	return o.Proof != nil && o.Proof.Driver != nil && o.Proof.Driver.Simulated
}
