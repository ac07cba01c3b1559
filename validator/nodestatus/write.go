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
func (p *Publisher) writeNode(ctx context.Context, want nodeUpdate) error {
	node, err := p.Client.Node(ctx, p.Node)
	if err != nil {
		return fmt.Errorf("read Node %s: %w", p.Node, err)
	}
	patch, err := p.conditionPatch(node, want)
	if err != nil {
		return err
	}
	if err := p.Client.PatchNodeStatus(ctx, p.Node, patch); err != nil {
		return fmt.Errorf("set the conditions %s and %s of Node %s: %w", ConditionType, HealthType, p.Node, err)
	}
	if err := p.applyTaint(ctx, node, want.taint); err != nil {
		return err
	}
	p.log(ConditionType, p.written.ready, want.ready)
	p.log(HealthType, p.written.healthy, want.healthy)
	p.written, p.writtenAt = want, p.Now()
	return nil
}

// stopped is the value of both conditions after the end of the validator.
var stopped = Condition{corev1.ConditionUnknown, ReasonStopped,
	"the validator has ended on this node, and nothing is known of its GPUs until it runs again; if gpuready was removed, kubectl gpu cleanup removes this condition"}

// WriteEnd sets both conditions to Unknown, since nobody renews them after the end of this process.
// It makes one request. Run must have ended.
func (p *Publisher) WriteEnd(ctx context.Context) error {
	// Use the statuses that this process wrote last, which saves a request to read the Node.
	known := &corev1.Node{}
	for kind, c := range map[corev1.NodeConditionType]Condition{ConditionType: p.written.ready, HealthType: p.written.healthy} {
		known.Status.Conditions = append(known.Status.Conditions, corev1.NodeCondition{Type: kind, Status: c.Status})
	}
	patch, err := p.conditionPatch(known, nodeUpdate{ready: stopped, healthy: stopped})
	if err != nil {
		return err
	}
	if err := p.Client.PatchNodeStatus(ctx, p.Node, patch); err != nil {
		return fmt.Errorf("set the conditions %s and %s of Node %s: %w", ConditionType, HealthType, p.Node, err)
	}
	return nil
}

func (p *Publisher) log(kind corev1.NodeConditionType, was, is Condition) {
	if is.Status != was.Status || is.Reason != was.Reason {
		p.Log.Info("set the condition", "condition", string(kind), "status", string(is.Status), "reason", is.Reason, "message", is.Message)
	}
}

// conditionPatch returns a strategic merge patch of the two conditions, which leaves other conditions
// unchanged. It sets lastTransitionTime only for a condition whose status in node differs.
func (p *Publisher) conditionPatch(node *corev1.Node, want nodeUpdate) ([]byte, error) {
	now := p.Now().UTC().Format(time.RFC3339)
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

// writeEvent creates the Event, or increments the count of an earlier one with the same subject, type
// and reason. If the earlier one has the same time, an earlier process wrote it and ended before it
// could update the memory; then nothing is written.
func (p *Publisher) writeEvent(ctx context.Context, e event) error {
	made := p.buildEvent(e)
	err := p.Client.CreateEvent(ctx, made)
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return wrapEventError(e, err)
	}
	there, err := p.Client.PatchEvent(ctx, made.Namespace, made.Name, []byte("{}"))
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
	_, err = p.Client.PatchEvent(ctx, made.Namespace, made.Name, patch)
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
func (p *Publisher) buildEvent(e event) *corev1.Event {
	about := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", p.Node, e.about, e.kind, e.reason))
	const longest = 200 // of 253, to leave room for the hash
	node := strings.TrimRight(p.Node[:min(len(p.Node), longest)], ".-")
	at := metav1.NewTime(e.time.UTC().Truncate(time.Second)) // the stored precision
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: kube.EventNamespace, Name: node + "." + hex.EncodeToString(about[:8])},
		InvolvedObject:      corev1.ObjectReference{Kind: "Node", Name: p.Node, UID: types.UID(p.Node)},
		Type:                e.kind,
		Reason:              e.reason,
		Message:             e.message,
		Count:               1,
		FirstTimestamp:      at,
		LastTimestamp:       at,
		Source:              corev1.EventSource{Component: Component, Host: p.Node},
		ReportingController: Component,
		ReportingInstance:   p.Node,
	}
}
