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

const nothingReported = "gpu-device-plugin mps-daemon has reported nothing since the machine was started; " +
	"check whether nvidia-device-plugin-mps-control-daemon runs on this node"

const daemonKilled = "gpu-device-plugin mps-daemon was killed, and its control daemons with it; " +
	"check why nvidia-device-plugin-mps-control-daemon is not running on this node"

// MPSState lists the resources for which the MPS control daemons are ready, or why they are not.
// The command gpu-device-plugin mps-daemon, which runs these daemons, writes it.
type MPSState struct {
	why       string // why no resource is ready; "": see resources
	resources map[string]nodestate.MPSResource
}

// MPSStateFrom returns the MPSState of a state file, as nodestate.WatchHeld delivers it. If its
// writer is gone, no resource is ready. If the writer recorded ReasonEnded first, the messages
// of resources that were not ready are kept.
func MPSStateFrom(s nodestate.State, err error) MPSState {
	writerGone := errors.Is(err, nodestate.ErrUnheld)
	switch {
	case nodestate.IsAbsent(err):
		return MPSState{why: nothingReported}
	case err != nil && !writerGone:
		return MPSState{why: "the state of the MPS control daemons cannot be read: " + err.Error()}
	}
	m := MPSState{resources: map[string]nodestate.MPSResource{}}
	if s.MPS != nil {
		for _, r := range s.MPS.Resources {
			if writerGone && (r.Ready || s.Reason != mps.ReasonEnded) {
				r = nodestate.MPSResource{Name: r.Name, Message: daemonKilled}
			}
			m.resources[r.Name] = r
		}
	}
	if len(m.resources) == 0 {
		m.why = cmp.Or(s.Message, "it serves nothing")
	}
	return m
}

// mpsFault returns a fault if the device is to be shared by MPS but no control daemon is ready
// for it, else zero. If another plugin serves the node, that plugin checks MPS.
func (n Node) mpsFault(resource string, d plan.Device) gpu.Fault {
	if strategy, _ := n.Config.Sharing.Active(); n.OtherPluginServes || strategy != config.SharingMPS || d.Replicas == 0 {
		return gpu.Fault{}
	}
	notServed := func(why string) gpu.Fault {
		return gpu.Fault{Reason: ReasonMPS, Message: "its MPS control daemon does not serve it: " + why}
	}
	r, known := n.MPS.resources[resource]
	switch {
	case known && r.Ready && slices.Contains(r.GPUs, d.GPU):
		return n.mpsMismatch(r, d)
	case known && r.Message != "":
		return notServed(r.Message)
	case known:
		return notServed("it was started for other GPUs")
	case n.MPS.why != "":
		return notServed(n.MPS.why)
	case len(n.MPS.resources) > 0:
		return notServed("there is none for " + resource + ", only for " + strings.Join(slices.Sorted(maps.Keys(n.MPS.resources)), ", ") + "; has mps-daemon the same configuration?")
	}
	return notServed(nothingReported)
}

// mpsMismatch returns a fault if the control daemon of a device has another configuration than
// this plugin: other limits or another folder for its pipes. The fault ends as soon as both have
// read the same configuration.
func (n Node) mpsMismatch(r nodestate.MPSResource, d plan.Device) gpu.Fault {
	mismatch := func(format string, args ...any) gpu.Fault {
		return gpu.Fault{Reason: ReasonMPS, Message: "its MPS control daemon has another configuration, or has not read it yet: " + fmt.Sprintf(format, args...)}
	}
	switch root := mps.Root(n.Config); {
	case r.Replicas[d.GPU] != d.Replicas:
		return mismatch("its limits are made for %d replicas of this GPU, not %d", r.Replicas[d.GPU], d.Replicas)
	case path.Clean(r.Root) != path.Clean(root):
		return mismatch("its flags.mpsRoot is %q, not %q", r.Root, root)
	}
	return gpu.Fault{}
}
