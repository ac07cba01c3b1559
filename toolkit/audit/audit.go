// Package audit finds out, before anything is changed, which containers of a node get
// their GPUs by environment alone: NVIDIA_VISIBLE_DEVICES, set by a pod or merely by
// an image, read by a handler. They lose them where such requests of unprivileged
// containers are no longer honoured.
//
// What a container is like is collected from the runtime over its own socket; what
// that means is a pure function, Judge.
package audit

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/pattern"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// Variable is how a container asks for GPUs by its environment.
const Variable = "NVIDIA_VISIBLE_DEVICES"

// Accept is the option by which such requests of unprivileged containers are honoured.
const Accept = "accept-nvidia-visible-devices-envvar-when-unprivileged"

// Container is what is known of a running container.
type Container struct {
	Namespace string `json:"namespace,omitempty"` // of the pod; "" with Docker
	Pod       string `json:"pod,omitempty"`
	Name      string `json:"name"`
	ID        string `json:"id"`
	Image     string `json:"image"`

	Value     string `json:"value"`               // of Variable in its effective environment, the image's included; "" if it is empty or not set
	FromImage bool   `json:"fromImage,omitempty"` // the value is the image's: nobody asked for it

	Privileged bool   `json:"privileged"`        // as a handler sees it: it may have CAP_SYS_ADMIN
	Handler    string `json:"handler,omitempty"` // by name; "" is not known
	Default    bool   `json:"default,omitempty"` // the handler is the one of pods that name none
	Reads      bool   `json:"reads"`             // the handler, or a hook, reads the variable

	CDI    []string `json:"cdi,omitempty"`    // CDI devices that it was given, by name
	Given  bool     `json:"given,omitempty"`  // the runtime itself put GPU nodes and their libraries in, as it does for CDI
	Listed []string `json:"listed,omitempty"` // GPUs that were asked for by volume mounts
	Flag   string   `json:"flag,omitempty"`   // Docker: the option that asked for GPUs

	Looked  bool     `json:"looked"`            // Devices are all there are
	Devices []string `json:"devices,omitempty"` // nodes of GPUs that are in it
}

// Verdict is what becomes of a container's GPUs at its next start.
type Verdict string

// The verdicts.
const (
	Keeps      Verdict = "keeps"      // it has GPUs, and by more than an unprivileged request
	Loses      Verdict = "loses"      // it has them by environment alone
	Unaffected Verdict = "unaffected" // it has none, or not by its environment
)

// Finding is one container, judged.
type Finding struct {
	Container
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	Do      string  `json:"do,omitempty"` // what a person can do
}

// uuids are what a device plugin writes into the variable (its strategy "envvar").
var uuids = pattern.New(`^(GPU|MIG)-[0-9A-Za-z/-]+(,(GPU|MIG)-[0-9A-Za-z/-]+)*$`)

// Judge says what becomes of a container where environment requests of unprivileged
// containers are not honoured.
func Judge(c Container) Finding {
	f := Finding{Container: c, Verdict: Unaffected}
	switch {
	case len(c.CDI) > 0:
		f.Verdict, f.Reason = Keeps, "it was given the CDI device "+strings.Join(c.CDI, ", ")
	case c.Given:
		f.Verdict, f.Reason = Keeps, "the runtime itself gave it GPU nodes and libraries, as it does for CDI"
	case c.Flag != "":
		f.Verdict, f.Reason = Keeps, "it was asked for with "+c.Flag
	case len(c.Listed) > 0:
		f.Verdict, f.Reason = Keeps, "its GPUs are listed by volume mounts: "+strings.Join(c.Listed, ", ")
		f.Do = "leave accept-nvidia-visible-devices-as-volume-mounts on"
	case !Asks(c.Value):
		f.Reason = "it does not ask for GPUs by its environment"
	case !c.Reads:
		f.Reason = Variable + "=" + c.Value + " is read by nobody: its handler is " + c.handler()
	case c.Looked && len(c.Devices) == 0:
		f.Reason = asked(c) + " and has none today"
	case c.Privileged:
		f.Verdict, f.Reason = Keeps, asked(c)+"; it is privileged, and such requests are honoured"
	default:
		f.Verdict, f.Reason, f.Do = Loses, asked(c)+" and is not privileged; nothing else gives it GPUs", advice(c)
	}
	return f
}

// Asks says whether a value of the variable asks for any GPU.
func Asks(value string) bool { return !slices.Contains([]string{"", "void", "none"}, value) }

func asked(c Container) string {
	by := "it asks by "
	if c.FromImage {
		by = "its image alone asks by "
	}
	return by + Variable + "=" + c.Value
}

func (c Container) handler() string {
	switch {
	case c.Handler == "":
		return "not known to be ours"
	case c.Default:
		return c.Handler + ", the default"
	}
	return c.Handler
}

// advice says what a person can do for a container that would lose its GPUs.
func advice(c Container) string {
	accept := "or turn " + Accept + " on for all"
	switch {
	case c.Namespace == "" && c.Pod == "":
		return "run it with --device nvidia.com/gpu=" + device(c.Value) + " or --gpus, " + accept
	case uuids.Matches(c.Value):
		return "if a device plugin allocated them, have it use the device list strategy cdi-cri (or volume-mounts); else request nvidia.com/gpu in the container's limits; " + accept
	case c.FromImage:
		return "if it needs a GPU, request nvidia.com/gpu in the container's limits; " + accept
	}
	return "request nvidia.com/gpu in the container's limits, " + accept
}

// device is one name that a person can try: the value if it is one.
func device(value string) string {
	if strings.ContainsAny(value, ", =\"'") {
		return "all"
	}
	return value
}

// Options are how to audit.
type Options struct {
	// Runtime is docker for Docker's API; everything else is asked over CRI.
	Runtime engine.Kind
	// All is for every container, also those that neither ask for GPUs nor have any.
	All bool
	// Timeout of one call; 0: DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is how long the runtime may take to answer one call: to list a
// hundred containers takes containerd some milliseconds.
const DefaultTimeout = 10 * time.Second

// What a runtime may say; a container's verbose status has some 20 KiB.
const (
	maxAnswer     = 16 << 20
	maxContainers = 4096
	maxText       = 512
	maxItems      = 64
)

// Run judges the running containers of the runtime at a socket of the host, those
// that lose GPUs first. With an error that names containers of which nothing was
// learnt, the findings are of the others. Nothing is changed.
func Run(ctx context.Context, root *host.Root, at string, o Options) ([]Finding, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	collect := overCRI
	if o.Runtime == engine.Docker {
		collect = overDocker
	}
	containers, err := collect(ctx, root, at, o.Timeout)
	findings := []Finding{}
	for _, c := range containers {
		if f := Judge(c); o.All || f.Verdict != Unaffected || Asks(c.Value) || len(c.Devices) > 0 {
			findings = append(findings, f)
		}
	}
	sort(findings)
	return findings, err
}

func sort(findings []Finding) {
	order := []Verdict{Loses, Keeps, Unaffected}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		if x, y := slices.Index(order, a.Verdict), slices.Index(order, b.Verdict); x != y {
			return x - y
		}
		return strings.Compare(a.Where(), b.Where())
	})
}

// Where is the container's name for people: "namespace/pod/container".
func (c Container) Where() string {
	parts := slices.DeleteFunc([]string{c.Namespace, c.Pod, c.Name}, func(s string) bool { return s == "" })
	return strings.Join(parts, "/")
}
