package nodestate

import (
	"fmt"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ServeLabel is the label by which a node chooses who offers its GPUs to pods: ServePlugin or
// ServeDRA. Without it the device plugin's flag --serve counts.
const ServeLabel = "nvidia.com/gpu.serve"

// Withheld is a GPU or MIG device that nobody is offered: pods of the side that offered the node's
// GPUs before may still hold it.
type Withheld struct {
	GPU     gpu.UUID   `json:"gpu"`
	Parent  gpu.UUID   `json:"parent,omitempty"` // of a MIG device
	Reason  gpu.Reason `json:"reason"`
	Message string     `json:"message,omitempty"` // who holds it
	Since   time.Time  `json:"since,omitzero"`    // of Reason
	// Namespace is the namespace of the pods and claims that Message names: see MayShow. "": not known,
	// as in what earlier versions have written.
	Namespace string `json:"namespace,omitempty"`
}

// The values of Withheld.Namespace that are no namespace.
const (
	SeveralNamespaces = "*" // there are holders of several, or of unknown ones
	NoNamespace       = "-" // Message names no pod and no claim
)

// MayShow reports whether Message may be shown in a namespace. One that names others is for the
// administrator alone.
func (w Withheld) MayShow(namespace string) bool {
	return w.Namespace == NoNamespace || w.Namespace != "" && w.Namespace == namespace
}

// DRADriverInfo describes what gpu-dra-driver offers, and what it has not released since the device
// plugin offers the GPUs.
type DRADriverInfo struct {
	// Serve and SwitchID are those of the device plugin's state that the driver follows. Until
	// SwitchID is the device plugin's, Kept is of an earlier time and means nothing.
	Serve    string `json:"serve,omitempty"`
	SwitchID string `json:"switchID,omitempty"`
	// Devices is the number of devices in the ResourceSlices.
	Devices int `json:"devices"`
	// Kept lists the devices that the driver has not released, where Serve is ServePlugin: claims
	// hold them, or may still be prepared with them. A released device is never given to a claim
	// until the device plugin's state has another SwitchID.
	Kept []Withheld `json:"kept,omitempty"`
	// AdminAccess lists the devices that claims have with administrative access, which holds nothing. The
	// kubelet's account does not tell it from other access. It has at most MaxAdminAccess entries.
	AdminAccess []ClaimedDevice `json:"adminAccess,omitempty"`
}

// MaxAdminAccess bounds DRADriverInfo.AdminAccess.
const MaxAdminAccess = 256

// ClaimedDevice is a device of a ResourceClaim.
type ClaimedDevice struct {
	Claim string   `json:"claim"` // namespace/name
	GPU   gpu.UUID `json:"gpu"`   // or MIG device
}

// withheld checks the devices that are withheld.
func (v *validation) withheld(field string, all []Withheld) {
	if limit := MaxGPUs * MaxMIGDevices; len(all) > limit {
		v.fail(field, fmt.Sprintf("%d devices, at most %d are allowed", len(all), limit))
		return
	}
	for i, w := range all {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.name(at+".gpu", string(w.GPU))
		v.text(at+".parent", string(w.Parent), maxName)
		if w.Reason == "" {
			v.fail(at+".reason", "missing")
		}
		v.reason(at+".reason", string(w.Reason))
		v.text(at+".message", w.Message, maxMessage)
		v.text(at+".namespace", w.Namespace, maxName)
	}
}

// serve checks the name of the program that offers the GPUs.
func (v *validation) serve(field, value string) {
	if value != "" && value != ServePlugin && value != ServeDRA {
		v.fail(field, fmt.Sprintf("%.80q is not %s or %s", value, ServePlugin, ServeDRA))
	}
}

func (v *validation) draDriver(d *DRADriverInfo) {
	v.serve("draDriver.serve", d.Serve)
	v.text("draDriver.switchID", d.SwitchID, 64)
	v.withheld("draDriver.kept", d.Kept)
	if len(d.AdminAccess) > MaxAdminAccess {
		v.fail("draDriver.adminAccess", fmt.Sprintf("%d devices, at most %d are allowed", len(d.AdminAccess), MaxAdminAccess))
		return
	}
	for i, a := range d.AdminAccess {
		at := fmt.Sprintf("draDriver.adminAccess[%d]", i)
		v.text(at+".claim", a.Claim, maxMissedBytes)
		v.name(at+".gpu", string(a.GPU))
	}
}
