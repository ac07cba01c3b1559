package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/pattern"
)

// listRoot is below which a container has one mount for each GPU that is asked for.
const listRoot = "/var/run/nvidia-container-devices"

// node is a GPU's, or a MIG capability's, and not that of the driver as a whole.
var node = pattern.New(`^/dev/(nvidia[0-9]+|dxg|nvidia-caps/nvidia-cap[0-9]+)$`)

// oci is what is used of a container's OCI configuration.
type oci struct {
	Process struct {
		Env          []string `json:"env"`
		Capabilities struct {
			Bounding []string `json:"bounding"`
		} `json:"capabilities"`
	} `json:"process"`
	Annotations map[string]string `json:"annotations"`
	Mounts      []mount           `json:"mounts"`
	Linux       struct {
		Devices []struct {
			Path string `json:"path"`
		} `json:"devices"`
	} `json:"linux"`
	Hooks map[string][]struct {
		Path string `json:"path"`
	} `json:"hooks"`
}

type mount struct {
	Destination string `json:"destination"`
}

// info is what containerd and CRI-O tell of a container in a verbose status; CRI-O
// has no config, and containerd says in it whether it is privileged.
type info struct {
	Pid            int             `json:"pid"`
	Privileged     bool            `json:"privileged"`
	RuntimeOptions json.RawMessage `json:"runtimeOptions"`
	Config         *struct {
		Envs []struct {
			Key string `json:"key"`
		} `json:"envs"`
		CDI []struct {
			Name string `json:"name"`
		} `json:"CDI_devices"`
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			Security struct {
				Privileged bool `json:"privileged"`
			} `json:"security_context"`
		} `json:"linux"`
	} `json:"config"`
	RuntimeSpec oci `json:"runtimeSpec"`
}

// readers are the programs that read the variable.
var readers = []string{"nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpu-oci-runtime"}

func reads(program string) bool {
	base := path.Base(program)
	return slices.ContainsFunc(readers, func(r string) bool { return base == r || strings.HasPrefix(base, r+".") })
}

// parseInfo fills in what a verbose status tells. The name of the handler has to be
// there already. It returns the container's process, 0 if it has none.
func parseInfo(text string, c *Container) (pid int, err error) {
	if len(text) > maxAnswer {
		return 0, fmt.Errorf("it has %d bytes", len(text))
	}
	var i info
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return 0, err
	}
	c.spec(i.RuntimeSpec)
	c.Privileged = c.Privileged || i.Privileged
	var options struct {
		Binary  string `json:"binary_name"`
		Binary1 string `json:"BinaryName"`
	}
	if json.Unmarshal(i.RuntimeOptions, &options) == nil && (reads(options.Binary) || reads(options.Binary1)) {
		c.Reads = true
	}
	if i.Config == nil {
		return i.Pid, nil
	}
	c.Privileged = c.Privileged || i.Config.Linux.Security.Privileged
	c.FromImage = Asks(c.Value)
	for _, e := range i.Config.Envs {
		if e.Key == Variable {
			c.FromImage = false
		}
	}
	for _, d := range i.Config.CDI {
		c.cdi(d.Name)
	}
	c.annotations(i.Config.Annotations)
	return i.Pid, nil
}

// spec fills in what the OCI configuration tells that the runtime made, before any
// handler changed it.
func (c *Container) spec(s oci) {
	for _, e := range s.Process.Env {
		if value, is := strings.CutPrefix(e, Variable+"="); is {
			c.Value = record.Clean(value, maxText) // of several the last counts
		}
	}
	c.Privileged = c.Privileged || slices.Contains(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	c.annotations(s.Annotations)
	c.parts(s)
	c.Given = len(c.Devices) > 0 && slices.ContainsFunc(s.Mounts, func(m mount) bool {
		return strings.HasPrefix(path.Base(m.Destination), "libcuda.so.") || strings.HasPrefix(path.Base(m.Destination), "libnvidia-ml.so.")
	})
}

// parts fills in what is in the container, and the hooks that put it there.
func (c *Container) parts(s oci) {
	for _, hooks := range s.Hooks {
		for _, h := range hooks {
			c.Reads = c.Reads || reads(h.Path)
		}
	}
	for _, m := range s.Mounts {
		c.mount(m.Destination)
	}
	for _, d := range s.Linux.Devices {
		c.device(d.Path)
	}
}

// annotations are how a kubelet before 1.28, or a person, gives CDI devices.
func (c *Container) annotations(all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, "cdi.k8s.io/") {
			for name := range strings.SplitSeq(all[key], ",") {
				c.cdi(name)
			}
		}
	}
}

// cdi notes a CDI device, if it is one that can be a GPU: a network card's is not.
func (c *Container) cdi(name string) {
	kind, _, qualified := strings.Cut(strings.TrimSpace(name), "=")
	vendor, class, _ := strings.Cut(kind, "/")
	if !qualified || class != "gpu" && !strings.HasSuffix(vendor, "nvidia.com") {
		return
	}
	c.CDI = add(c.CDI, strings.TrimSpace(name))
}

func (c *Container) mount(destination string) {
	if rest, is := strings.CutPrefix(path.Clean(destination), listRoot+"/"); is {
		c.Listed = add(c.Listed, rest)
	}
	c.device(destination)
}

func (c *Container) device(name string) {
	if node.Matches(name) {
		c.Devices = add(c.Devices, name)
		slices.Sort(c.Devices)
	}
}

func add(list []string, item string) []string {
	if item = record.Clean(item, maxText); slices.Contains(list, item) || len(list) >= maxItems {
		return list
	}
	return append(list, item)
}

// look looks at what is in the container itself: handlers change its configuration
// after the runtime made it, and hooks mount devices into it. The configurations are
// where its bundle may be; the first is taken.
func (c *Container) look(root *host.Root, bundles []string, pid int) {
	for _, name := range bundles {
		data, err := root.ReadFile(name, maxAnswer)
		var s oci
		if err == nil && json.Unmarshal(data, &s) == nil {
			c.parts(s)
			c.Looked = true
			break
		}
	}
	if pid <= 0 {
		c.Looked = false
		return
	}
	data, err := root.ReadFile("/proc/"+strconv.Itoa(pid)+"/mountinfo", maxAnswer)
	if err != nil {
		c.Looked = false
		return
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			c.device(fields[4]) // proc_pid_mountinfo(5): the mount point
		}
	}
}

// identifier says whether an ID can be part of a path.
var identifier = pattern.New(`^[0-9A-Za-z][0-9A-Za-z_.-]{0,255}$`)
