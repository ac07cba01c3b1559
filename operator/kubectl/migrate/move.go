package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
)

// Mover moves nodes from one side to the other. It writes labels of Nodes and nothing else.
type Mover struct {
	Client   *cluster.Client
	Snapshot *Snapshot
	To       Side          // GPUReady or NVIDIA
	WithPods bool          // move a node although pods keep its driver loaded
	Timeout  time.Duration // of one node
	Progress io.Writer
}

// ErrRefused means that a node was not moved because of a known problem. Nothing was written.
var ErrRefused = errors.New("refused")

// RefusedError is an ErrRefused with the reasons.
type RefusedError struct {
	Reasons []string // each with what to do
}

func (e *RefusedError) Error() string {
	return ErrRefused.Error() + ": " + strings.Join(e.Reasons, "; ")
}
func (e *RefusedError) Unwrap() error { return ErrRefused }

// Step is a change of a node's labels. A value "" removes the label.
type Step struct {
	Labels map[string]string `json:"labels"`
	Then   string            `json:"then"` // what is waited for before the next step
}

// Command returns the kubectl command with the same effect.
func (s Step) Command(node string) string {
	words := []string{"kubectl label node", node, "--overwrite"}
	for _, key := range []string{label.Operands, label.HandOver} {
		if value := s.Labels[key]; value != "" {
			words = append(words, key+"="+value)
		} else {
			words = append(words, key+"-")
		}
	}
	return strings.Join(words, " ")
}

// Steps returns the changes that move a node.
func Steps(to Side) []Step {
	begin := map[string]string{label.Operands: "false", label.HandOver: Moving}
	if to == NVIDIA {
		return []Step{
			{begin, "gpuready's pods on the node have ended"},
			{map[string]string{label.Operands: "", label.HandOver: ""}, "NVIDIA's pods on the node are ready"},
		}
	}
	return []Step{
		{begin, "NVIDIA's pods on the node have ended"},
		{map[string]string{label.Operands: "false", label.HandOver: label.Product}, "gpuready's validator has proven the node"},
	}
}

// Refusals lists why a node is not to be moved, each with what to do.
func (m *Mover) Refusals(name string) []string {
	s := m.Snapshot
	i := slices.IndexFunc(s.Nodes, func(v cluster.NodeView) bool { return v.Node.Name == name })
	all := s.clusterRefusals(m.To)
	if m.To == GPUReady && !runs(s.NVIDIA) && i >= 0 && s.sideOf(s.Nodes[i].Node) == Between {
		all = s.withoutNVIDIA() // NVIDIA's operator stopped before the node was handed over
	}
	switch {
	case len(all) > 0:
		return all
	case i < 0:
		return []string{"there is no such Node with an NVIDIA GPU: see kubectl gpu migrate plan"}
	}
	return s.refusals(s.Nodes[i], m.To, m.WithPods)
}

// Candidates returns the nodes that are still to be moved. A node that was handed over can be given
// back although gpuready's operator does not run.
func (m *Mover) Candidates() (names []string) {
	for _, view := range m.Snapshot.Nodes {
		side := m.Snapshot.sideOf(view.Node)
		if side != m.To && (side != Nobody || m.To == NVIDIA && view.Node.Labels[label.HandOver] == label.Product) {
			names = append(names, view.Node.Name)
		}
	}
	return names
}

// Move moves a node and waits until the new side is ready. If that is not within Timeout, the node
// stays as it is then, and the error says what to do. The error is a RefusedError if the node has got a
// known problem since the snapshot.
func (m *Mover) Move(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.Timeout, fmt.Errorf("not done within %v (--timeout)", m.Timeout))
	defer cancel()
	began, last := time.Now(), ""
	report := func(text string) {
		if text != last {
			last = text
			fmt.Fprintf(m.Progress, "%s  %5.0fs  %s\n", name, time.Since(began).Seconds(), text)
		}
	}
	var latest cluster.NodeView
	err := m.Client.FollowNode(ctx, name, func(view cluster.NodeView) (bool, error) {
		latest = view
		return m.advance(ctx, view, report)
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w; it waited for this: %s. The node stays as it is: %s", name, context.Cause(ctx), cmp.Or(last, "an answer of the API server"), m.advice(name, len(m.Snapshot.leaving(latest, m.To)) > 0))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	report("done")
	return nil
}

// advice says what to do with a node that was not ready in time. leaving says that pods of the other
// side are still there.
func (m *Mover) advice(name string, leaving bool) string {
	see, other := "kubectl gpu explain "+name, "back"
	if m.To == NVIDIA {
		other = "node"
	}
	switch {
	case leaving && m.To == NVIDIA:
		see = "gpuready's pods there"
	case leaving || m.To == NVIDIA:
		see = "NVIDIA's pods there"
	}
	return "see " + see + ", and run the command again to continue, or kubectl gpu migrate " + other + " " + name
}

// advance writes the next step of a node if its time has come, and reports whether the node is done.
func (m *Mover) advance(ctx context.Context, view cluster.NodeView, report func(string)) (done bool, err error) {
	if view.Node == nil {
		return false, errors.New("the Node is gone")
	}
	labels, waits := m.next(view)
	switch {
	case labels == nil && waits == "":
		return true, nil
	case labels == nil:
		report(waits)
		return false, nil
	}
	if m.begins(view) {
		m.Snapshot.readClaims(ctx, m.Client) // the view may have newer pods
		if all := m.Snapshot.refusals(view, m.To, m.WithPods); len(all) > 0 {
			return false, &RefusedError{all}
		}
	}
	err = m.Client.LabelNode(ctx, view.Node, labels)
	switch {
	case apierrors.IsConflict(err):
		return false, nil // the watch brings the newer Node
	case err != nil:
		return false, fmt.Errorf("label the Node: %w", err)
	}
	report(Step{Labels: labels}.Command(view.Node.Name))
	return false, nil
}

// next returns the change of a node's labels whose time has come, or what is waited for. Both are
// empty if the node is done.
func (m *Mover) next(view cluster.NodeView) (labels map[string]string, waits string) {
	s, steps := m.Snapshot, Steps(m.To)
	leaving, leaver := s.leaving(view, m.To), "NVIDIA's"
	if m.To == NVIDIA {
		leaver = "gpuready's"
	}
	switch {
	case m.begins(view):
		return steps[0].Labels, ""
	case len(leaving) > 0:
		return nil, leaver + " pods end: " + list(podNames(leaving))
	case steps[0].isDone(view):
		return steps[1].Labels, ""
	case m.To == NVIDIA:
		waits = s.nvidiaObstacle(view)
	default:
		waits = s.obstacle(view)
	}
	return nil, waits
}

// begins reports whether the first step of a node is still to be written.
func (m *Mover) begins(view cluster.NodeView) bool {
	steps := Steps(m.To)
	return !steps[0].isDone(view) && !steps[1].isDone(view)
}

// isDone reports whether a node has the labels of a step.
func (s Step) isDone(view cluster.NodeView) bool {
	for key, value := range s.Labels {
		if view.Node.Labels[key] != value {
			return false
		}
	}
	return true
}
