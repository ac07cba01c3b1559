package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// reportedEverywhere waits until all places that people and programs look at name the reason why a node has
// no driver, and the word of its message that leads to the cause.
func (b *built) reportedEverywhere(t *testing.T, node, reason, word string) {
	t.Helper()
	const validator = "app=nvidia-operator-validator"
	podOn := func(label string) (*corev1.Pod, error) {
		for _, p := range b.World.Pods(namespace, label) {
			if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
				return p, nil
			}
		}
		return nil, fmt.Errorf("there is no pod with %s", label)
	}
	for place, report := range map[string]func() (string, error){
		"the Node's condition": func() (string, error) {
			c := b.World.Condition(node, "GPUReady")
			if c == nil || c.Status != corev1.ConditionFalse {
				return "", fmt.Errorf("it is %+v", c)
			}
			return c.Reason + " " + c.Message, nil
		},
		"an Event of the Node": func() (string, error) {
			for _, e := range b.World.Events("Node", node) {
				if e.Reason == reason && e.Type == corev1.EventTypeWarning {
					return e.Reason + " " + e.Message, nil
				}
			}
			return "", errors.New("no Warning has this reason")
		},
		"gpu-validator explain": func() (string, error) { return b.run(t, "gpu-validator", "explain", "--node", node) },
		"gpu-validator wait": func() (string, error) {
			return b.run(t, "gpu-validator", "wait", "driver", "--timeout", "100ms", "--host-root", b.Node(node).PathOnNode("/"))
		},
		"the driver's log": func() (string, error) {
			p, err := podOn("app=nvidia-driver-daemonset")
			if err != nil {
				return "", err
			}
			return b.TryKubectl(t, "-n", namespace, "logs", p.Name, "-c", driverContainer)
		},
		"the validator's log": func() (string, error) {
			p, err := podOn(validator)
			if err != nil {
				return "", err
			}
			return b.TryKubectl(t, "-n", namespace, "logs", p.Name)
		},
		"the metric": func() (string, error) {
			p, err := podOn(validator)
			if err != nil {
				return "", err
			}
			text, err := b.World.Client.CoreV1().RESTClient().Get().
				AbsPath(fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9404/proxy/metrics", p.Namespace, p.Name)).DoRaw(t.Context())
			if err == nil && !strings.Contains(string(text), fmt.Sprintf("gpuready_layer_not_ready_reason{layer=\"driver\",reason=%q} 1", reason)) {
				err = errors.New("no layer has the reason")
			}
			return reason + " " + word, err // it has no room for a message
		},
	} {
		b.until(t, place+" names "+reason, func() error {
			text, err := report()
			return lacks(text, err, []string{reason, word})
		})
	}
}
