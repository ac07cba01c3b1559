package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// listRoot is the directory with one mount for each GPU that a container requests.
const listRoot = "/var/run/nvidia-container-devices"

// node matches the device nodes of a GPU or a MIG capability, but not those of the
// driver as a whole.
var node = regexp.MustCompile(`^/dev/(nvidia[0-9]+|dxg|nvidia-caps/nvidia-cap[0-9]+)$`)

// oci is the part of a container's OCI configuration that is used.
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

// info is the part of a container's verbose status from containerd or CRI-O that is
// used. Only containerd's has a config, which records whether it is privileged.
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

func isReader(program string) bool {
	base := path.Base(program)
	return slices.ContainsFunc(readers, func(r string) bool { return base == r || strings.HasPrefix(base, r+".") })
}

// parseInfo adds the properties in a verbose status to c, whose Handler has to be set.
// It returns the container's process, 0 if it has none.
func parseInfo(text string, c *Container) (pid int, err error) {
	if len(text) > maxResponse {
		return 0, fmt.Errorf("it has %d bytes", len(text))
	}
	var i info
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return 0, err
	}
	c.addSpec(i.RuntimeSpec)
	c.Privileged = c.Privileged || i.Privileged
	var options struct {
		Binary  string `json:"binary_name"`
		Binary1 string `json:"BinaryName"`
	}
	if json.Unmarshal(i.RuntimeOptions, &options) == nil && (isReader(options.Binary) || isReader(options.Binary1)) {
		c.Reads = true
	}
	if i.Config == nil {
		return i.Pid, nil
	}
	c.Privileged = c.Privileged || i.Config.Linux.Security.Privileged
	c.FromImage = requestsGPUs(c.Value)
	for _, e := range i.Config.Envs {
		if e.Key == Variable {
			c.FromImage = false
		}
	}
	for _, d := range i.Config.CDI {
		c.addCDI(d.Name)
	}
	c.addAnnotations(i.Config.Annotations)
	return i.Pid, nil
}

// addSpec adds the properties in the runtime's OCI configuration, as it was before any
// handler changed it.
func (c *Container) addSpec(s oci) {
	for _, e := range s.Process.Env {
		if value, ok := strings.CutPrefix(e, Variable+"="); ok {
			c.Value = record.Clean(value, maxText) // the last of several applies
		}
	}
	c.Privileged = c.Privileged || slices.Contains(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	c.addAnnotations(s.Annotations)
	c.addParts(s)
	c.Injected = len(c.Devices) > 0 && slices.ContainsFunc(s.Mounts, func(m mount) bool {
		return strings.HasPrefix(path.Base(m.Destination), "libcuda.so.") || strings.HasPrefix(path.Base(m.Destination), "libnvidia-ml.so.")
	})
}

// addParts adds the mounts, devices and hooks of an OCI configuration.
func (c *Container) addParts(s oci) {
	for _, hooks := range s.Hooks {
		for _, h := range hooks {
			c.Reads = c.Reads || isReader(h.Path)
		}
	}
	for _, m := range s.Mounts {
		c.addMount(m.Destination)
	}
	for _, d := range s.Linux.Devices {
		c.addDevice(d.Path)
	}
}

// addAnnotations adds the CDI devices in annotations, which a kubelet before 1.28, or a
// person, sets.
func (c *Container) addAnnotations(all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, "cdi.k8s.io/") {
			for name := range strings.SplitSeq(all[key], ",") {
				c.addCDI(name)
			}
		}
	}
}

// addCDI adds a CDI device if it can be a GPU, as opposed to a network card.
func (c *Container) addCDI(name string) {
	kind, _, qualified := strings.Cut(strings.TrimSpace(name), "=")
	vendor, class, _ := strings.Cut(kind, "/")
	if !qualified || class != "gpu" && !strings.HasSuffix(vendor, "nvidia.com") {
		return
	}
	c.CDI = add(c.CDI, strings.TrimSpace(name))
}

func (c *Container) addMount(destination string) {
	if rest, ok := strings.CutPrefix(path.Clean(destination), listRoot+"/"); ok {
		c.Listed = add(c.Listed, rest)
	}
	c.addDevice(destination)
}

func (c *Container) addDevice(name string) {
	if node.MatchString(name) {
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

// inspectDevices adds the devices in the container itself: handlers change its
// configuration after the runtime made it, and hooks mount devices into it. It uses
// the first of the bundles that can be read.
func (c *Container) inspectDevices(root *host.Root, bundles []string, pid int) {
	for _, name := range bundles {
		data, err := root.ReadFile(name, maxResponse)
		var s oci
		if err == nil && json.Unmarshal(data, &s) == nil {
			c.addParts(s)
			c.Inspected = true
			break
		}
	}
	if pid <= 0 {
		c.Inspected = false
		return
	}
	data, err := root.ReadFile("/proc/"+strconv.Itoa(pid)+"/mountinfo", maxResponse)
	if err != nil {
		c.Inspected = false
		return
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			c.addDevice(fields[4]) // proc_pid_mountinfo(5): the mount point
		}
	}
}

// identifier matches IDs that can be part of a path, whatever their length.
var identifier = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_.-]*$`)

// isIdentifier reports whether an ID can be a part of a path.
func isIdentifier(id string) bool {
	const longest = 256 // not in the expression, which would take a hundred times as long to compile
	return len(id) <= longest && identifier.MatchString(id)
}
