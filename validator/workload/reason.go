package workload

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/kube"
)

// Reasons for which the result of a pod refuses the plugin's layer.
const (
	ReasonRunning       gpu.Reason = "WorkloadRunning"
	ReasonUnschedulable gpu.Reason = "WorkloadUnschedulable"
	ReasonNotAdmitted   gpu.Reason = "WorkloadNotAdmitted"
	ReasonImage         gpu.Reason = "WorkloadImageMissing"
	ReasonNotStarted    gpu.Reason = "WorkloadNotStarted"
	ReasonAbsent        gpu.Reason = "AllocatedButAbsent"
	ReasonFailed        gpu.Reason = "WorkloadFailed"
	ReasonTimeout       gpu.Reason = "WorkloadTimeout"
)

// Reasons for which a pod proves nothing: they concern other pods on the node, or the
// API server, and not its GPUs. The accounts count, with a note.
const (
	ReasonAllTaken    gpu.Reason = "AllAllocated"
	ReasonFull        gpu.Reason = "NodeFull"
	ReasonEnded       gpu.Reason = "WorkloadEndedByOthers"
	ReasonNameTaken   gpu.Reason = "WorkloadNameTaken"
	ReasonNoScheduler gpu.Reason = "NoScheduler"
	ReasonForbidden   gpu.Reason = "WorkloadForbidden"
	ReasonAPI         gpu.Reason = "APIServerUnreachable"
	ReasonInUse       gpu.Reason = "GPUInUse"
)

// refused is the error of a pod that shows that the layer is not ready.
type refused struct{ readiness.NotReady }

func (r *refused) Error() string { return r.Message }

func refuse(reason gpu.Reason, message, action string) error {
	return &refused{readiness.NotReady{Reason: reason, Message: record.Clean(message, 2048), Action: action}}
}

// unproven is the error of a pod that proves nothing, with a reason of the second kind.
type unproven struct {
	reason gpu.Reason
	err    error
	action string
}

func (u *unproven) Error() string { return u.err.Error() }
func (u *unproven) Unwrap() error { return u.err }

func newUnproven(reason gpu.Reason, err error, action string) error {
	return &unproven{reason, err, action}
}

// asUnproven returns err as an unproven error.
func asUnproven(err error) *unproven {
	u, ok := errors.AsType[*unproven](err)
	if !ok { // a request that failed
		u = &unproven{ReasonAPI, err, kube.Advice(err)}
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.ReasonForError(err) == metav1.StatusReasonBadRequest {
			u.reason = ReasonForbidden
		}
	}
	return u
}

// unprovenNote returns the note about a pod that proved nothing.
func unprovenNote(err error) string {
	u := asUnproven(err)
	return fmt.Sprintf("not proven by a pod: %s: %v; %s", u.reason, err, u.action)
}
