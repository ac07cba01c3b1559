package allocate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

const noDaemons = "gpu-device-plugin mps-daemon has reported nothing since the machine was started; " +
	"check whether nvidia-device-plugin-mps-control-daemon runs on this node"

const noWriter = "gpu-device-plugin mps-daemon was killed, and its control daemons with it; " +
	"check why nvidia-device-plugin-mps-control-daemon is not running on this node"

// Served holds the state of the MPS control daemons: which resources they serve.
type Served struct {
	why       string // why nothing is served
	resources map[string]nodestate.MPSResource
}

// ServedOf returns what the state says is served. The state of a process that was
// killed no longer holds, unless it recorded its end.
func ServedOf(s nodestate.State, err error) Served {
	killed := errors.Is(err, nodestate.ErrUnheld)
	switch {
	case nodestate.IsAbsent(err):
		return Served{why: noDaemons}
	case err != nil && !killed:
		return Served{why: "the state of the MPS control daemons cannot be read: " + err.Error()}
	}
	now := Served{resources: map[string]nodestate.MPSResource{}}
	if s.MPS != nil {
		for _, r := range s.MPS.Resources {
			if killed && (r.Ready || s.Reason != mps.ReasonEnded) {
				r = nodestate.MPSResource{Name: r.Name, Message: noWriter}
			}
			now.resources[r.Name] = r
		}
	}
	if len(now.resources) == 0 {
		now.why = cmp.Or(s.Message, "it serves nothing")
	}
	return now
}

// mpsFault returns why a device to be shared by MPS cannot be, or zero if it can or is
// not to be shared. Beside another plugin, MPS is that plugin's concern.
func (n Node) mpsFault(resource string, d plan.Device) gpu.Fault {
	if strategy, _ := n.Config.Sharing.Active(); n.Beside || strategy != config.SharingMPS || d.Replicas == 0 {
		return gpu.Fault{}
	}
	not := func(why string) gpu.Fault {
		return gpu.Fault{Reason: ReasonMPS, Message: "its MPS control daemon does not serve it: " + why}
	}
	r, known := n.MPS.resources[resource]
	switch {
	case known && r.Ready && slices.Contains(r.GPUs, d.GPU):
		return n.mpsMismatch(r, d)
	case known && r.Message != "":
		return not(r.Message)
	case known:
		return not("it was started for other GPUs")
	case n.MPS.why != "":
		return not(n.MPS.why)
	case len(n.MPS.resources) > 0:
		return not("there is none for " + resource + ", only for " + strings.Join(slices.Sorted(maps.Keys(n.MPS.resources)), ", ") + "; has mps-daemon the same configuration?")
	}
	return not(noDaemons)
}

// mpsMismatch returns how a device differs from its control daemon's configuration: the
// daemon may have other limits or another pipe folder. The fault ends as soon as both
// have read the same configuration.
func (n Node) mpsMismatch(r nodestate.MPSResource, d plan.Device) gpu.Fault {
	not := func(format string, args ...any) gpu.Fault {
		return gpu.Fault{Reason: ReasonMPS, Message: "its MPS control daemon has another configuration, or has not read it yet: " + fmt.Sprintf(format, args...)}
	}
	switch root := mps.Root(n.Config); {
	case r.Replicas[d.GPU] != d.Replicas:
		return not("its limits are made for %d replicas of this GPU, not %d", r.Replicas[d.GPU], d.Replicas)
	case path.Clean(r.Root) != path.Clean(root):
		return not("its flags.mpsRoot is %q, not %q", r.Root, root)
	}
	return gpu.Fault{}
}
