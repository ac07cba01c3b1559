// Package check is the vocabulary of the validator: a node, what is known of
// its driver, and what comes out when a layer of it is checked.
//
// The steps (validator/step/…) each check one layer; Road runs them in order.
package check

import (
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

// Node is where things lie on the node that is checked. All paths are the host's.
type Node struct {
	Root            *host.Root
	BootID          string
	DriverRoot      string // "" where it is to be found out: see FindDriverRoot
	DevRoot         string // "" likewise
	StateDir        string
	CDIDirs         []string // in rising order of precedence
	PodResources    string   // the kubelet's socket
	AllowSimulated  bool
	Injection       string        // what the toolkit gave this container: see internal/injection; "" outside of such a container
	Settle          time.Duration // how long the accounts of plugin and kubelet may differ
	VectorAdd       string        // the sample, a path of this process; "" where there is none
	CUDATimeout     time.Duration // for one GPU
	CUDAConcurrency int           // GPUs at a time
	Status          func() Status // what the API server has of the Node; nil: nobody reads it
}

// Status is what the kubelet has told the API server of the node.
type Status struct {
	Kubelet  string   // version, "v1.31.2"; "" not known
	Handlers []string // of the container runtime; nil: it does not tell them, or they are not known
	// Allocatable is how many of each extended resource, "nvidia.com/gpu", pods may
	// have. The kubelet's own answer is newer; a change of this one is a reason to ask.
	Allocatable map[string]int64
}

// Told is the status as far as it is known.
func (n Node) Told() Status {
	if n.Status == nil {
		return Status{}
	}
	return n.Status()
}

// State reads what a component of the node says of itself.
func (n Node) State(c nodestate.Component) (nodestate.State, error) {
	return nodestate.ReadBoot(n.StatePath(c), n.BootID)
}

// Sees reports whether the file that a host path names is the one that this process
// sees there. A container that was given the GPUs by injection has a root of its own,
// with few of the host's folders in it. Of a driver container's root it has the root
// file system and /dev, and nothing that is mounted elsewhere in it, as sockets and
// firmware are.
func (n Node) Sees(hostPath string) bool {
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

// StatePath is the directory of a component's state, as this process sees it.
func (n Node) StatePath(c nodestate.Component) string {
	return n.Root.Path(n.StateDir + "/" + string(c))
}

// Reading is what NVML, asked once, says about the node.
type Reading struct {
	Snapshot gpu.Snapshot
	Library  string // real path of the libnvidia-ml that answered, as this process sees it
}

// Driver is the driver that was proven: what the later steps build on.
type Driver struct {
	Info    nodestate.DriverInfo
	DevRoot string // host path
	LibDir  string // the folder of its libraries, as this process sees it
	GPUs    []gpu.Device
}

// Unit is what a CUDA program can be given: a GPU, or a MIG device of one that
// is divided.
type Unit struct {
	UUID gpu.UUID
	GPU  gpu.Device
	Name string // for people: "GPU 3 (GPU-…, 0000:3b:00.0)"
}

// Units returns those of all GPUs that the driver finds nothing wrong with.
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

// Subject tells apart all that the result of a CUDA program depends on: driver,
// its files, and GPUs.
func (d Driver) Subject() string {
	var b strings.Builder
	fmt.Fprint(&b, d.Info, d.LibDir)
	for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if info, err := os.Stat(d.LibDir + "/" + library); err == nil {
			fmt.Fprint(&b, info.Size(), info.ModTime())
		}
	}
	for _, u := range d.Units() {
		fmt.Fprint(&b, " ", u.UUID)
	}
	return b.String()
}

// Name is how a GPU is called in front of people.
func Name(g gpu.Device) string {
	return fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.UUID, g.PCI)
}

func migName(g gpu.Device, m gpu.MIGDevice) string {
	return fmt.Sprintf("MIG device %d:%d (%s, %s)", g.Index, m.Index, m.UUID, m.Profile)
}

// Names are how GPUs and their MIG devices are called in front of people.
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

// Kind is what came out of a check.
type Kind string

// The kinds of Outcome.
const (
	Passed Kind = "passed"
	Failed Kind = "failed"
	NotRun Kind = "not run" // an earlier layer is not ready
	Absent Kind = "absent"  // no GPU on this node: nothing to prove
	// Pending: the proof is on its way, and whoever brings it will tell. What
	// was proven before holds until then.
	Pending  Kind = "pending"
	NotAsked Kind = "not asked for" // an optional layer
)

// Reasons that are not one step's own.
const (
	ReasonNotRun      gpu.Reason = "NotRun"
	ReasonNotAsked    gpu.Reason = "NotAsked"
	ReasonNoGPU       gpu.Reason = "NoGPU"
	ReasonInterrupted gpu.Reason = "Interrupted"
	// ReasonInjection: this container was created without the GPUs.
	ReasonInjection gpu.Reason = "InjectionMissing"
)

// Outcome is what came out of the check of a layer.
type Outcome struct {
	Layer   readiness.Layer
	Kind    Kind
	Proof   *readiness.Proof   // with Passed
	Refusal *readiness.Refusal // with all others
	Notes   []string           // what is odd and yet no failure
	Again   bool               // with Passed: less was proven than could be; try again later
	// Allocatable counts, by resource, the devices that the kubelet can give to pods. It is
	// set by layer plugin once all accounts of them agree, also while a pod is still proving it.
	Allocatable map[string]int
	Elapsed     time.Duration
}

// maxText bounds a message: several GPUs' findings are put into one.
const maxText = 4096

// Pass is the Outcome of a layer that was proven. What other programs said in
// it is made fit for a terminal.
func Pass(p readiness.Proof, notes ...string) Outcome {
	p.Summary = record.Clean(p.Summary, maxText)
	for i := range notes {
		notes[i] = record.Clean(notes[i], maxText)
	}
	return Outcome{Kind: Passed, Proof: &p, Notes: notes}
}

// Fail is the Outcome of a layer that was not: one CamelCase word, what is
// wrong, and what to do next.
func Fail(reason gpu.Reason, message, action string) Outcome {
	return Outcome{Kind: Failed, Refusal: &readiness.Refusal{
		Reason: reason, Message: record.Clean(message, maxText), Action: record.Clean(action, maxText),
	}}
}

// NoGPU is the Outcome where there is no GPU on the node.
func NoGPU(message string) Outcome {
	return Outcome{Kind: Absent, Refusal: &readiness.Refusal{
		Reason: ReasonNoGPU, Message: message, Action: "nothing, unless this node should have a GPU",
	}}
}

// Simulated says whether the layer was proven on a driver with no GPU under it.
func (o Outcome) Simulated() bool {
	return o.Proof != nil && o.Proof.Driver != nil && o.Proof.Driver.Simulated
}
