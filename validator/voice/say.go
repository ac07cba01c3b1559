package voice

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

// Component is whose Events they are.
const Component = "gpu-validator"

// spoken is what the Node itself is to say.
type spoken struct {
	ready, healthy Condition
	taint          wish
}

// sayNode makes the Node's conditions what they are to be, and then its taints.
func (v *Voice) sayNode(ctx context.Context, want spoken) error {
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
	if err := v.sayTaint(ctx, node, want.taint); err != nil {
		return err
	}
	v.log(ConditionType, v.spoken.ready, want.ready)
	v.log(HealthType, v.spoken.healthy, want.healthy)
	v.spoken, v.saidAt = want, v.Now()
	return nil
}

func (v *Voice) log(kind corev1.NodeConditionType, was, is Condition) {
	if is.Status != was.Status || is.Reason != was.Reason {
		v.Log.Info("said", "condition", string(kind), "status", string(is.Status), "reason", is.Reason, "message", is.Message)
	}
}

// conditionPatch merges into the conditions by their type, so that those of
// others stay. The time of the transition is left out where there was none: then
// it stays what it is.
func (v *Voice) conditionPatch(node *corev1.Node, want spoken) ([]byte, error) {
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

// sayEvent creates the Event, or counts up the one that told of the same before.
// One that is of this very time was said by an earlier process that did not come
// to write that down.
func (v *Voice) sayEvent(ctx context.Context, e event) error {
	made := v.event(e)
	err := v.Client.CreateEvent(ctx, made)
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return wrap(e, err)
	}
	there, err := v.Client.PatchEvent(ctx, made.Namespace, made.Name, []byte("{}"))
	if err != nil {
		return wrap(e, err)
	}
	if !there.LastTimestamp.Time.Before(made.LastTimestamp.Time) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"count": there.Count + 1, "lastTimestamp": made.LastTimestamp, "message": made.Message})
	if err != nil {
		return err
	}
	_, err = v.Client.PatchEvent(ctx, made.Namespace, made.Name, patch)
	return wrap(e, err)
}

func wrap(e event, err error) error {
	if err != nil {
		return fmt.Errorf("say the Event %s %q: %w", e.reason, e.message, err)
	}
	return nil
}

// event is as it is created. Its name follows from the Node and from what it is
// about, so that the same is counted and not listed again; UID and Node are as
// the kubelet writes them, and kubectl describe node looks for them.
func (v *Voice) event(e event) *corev1.Event {
	about := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", v.Node, e.about, e.kind, e.reason))
	const longest = 200 // of 253, the hash is to have room
	node := strings.TrimRight(v.Node[:min(len(v.Node), longest)], ".-")
	at := metav1.NewTime(e.time.UTC().Truncate(time.Second)) // as it is stored
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
