package workload

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// NodeRuntime describes the programs that give a container its devices.
type NodeRuntime struct {
	Kubelet string             // its version, "v1.31.2"; "" not known
	Runtime *nodestate.Runtime // as reported by the toolkit; nil: not reported
}

// firstKubeletWithCDI is the first kubelet that passes the CDI names of device plugins on by
// default; older ones drop them silently.
var firstKubeletWithCDI = version.MajorMinor(1, 29)

// absentGPU returns the error of a pod that was allocated a GPU and found none in its
// container; why is the container's own message.
func (t *attempt) absentGPU(why string) error {
	message := "a pod was admitted with a GPU and found none in its container"
	if len(t.devices) > 0 {
		message = fmt.Sprintf("a pod was allocated %s (PodResources API) and found no GPU in its container", strings.Join(t.devices, ", "))
	}
	cause, action := "", "see that the runtime resolves CDI names and that the kubelet's feature gate DevicePluginCDIDevices is on"
	var known NodeRuntime
	if t.NodeRuntime != nil {
		known = t.NodeRuntime()
	}
	switch r := known.Runtime; {
	case r != nil && r.CDI != nil && !*r.CDI:
		cause, action = fmt.Sprintf("; the runtime %s has CDI off", strings.TrimSpace(r.Name+" "+r.Version)), "turn CDI on in the runtime's configuration and restart it, or hand GPUs out by --device-list-strategy=volume-mounts with the runtime's handler nvidia, which must accept them (docs/injection.md)"
	case known.dropsCDI():
		cause, action = fmt.Sprintf("; the kubelet %s drops the CDI names of device plugins", known.Kubelet), "use Kubernetes "+firstKubeletWithCDI.String()+" or newer, or hand GPUs out by --device-list-strategy=cdi-annotations, which the runtime resolves"
	}
	return refuse(ReasonAbsent, message+cause+": "+why, action)
}

// dropsCDI reports whether the kubelet drops CDI names.
func (i NodeRuntime) dropsCDI() bool {
	v, err := version.ParseGeneric(i.Kubelet)
	return err == nil && v.LessThan(firstKubeletWithCDI)
}

// hadNoGPU reports whether the sample's container had no GPU, according to its
// termination message.
func hadNoGPU(message string) bool {
	var a podAnswer
	return json.Unmarshal([]byte(message), &a) == nil && a.Devices != nil && *a.Devices == 0
}
