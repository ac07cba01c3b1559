package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	baseconfig "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/pattern"
)

// Bounds of replicas.
const (
	minReplicas = 2 // NVIDIA's: one replica shares nothing
	// maxReplicas has no counterpart in NVIDIA's device plugin, but the kubelet refuses
	// longer lists: its gRPC allows 4 MiB, and 50,000 devices of one GPU are 3.5 MB. There
	// are users with 16,384 (github.com/NVIDIA/k8s-device-plugin/issues/1433).
	maxReplicas = MaxDevices
	// maxClients is the maximum number of MPS clients of a GPU since Volta (CUDA
	// Multi-Process Service, "Client-Server Connection Limits").
	maxClients = 48
)

// MaxDevices is the maximum number of devices of one resource: the kubelet would refuse
// a longer list as a whole.
const MaxDevices = 50000

// Sharing configures which devices several containers share, and how.
type Sharing struct {
	TimeSlicing *Replicated `json:"timeSlicing,omitempty" doc:"Containers take turns on the GPU. Nothing keeps them from each other's faults or memory."`
	MPS         *Replicated `json:"mps,omitempty" doc:"Containers run at once, through the CUDA Multi-Process Service, each with its part of the memory and the threads."`
}

// Replicated lists the resources whose devices are advertised several times.
type Replicated struct {
	RenameByDefault            bool                 `json:"renameByDefault,omitempty" doc:"Advertise shared devices as <name>.shared, so that nobody gets one unasked. Default: false."`
	FailRequestsGreaterThanOne *bool                `json:"failRequestsGreaterThanOne,omitempty" doc:"Refuse a container that asks for more than one replica. Default: false with timeSlicing, true with mps."`
	Resources                  []ReplicatedResource `json:"resources,omitempty" doc:"The resources that are shared. One may stand there twice when both list its devices."`
}

// ReplicatedResource is a resource whose devices are advertised several times.
type ReplicatedResource struct {
	Name     string     `json:"name" required:"true" doc:"Name of the resource whose devices are shared."`
	Rename   string     `json:"rename,omitempty" doc:"Name of the resource under which the replicas are advertised. Default: name, or name.shared with renameByDefault."`
	Devices  Replicable `json:"devices" doc:"Which of its devices are shared: all, how many, or a list of indexes (0), MIG indexes (0:1) and UUIDs. Default: all."`
	Replicas int        `json:"replicas" required:"true" min:"2" max:"50000" doc:"How many times each device is advertised, 2 or more; with mps no more than 48."`
}

// Replicable are devices of a resource: all, the first Count, or those of List.
type Replicable struct {
	All   bool
	Count int
	List  []string // of "0", "0:1" and UUIDs

	wrong string // an invalid value as written
}

// SharingMPS is the strategy that Active returns for MPS.
const SharingMPS = "mps"

// Active returns the sharing in force; strategy is "none", "time-slicing" or "mps".
func (s Sharing) Active() (strategy string, r *Replicated) {
	switch {
	case s.MPS != nil && len(s.MPS.Resources) > 0:
		return SharingMPS, s.MPS
	case s.TimeSlicing != nil && len(s.TimeSlicing.Resources) > 0:
		return "time-slicing", s.TimeSlicing
	}
	return "none", &Replicated{}
}

// complete gives names their full form, and devices their default.
func (r *Replicated) complete() {
	for i := range r.Resources {
		one := &r.Resources[i]
		one.Name, one.Rename = qualifiedName(one.Name), qualifiedName(one.Rename)
		if one.Rename == "" && r.RenameByDefault && one.Name != "" {
			one.Rename = one.Name + sharedSuffix
		}
		if d := one.Devices; d.Count == 0 && d.List == nil && d.wrong == "" {
			one.Devices.All = true
		}
	}
}

// UnmarshalJSON implements json.Unmarshaler. It accepts anything, so that problems can
// report an error with its path.
func (d *Replicable) UnmarshalJSON(data []byte) error {
	*d = Replicable{}
	var generic any
	if err := json.Unmarshal(data, &generic); err != nil {
		return err
	}
	switch v := generic.(type) {
	case nil:
	case string:
		if d.All = v == "all"; !d.All {
			d.wrong = fmt.Sprintf("%q; write all, a number of devices, or a list of them", v)
		}
	case float64:
		if d.Count = int(v); float64(d.Count) != v || v < 1 {
			*d = Replicable{wrong: fmt.Sprintf("%v is not a number of devices; write 1 or more, all, or a list", v)}
		}
	case []any:
		d.List = []string{}
		for _, item := range v {
			d.List = append(d.List, deviceReference(item))
		}
	default:
		d.wrong = "write all, a number of devices, or a list of them"
	}
	return nil
}

// deviceReference returns how an item of a list names a device.
func deviceReference(item any) string {
	if n, is := item.(float64); is && n == float64(uint32(n)) {
		return strconv.Itoa(int(n))
	}
	return fmt.Sprint(item)
}

// MarshalJSON implements json.Marshaler.
func (d Replicable) MarshalJSON() ([]byte, error) {
	switch {
	case d.Count > 0:
		return json.Marshal(d.Count)
	case d.List != nil:
		return json.Marshal(d.List)
	}
	return json.Marshal("all")
}

var indexes = pattern.New(`^[0-9]{1,5}(:[0-9]{1,5})?$`)

func (p *problems) checkSharing(c *Config) {
	sliced, mps := c.Sharing.TimeSlicing, c.Sharing.MPS
	if sliced != nil && mps != nil && len(sliced.Resources) > 0 && len(mps.Resources) > 0 {
		p.add("sharing", "timeSlicing and mps exclude each other; remove one of them")
	}
	p.checkReplicated("sharing.timeSlicing", sliced, maxReplicas, c.Resources)
	p.checkReplicated("sharing.mps", mps, maxClients, c.Resources)
}

func (p *problems) checkReplicated(path string, r *Replicated, most int, made Resources) {
	if r == nil {
		return
	}
	if len(r.Resources) == 0 && (r.RenameByDefault || r.FailRequestsGreaterThanOne != nil && path != "sharing.mps") {
		p.add(path, "shares nothing: resources is empty; name a resource there, or remove the section")
	}
	for i, one := range r.Resources {
		at := itemPath(path+".resources", i)
		p.checkShared(at, one.Name, made)
		for j, earlier := range r.Resources[:i] {
			if earlier.Name == one.Name && one.Name != "" {
				p.checkRepeated(at, j, earlier, one)
			}
		}
		if one.Rename != "" {
			p.checkName(at+".rename", one.Rename)
		}
		switch {
		case one.Replicas < minReplicas:
			p.add(at+".replicas", "%d shares nothing; write %d or more, or remove the resource from the list", one.Replicas, minReplicas)
		case one.Replicas > most:
			p.add(at+".replicas", "%d is more than %d, %s", one.Replicas, most, map[int]string{
				maxReplicas: "the longest list that the kubelet accepts",
				maxClients:  "the clients that MPS supports on one GPU",
			}[most])
		}
		p.checkReplicable(at+".devices", one.Devices)
	}
}

// checkRepeated checks a resource that is shared in two ways: each device must be in
// only one of them.
func (p *problems) checkRepeated(path string, j int, earlier, one ReplicatedResource) {
	if earlier.Devices.List == nil || one.Devices.List == nil {
		p.add(path+".name", "%s is already in resources[%d]; remove one, or list the devices of both", one.Name, j)
		return
	}
	for i, device := range one.Devices.List {
		if slices.Contains(earlier.Devices.List, device) {
			p.add(itemPath(path+".devices", i), "%s is in resources[%d] already; remove it from one of them", device, j)
		}
	}
}

// checkShared checks that the resource to be shared exists.
func (p *problems) checkShared(path, name string, made Resources) {
	if why := nameProblem(name); why != "" {
		p.add(path+".name", "%q: %s", name, why)
		return
	}
	names := []string{GPU}
	for _, r := range slices.Concat(made.GPUs, made.MIG) {
		names = append(names, r.Name)
	}
	switch {
	case isWellKnown(name) || slices.Contains(names, name):
	case strings.HasSuffix(name, sharedSuffix) && (isWellKnown(strings.TrimSuffix(name, sharedSuffix)) || slices.Contains(names, strings.TrimSuffix(name, sharedSuffix))):
		p.add(path+".name", "%s is the name of the replicas; write name: %s and rename: %s", name, strings.TrimSuffix(name, sharedSuffix), name)
	default:
		p.add(path+".name", "there is no resource %s%s", name, baseconfig.Suggest(name, append(names, prefix+"mig-<profile>")))
	}
}

func (p *problems) checkReplicable(path string, d Replicable) {
	switch {
	case d.wrong != "":
		p.add(path, "%s", d.wrong)
	case d.List != nil && len(d.List) == 0:
		p.add(path, "no device is named; write all, or remove it")
	}
	for i, item := range d.List {
		if slices.Contains(d.List[:i], item) {
			p.add(itemPath(path, i), "%s is listed twice; remove one", item)
		}
		if _, err := gpu.ParseUUID(item); err != nil && !indexes.Matches(item) {
			p.add(itemPath(path, i), "%q is not a device; write an index (0), a MIG index (0:1), or a UUID as nvidia-smi -L prints it", item)
		}
	}
}

func itemPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
