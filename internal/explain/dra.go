package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// serveLabel, on a Node, is how pods get its GPUs: serveDRA is by ResourceClaims.
const (
	serveLabel = "nvidia.com/gpu.serve"
	serveDRA   = "dra"
)

// draApp is the label app of the DRA driver's pods, whose problems belong to the kubelet's stage.
const draApp = "gpu-dra-driver"

// maxClaims bounds the devices in claims that a message names, and maxTainted those with a taint that
// have a note.
const (
	maxClaims  = 8
	maxTainted = 8
)

// Device is a device in a ResourceSlice of the DRA driver.
type Device struct {
	Name   string
	Taints []string // "gpuready.io/unhealthy=XID:NoSchedule"
	Claims []string // "team/job": the claims that it is allocated to
}

// Offer holds the devices that the DRA driver has published of a node. Err says why they are missing,
// and ClaimsErr why their claims are.
type Offer struct {
	Devices        []Device
	Err, ClaimsErr error
}

// servedByDRA reports whether pods get the Node's GPUs by ResourceClaims, or shall.
func (c *Cluster) servedByDRA() bool {
	return c.Node.Labels[serveLabel] == serveDRA || c.Offer != nil && len(c.Offer.Devices) > 0
}

// addOffer sets the kubelet's stage of a Node whose GPUs pods get by ResourceClaims: there an amount of
// 0 of the device plugin's resources is right.
func (r *Report) addOffer(c Cluster) {
	s := r.Stage(Kubelet)
	if left := offered(c.Node); len(left) > 0 {
		s.Notes = append(s.Notes, "the node changes between device plugin and DRA driver, and still has "+strings.Join(left, ", "))
	}
	switch {
	case c.Offer == nil:
		s.State, s.Message = OK, "offered as ResourceSlices by gpu-dra-driver, which are not read here; kubectl gpu explain reads them"
		return
	case c.Offer.Err != nil:
		s.State, s.Message = OK, "offered as ResourceSlices by gpu-dra-driver"
		s.Notes = append(s.Notes, "the ResourceSlices cannot be listed: "+clean(c.Offer.Err.Error()))
		return
	case len(c.Offer.Devices) == 0:
		s.State, s.Reason = Waiting, "NoDevicePublished"
		s.Message = "gpu-dra-driver has published no device of the node: pods from before hold all GPUs, or it does not run"
		s.Action = "see its pod on the node (DaemonSet gpu-dra-driver), and which pods hold GPUs"
		return
	}
	tainted, claimed := 0, []string(nil)
	for _, d := range c.Offer.Devices {
		if len(d.Taints) > 0 {
			if tainted++; tainted <= maxTainted {
				s.Notes = append(s.Notes, clean(d.Name+" has a taint: "+strings.Join(d.Taints, ", ")))
			}
		}
		if len(d.Claims) > 0 {
			claimed = append(claimed, d.Name+" "+strings.Join(d.Claims, " and "))
		}
	}
	if more := tainted - maxTainted; more > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d more devices have a taint: see kubectl get resourceslices -o yaml", more))
	}
	slices.Sort(claimed)
	s.State = OK
	s.Message = fmt.Sprintf("offered as ResourceSlices by gpu-dra-driver: %d devices, %d with a taint", len(c.Offer.Devices), tainted)
	switch n := len(claimed); {
	case c.Offer.ClaimsErr != nil:
		s.Notes = append(s.Notes, "the ResourceClaims cannot be listed: "+clean(c.Offer.ClaimsErr.Error()))
	case n > maxClaims:
		s.Message += fmt.Sprintf(", %d in claims: %s and %d more", n, strings.Join(claimed[:maxClaims], ", "), n-maxClaims)
	case n > 0:
		s.Message += fmt.Sprintf(", %d in claims: %s", n, strings.Join(claimed, ", "))
	}
	s.Message = clean(s.Message)
}

// offered returns the device plugin's resources of which pods may be given some.
func offered(node *corev1.Node) (all []string) {
	for name, amount := range node.Status.Allocatable {
		if nodestate.IsGPUResource(string(name)) && amount.Sign() > 0 {
			all = append(all, fmt.Sprintf("%s: %s", name, amount.String()))
		}
	}
	slices.Sort(all)
	return all
}
