// Package audit finds the containers of a node that get their GPUs only by an
// environment variable: NVIDIA_VISIBLE_DEVICES, set by a pod or merely by an image, and
// read by a handler. They lose them when such requests of unprivileged containers are
// no longer honoured. The audit runs before anything is changed.
//
// It collects the properties of the containers over the runtime's own socket. The
// verdict is a pure function, Judge.
package audit

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Variable is the environment variable by which a container requests GPUs.
const Variable = "NVIDIA_VISIBLE_DEVICES"

// Accept is the option that honours such requests of unprivileged containers.
const Accept = "accept-nvidia-visible-devices-envvar-when-unprivileged"

// Container holds the relevant properties of a running container.
type Container struct {
	Namespace string `json:"namespace,omitempty"` // of the pod; "" with Docker
	Pod       string `json:"pod,omitempty"`
	Name      string `json:"name"`
	ID        string `json:"id"`
	Image     string `json:"image"`

	Value     string `json:"value"`               // of Variable in its effective environment, the image's included; "" if it is empty or not set
	FromImage bool   `json:"fromImage,omitempty"` // the value comes from the image, not from a request

	Privileged bool   `json:"privileged"`        // as a handler defines it: it may have CAP_SYS_ADMIN
	Handler    string `json:"handler,omitempty"` // its name; "" if unknown
	Default    bool   `json:"default,omitempty"` // the handler is the default for pods that name none
	Reads      bool   `json:"reads"`             // the handler, or a hook, reads the variable

	CDI      []string `json:"cdi,omitempty"`    // names of its CDI devices
	Injected bool     `json:"given,omitempty"`  // the runtime itself added GPU nodes and their libraries, as it does for CDI
	Listed   []string `json:"listed,omitempty"` // GPUs that were requested by volume mounts
	Flag     string   `json:"flag,omitempty"`   // Docker: the option that requested GPUs

	Inspected bool     `json:"looked"`            // the container was inspected, and Devices is complete
	Devices   []string `json:"devices,omitempty"` // GPU device nodes in the container
}

// Verdict is the fate of a container's GPUs at its next start.
type Verdict string

// The verdicts.
const (
	Keeps      Verdict = "keeps"      // it has GPUs by more than an unprivileged request
	Loses      Verdict = "loses"      // it has GPUs only by its environment
	Unaffected Verdict = "unaffected" // it has none, or not by its environment
)

// Finding is a container with its verdict.
type Finding struct {
	Container
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	Advice  string  `json:"do,omitempty"` // the advice
}

// uuids matches the values that a device plugin sets (its strategy "envvar").
var uuids = regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z/-]+(,(GPU|MIG)-[0-9A-Za-z/-]+)*$`)

// Judge returns the finding for a container, assuming that environment requests of
// unprivileged containers are not honoured.
func Judge(c Container) Finding {
	f := Finding{Container: c, Verdict: Unaffected}
	switch {
	case len(c.CDI) > 0:
		f.Verdict, f.Reason = Keeps, "it was given the CDI device "+strings.Join(c.CDI, ", ")
	case c.Injected:
		f.Verdict, f.Reason = Keeps, "the runtime itself gave it GPU nodes and libraries, as it does for CDI"
	case c.Flag != "":
		f.Verdict, f.Reason = Keeps, "its GPUs were requested with "+c.Flag
	case len(c.Listed) > 0:
		f.Verdict, f.Reason = Keeps, "its GPUs are listed by volume mounts: "+strings.Join(c.Listed, ", ")
		f.Advice = "leave accept-nvidia-visible-devices-as-volume-mounts on"
	case !requestsGPUs(c.Value):
		f.Reason = "it does not request GPUs by its environment"
	case !c.Reads:
		f.Reason = "nothing reads " + Variable + "=" + c.Value + ": its handler is " + c.handler()
	case c.Inspected && len(c.Devices) == 0:
		f.Reason = request(c) + " and has none today"
	case c.Privileged:
		f.Verdict, f.Reason = Keeps, request(c)+"; it is privileged, and such requests are honoured"
	default:
		f.Verdict, f.Reason, f.Advice = Loses, request(c)+" and is not privileged; nothing else gives it GPUs", advice(c)
	}
	return f
}

// requestsGPUs reports whether a value of the variable requests any GPU.
func requestsGPUs(value string) bool { return !slices.Contains([]string{"", "void", "none"}, value) }

// request describes a container's request for GPUs.
func request(c Container) string {
	by := "it requests GPUs by "
	if c.FromImage {
		by = "only its image requests GPUs, by "
	}
	return by + Variable + "=" + c.Value
}

func (c Container) handler() string {
	switch {
	case c.Handler == "":
		return "unknown"
	case c.Default:
		return c.Handler + ", the default"
	}
	return c.Handler
}

// advice returns the advice for a container that would lose its GPUs.
func advice(c Container) string {
	accept := "or turn " + Accept + " on for all"
	switch {
	case c.Namespace == "" && c.Pod == "":
		return "run it with --device nvidia.com/gpu=" + device(c.Value) + " or --gpus, " + accept
	case uuids.MatchString(c.Value):
		return "if a device plugin allocated them, have it use the device list strategy cdi-cri (or volume-mounts); else request nvidia.com/gpu in the container's limits; " + accept
	case c.FromImage:
		return "if it needs a GPU, request nvidia.com/gpu in the container's limits; " + accept
	}
	return "request nvidia.com/gpu in the container's limits, " + accept
}

// device returns a device name to try: the value if it is one.
func device(value string) string {
	if strings.ContainsAny(value, ", =\"'") {
		return "all"
	}
	return value
}

// Options are the options of an audit.
type Options struct {
	// Runtime selects Docker's API if it is runtime.Docker, and CRI otherwise.
	Runtime runtime.Kind
	// All includes containers that neither request GPUs nor have any.
	All bool
	// Timeout limits one call; 0 means defaultTimeout.
	Timeout time.Duration
}

// defaultTimeout limits one call to the runtime. To list a hundred containers takes
// containerd a few milliseconds.
const defaultTimeout = 10 * time.Second

// Limits on responses of a runtime. A container's verbose status has about 20 KiB.
const (
	maxResponse   = 16 << 20
	maxContainers = 4096
	maxText       = 512
	maxItems      = 64
)

// Run judges the running containers of the runtime at a socket of the host, those that
// lose GPUs first. If some containers cannot be inspected, the error names them and the
// findings cover the others. Nothing is changed.
func Run(ctx context.Context, root *host.Root, at string, o Options) ([]Finding, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	collect := collectCRI
	if o.Runtime == runtime.Docker {
		collect = collectDocker
	}
	containers, err := collect(ctx, root, at, o.Timeout)
	findings := []Finding{}
	for _, c := range containers {
		if f := Judge(c); o.All || f.Verdict != Unaffected || requestsGPUs(c.Value) || len(c.Devices) > 0 {
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

// Where returns the container's display name: "namespace/pod/container".
func (c Container) Where() string {
	parts := slices.DeleteFunc([]string{c.Namespace, c.Pod, c.Name}, func(s string) bool { return s == "" })
	return strings.Join(parts, "/")
}
