package leader

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// history records the changes of the Lease that a standby has seen, by this process's own clock.
type history struct {
	version string    // last version read
	since   time.Time // when it was first read
	read    time.Time // when it was last read

	process      string    // holder of the Lease; "": none
	began        time.Time // when it was first seen
	installation string    // owner of the Lease
	used         time.Time // when its claim was last used or first seen
}

// add records the Lease as read at a time. An installation uses its claim while one of its
// processes renews the Lease and has done so for longer than steadyTerm. An operator that fails
// soon after each start does not use it. After a gap of that length in reading, the claim
// counts as just used.
func (h *history) add(lease *coordinationv1.Lease, now time.Time) {
	renewed := lease.ResourceVersion != h.version
	if renewed {
		h.version, h.since = lease.ResourceVersion, now
	}
	process := holderOf(lease)
	if process != "" {
		process += "/" + lease.Annotations[annotationProcess]
	}
	if process != h.process {
		h.process, h.began = process, now
	}
	installation := lease.Labels[labelNamespace] + "/" + lease.Labels[labelDeployment]
	works := renewed && process != "" && now.Sub(h.began) > steadyTerm
	if works || installation != h.installation || now.Sub(h.read) > steadyTerm {
		h.installation, h.used = installation, now
	}
	h.read = now
}
