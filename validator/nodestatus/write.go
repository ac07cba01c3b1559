package nodestatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/validator/kube"
)

// Component is the source component of the Events.
const Component = "gpu-validator"

// nodeUpdate holds the wanted conditions and taint of the Node.
type nodeUpdate struct {
	ready, healthy Condition
	taint          taintState
}

// writeNode writes the Node's conditions, and then its taints.
func (v *Publisher) writeNode(ctx context.Context, want nodeUpdate) error {
	node, err := v.Client.Node(ctx, v.Node)
	if err != nil {
		return fmt.Errorf("read Node %s: %w", v.Node, err)
	}
	patch, err := v.conditionPatch(node, want)
	if err != nil {
		return err
	}
	if err := v.Client.PatchNodeStatus(ctx, v.Node, patch); err != nil {
		return fmt.Errorf("set the conditions %s and %s of Node %s: %w", ConditionType, HealthType, v.Node, err)
	}
	if err := v.applyTaint(ctx, node, want.taint); err != nil {
		return err
	}
	v.log(ConditionType, v.written.ready, want.ready)
	v.log(HealthType, v.written.healthy, want.healthy)
	v.written, v.writtenAt = want, v.Now()
	return nil
}

func (v *Publisher) log(kind corev1.NodeConditionType, was, is Condition) {
	if is.Status != was.Status || is.Reason != was.Reason {
		v.Log.Info("set the condition", "condition", string(kind), "status", string(is.Status), "reason", is.Reason, "message", is.Message)
	}
}

// conditionPatch returns a patch that merges the conditions by their type, so that other
// conditions stay. Without a transition it leaves out the transition time, which so stays.
func (v *Publisher) conditionPatch(node *corev1.Node, want nodeUpdate) ([]byte, error) {
	now := v.Now().UTC().Format(time.RFC3339)
	patch := func(kind corev1.NodeConditionType, want Condition) map[string]any {
		c := map[string]any{
			"type": kind, "status": want.Status, "reason": want.Reason, "message": want.Message,
			"lastHeartbeatTime": now,
		}
		is := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		if is < 0 || node.Status.Conditions[is].Status != want.Status {
			c["lastTransitionTime"] = now
		}
		return c
	}
	conditions := []any{patch(ConditionType, want.ready), patch(HealthType, want.healthy)}
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
}

// writeEvent creates the Event, or increments the count of an earlier one about the same.
// One with the same time was written by an earlier process that ended before it could
// update the memory.
func (v *Publisher) writeEvent(ctx context.Context, e event) error {
	made := v.buildEvent(e)
	err := v.Client.CreateEvent(ctx, made)
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return wrapEventError(e, err)
	}
	there, err := v.Client.PatchEvent(ctx, made.Namespace, made.Name, []byte("{}"))
	if err != nil {
		return wrapEventError(e, err)
	}
	if !there.LastTimestamp.Time.Before(made.LastTimestamp.Time) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"count": there.Count + 1, "lastTimestamp": made.LastTimestamp, "message": made.Message})
	if err != nil {
		return err
	}
	_, err = v.Client.PatchEvent(ctx, made.Namespace, made.Name, patch)
	return wrapEventError(e, err)
}

func wrapEventError(e event, err error) error {
	if err != nil {
		return fmt.Errorf("write the Event %s %q: %w", e.reason, e.message, err)
	}
	return nil
}

// buildEvent builds the Event. Its name is derived from the Node and the subject, so that a
// repetition is counted and not listed again. UID and Node are as the kubelet writes them,
// since kubectl describe node selects by them.
func (v *Publisher) buildEvent(e event) *corev1.Event {
	about := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", v.Node, e.about, e.kind, e.reason))
	const longest = 200 // of 253, to leave room for the hash
	node := strings.TrimRight(v.Node[:min(len(v.Node), longest)], ".-")
	at := metav1.NewTime(e.time.UTC().Truncate(time.Second)) // the stored precision
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: kube.EventNamespace, Name: node + "." + hex.EncodeToString(about[:8])},
		InvolvedObject:      corev1.ObjectReference{Kind: "Node", Name: v.Node, UID: types.UID(v.Node)},
		Type:                e.kind,
		Reason:              e.reason,
		Message:             e.message,
		Count:               1,
		FirstTimestamp:      at,
		LastTimestamp:       at,
		Source:              corev1.EventSource{Component: Component, Host: v.Node},
		ReportingController: Component,
		ReportingInstance:   v.Node,
	}
}
