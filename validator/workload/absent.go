package workload

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/workload/inside"
)

// Injects is what is known of those who give a container its devices.
type Injects struct {
	Kubelet string             // its version, "v1.31.2"; "" not known
	Runtime *nodestate.Runtime // as the toolkit says; nil: it does not
}

// firstCDI is the first kubelet that hands the CDI names of device plugins on without
// being told to; older ones drop them and say nothing.
var firstCDI = version.MajorMinor(1, 29)

// absent is a pod that was allocated a GPU and found none in its container.
func (t *attempt) absent(why string) error {
	message := "a pod was admitted with a GPU and found none in its container"
	if len(t.given) > 0 {
		message = fmt.Sprintf("a pod was allocated %s (PodResources API) and found no GPU in its container", strings.Join(t.given, ", "))
	}
	cause, action := "", "see that the runtime resolves CDI names and that the kubelet's feature gate DevicePluginCDIDevices is on"
	var known Injects
	if t.Injects != nil {
		known = t.Injects()
	}
	switch r := known.Runtime; {
	case r != nil && r.CDI != nil && !*r.CDI:
		cause, action = fmt.Sprintf("; the runtime %s has CDI off", strings.TrimSpace(r.Name+" "+r.Version)), "turn CDI on in the runtime's configuration and restart it, or hand GPUs out by --device-list-strategy=volume-mounts with the runtime's handler nvidia, which must accept them (docs/oci-runtime.md)"
	case known.drops():
		cause, action = fmt.Sprintf("; the kubelet %s drops the CDI names of device plugins", known.Kubelet), "use Kubernetes "+firstCDI.String()+" or newer, or hand GPUs out by --device-list-strategy=cdi-annotations, which the runtime resolves"
	}
	return refuse(ReasonAbsent, message+cause+": "+why, action)
}

// drops says whether the kubelet is one that drops CDI names.
func (i Injects) drops() bool {
	v, err := version.ParseGeneric(i.Kubelet)
	return err == nil && v.LessThan(firstCDI)
}

// without says whether the sample's container had no GPU, by what was left of it.
func without(left string) bool {
	var a inside.Answer
	return json.Unmarshal([]byte(left), &a) == nil && a.Devices != nil && *a.Devices == 0
}
