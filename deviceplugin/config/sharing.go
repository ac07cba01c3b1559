package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/suggest"
)

// Bounds of replicas.
const (
	minReplicas = 2 // as in NVIDIA's device plugin: one replica shares nothing
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
	RenameByDefault            bool                 `json:"renameByDefault,omitempty" doc:"Advertise shared devices as name.shared, so that nobody gets one unasked. Default: false."`
	FailRequestsGreaterThanOne *bool                `json:"failRequestsGreaterThanOne,omitempty" doc:"Refuse a container that asks for more than one replica. Default: false with timeSlicing, true with mps."`
	Resources                  []ReplicatedResource `json:"resources,omitempty" doc:"The resources that are shared. A resource may appear twice if both entries list devices and no device is in both."`
}

// ReplicatedResource is a resource whose devices are advertised several times.
type ReplicatedResource struct {
	Name     string     `json:"name" required:"true" doc:"Name of the resource whose devices are shared."`
	Rename   string     `json:"rename,omitempty" doc:"Name of the resource under which the replicas are advertised. Default: name, or name.shared with renameByDefault."`
	Devices  Replicable `json:"devices" doc:"Which of its devices are shared: all, how many, or a list of indexes (0), MIG indexes (0:1) and UUIDs. Default: all."`
	Replicas int        `json:"replicas" required:"true" min:"2" max:"50000" doc:"How many times each device is advertised, 2 or more; with mps no more than 48."`
}

// Replicable selects devices of a resource: all, the first Count, or those of List.
type Replicable struct {
	All   bool
	Count int
	List  []string // indexes "0", MIG indexes "0:1", and UUIDs

	invalid string // what is wrong with the value in the file; "": it is valid
}

// SharingMPS is the strategy that Active returns for MPS.
const SharingMPS = "mps"

// Active returns how devices are shared. strategy is "none", "time-slicing" or "mps"; r is never
// nil.
func (s Sharing) Active() (strategy string, r *Replicated) {
	switch {
	case s.MPS != nil && len(s.MPS.Resources) > 0:
		return SharingMPS, s.MPS
	case s.TimeSlicing != nil && len(s.TimeSlicing.Resources) > 0:
		return "time-slicing", s.TimeSlicing
	}
	return "none", &Replicated{}
}

// setDefaults completes names (gpu: nvidia.com/gpu), derives Rename, and shares all devices if none are chosen.
func (r *Replicated) setDefaults() {
	for i := range r.Resources {
		resource := &r.Resources[i]
		resource.Name, resource.Rename = qualifiedName(resource.Name), qualifiedName(resource.Rename)
		if resource.Rename == "" && r.RenameByDefault && resource.Name != "" {
			resource.Rename = resource.Name + sharedSuffix
		}
		if d := resource.Devices; d.Count == 0 && d.List == nil && d.invalid == "" {
			resource.Devices.All = true
		}
	}
}

// UnmarshalJSON implements json.Unmarshaler. It accepts any value: checkReplicable
// reports a wrong one, with its path in the file.
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
			d.invalid = fmt.Sprintf("%q; write all, a number of devices, or a list of them", v)
		}
	case float64:
		if d.Count = int(v); float64(d.Count) != v || v < 1 {
			*d = Replicable{invalid: fmt.Sprintf("%v is not a number of devices; write 1 or more, all, or a list", v)}
		}
	case []any:
		d.List = []string{}
		for _, item := range v {
			d.List = append(d.List, deviceReference(item))
		}
	default:
		d.invalid = "write all, a number of devices, or a list of them"
	}
	return nil
}

// deviceReference returns an item of the JSON list as text: 3 as "3".
func deviceReference(item any) string {
	if n, isNumber := item.(float64); isNumber && n == float64(uint32(n)) {
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

// indexPattern matches an index or a MIG index.
var indexPattern = compileOnce(`^[0-9]{1,5}(:[0-9]{1,5})?$`)

// checkSharing checks the section sharing.
func (p *problems) checkSharing(c *Config) {
	sliced, mps := c.Sharing.TimeSlicing, c.Sharing.MPS
	if sliced != nil && mps != nil && len(sliced.Resources) > 0 && len(mps.Resources) > 0 {
		p.add("sharing", "timeSlicing and mps exclude each other; remove one of them")
	}
	p.checkReplicated("sharing.timeSlicing", sliced, maxReplicas, c.Resources)
	p.checkReplicated("sharing.mps", mps, maxClients, c.Resources)
}

// checkReplicated checks one way of sharing. resources are the names that the file defines.
func (p *problems) checkReplicated(path string, r *Replicated, limit int, resources Resources) {
	if r == nil {
		return
	}
	if len(r.Resources) == 0 && (r.RenameByDefault || r.FailRequestsGreaterThanOne != nil && path != "sharing.mps") {
		p.add(path, "shares nothing: resources is empty; name a resource there, or remove the section")
	}
	for i, resource := range r.Resources {
		at := itemPath(path+".resources", i)
		p.checkShared(at, resource.Name, resources)
		for j, earlier := range r.Resources[:i] {
			if earlier.Name == resource.Name && resource.Name != "" {
				p.checkRepeated(at, j, earlier, resource)
			}
		}
		if resource.Rename != "" {
			p.checkName(at+".rename", resource.Rename)
		}
		switch {
		case resource.Replicas < minReplicas:
			p.add(at+".replicas", "%d shares nothing; write %d or more, or remove the resource from the list", resource.Replicas, minReplicas)
		case resource.Replicas > limit:
			p.add(at+".replicas", "%d is more than %d, %s", resource.Replicas, limit, map[int]string{
				maxReplicas: "the longest list that the kubelet accepts",
				maxClients:  "the clients that MPS supports on one GPU",
			}[limit])
		}
		p.checkReplicable(at+".devices", resource.Devices)
	}
}

// checkRepeated checks a resource that is shared in two ways: each device must be in
// only one of them.
func (p *problems) checkRepeated(path string, j int, earlier, later ReplicatedResource) {
	if earlier.Devices.List == nil || later.Devices.List == nil {
		p.add(path+".name", "%s is already in resources[%d]; remove one, or list the devices of both", later.Name, j)
		return
	}
	for i, device := range later.Devices.List {
		if slices.Contains(earlier.Devices.List, device) {
			p.add(itemPath(path+".devices", i), "%s is in resources[%d] already; remove it from one of them", device, j)
		}
	}
}

// checkShared checks that the resource to be shared exists.
func (p *problems) checkShared(path, name string, resources Resources) {
	if why := nameProblem(name); why != "" {
		p.add(path+".name", "%q: %s", name, why)
		return
	}
	names := []string{GPU}
	for _, r := range slices.Concat(resources.GPUs, resources.MIG) {
		names = append(names, r.Name)
	}
	switch {
	case isWellKnown(name) || slices.Contains(names, name):
	case strings.HasSuffix(name, sharedSuffix) && (isWellKnown(strings.TrimSuffix(name, sharedSuffix)) || slices.Contains(names, strings.TrimSuffix(name, sharedSuffix))):
		p.add(path+".name", "%s is the name of the replicas; write name: %s and rename: %s", name, strings.TrimSuffix(name, sharedSuffix), name)
	default:
		p.add(path+".name", "there is no resource %s%s", name, suggest.Hint(name, append(names, prefix+"mig-<profile>")))
	}
}

// checkReplicable checks a selection of devices.
func (p *problems) checkReplicable(path string, d Replicable) {
	switch {
	case d.invalid != "":
		p.add(path, "%s", d.invalid)
	case d.List != nil && len(d.List) == 0:
		p.add(path, "no device is named; write all, or remove it")
	}
	for i, item := range d.List {
		if slices.Contains(d.List[:i], item) {
			p.add(itemPath(path, i), "%s is listed twice; remove one", item)
		}
		if _, err := gpu.ParseUUID(item); err != nil && !indexPattern().MatchString(item) {
			p.add(itemPath(path, i), "%q is not a device; write an index (0), a MIG index (0:1), or a UUID as nvidia-smi -L prints it", item)
		}
	}
}

// itemPath returns the path of an item in a list: "devices.include[0]".
func itemPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
