package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
)

const serveUsage = `Show who offers a node's GPUs to pods, and who holds them; or choose who offers them:

  plugin   the device plugin, as resources such as nvidia.com/gpu
  dra      gpu-dra-driver, as devices in ResourceSlices, for pods with ResourceClaims

The choice is the node's label nvidia.com/gpu.serve. Pods that run keep their GPUs: each GPU
is offered by the other side when its pod has ended. No drain is needed, and the choice may
be changed at any time. See docs/plugin-to-dra.md.

With --wait it shows each change, and ends when the other side offers all GPUs that are
healthy, and no pod of this side holds one.

Examples:
  kubectl gpu serve gpu-7
  kubectl gpu serve gpu-7 dra
  kubectl gpu serve gpu-7 dra --wait --timeout 2h
  kubectl gpu serve gpu-7 plugin --wait
  kubectl gpu serve gpu-7 -o json | jq -r '.claims[].name'
`

const serveExits = `
Exit codes:
  0  shown, or chosen; with --wait: the switch is complete
  1  the node cannot be read or labelled, or another failure
  2  bad usage
  3  --wait: not complete within --timeout
`

// serving describes who offers a node's GPUs and who holds them.
type serving struct {
	Node  string `json:"node"`
	Label string `json:"label,omitempty"` // "": the device plugin's --serve counts
	// Serve names the side that offers GPUs now; "": nobody does.
	Serve       string           `json:"serve,omitempty"`
	Allocatable map[string]int64 `json:"allocatable"` // by resource
	Published   []string         `json:"published"`   // devices in ResourceSlices
	Pods        []cluster.Holder `json:"pods"`        // that hold GPUs of the device plugin
	Claims      []cluster.Holder `json:"claims"`      // that hold GPUs of gpu-dra-driver
	Complete    bool             `json:"complete"`    // one side offers, and nobody holds a GPU of the other
	Ready       string           `json:"ready"`       // the condition GPUReady, for people
}

// serveNode is the command serve.
func serveNode(ctx context.Context, args []string, stdout, _ io.Writer) error {
	c := newCommandWithExits("serve", serveUsage, serveExits, stdout)
	c.formatFlag()
	wait := c.flags.Bool("wait", false, "wait until the switch is complete")
	timeout := c.flags.Duration("timeout", 30*time.Minute, "with --wait: how long")
	if err := c.parseNames(args); err != nil {
		return err
	}
	node, by := c.flags.Arg(0), c.flags.Arg(1)
	switch {
	case c.flags.NArg() < 1 || c.flags.NArg() > 2:
		return program.UsageErrorf("serve takes NODE, or NODE and plugin or dra, not %d arguments; see kubectl gpu serve --help", c.flags.NArg())
	case by != "" && by != nodestate.ServePlugin && by != nodestate.ServeDRA:
		return program.UsageErrorf("%.80q cannot serve; say plugin or dra", by)
	case *timeout <= 0:
		return program.UsageErrorf("--timeout is %v; it must be above 0", *timeout)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if by != "" {
		if err := chooseServe(ctx, client, node, by); err != nil {
			return err
		}
	}
	if *wait {
		return c.waitServe(ctx, client, node, *timeout, stdout)
	}
	s, err := readServing(ctx, client, node)
	if err != nil {
		return err
	}
	return c.write(stdout, s, s.text)
}

// maxConflicts bounds the attempts to label a Node that others change at the same time.
const maxConflicts = 5

// chooseServe sets the node's label, unless it has that value.
func chooseServe(ctx context.Context, client *cluster.Client, name, by string) error {
	for attempt := 0; ; attempt++ {
		node, err := client.Node(ctx, name)
		if err != nil {
			return fmt.Errorf("read Node %s: %w", name, err)
		}
		if node.Labels[nodestate.ServeLabel] == by {
			return nil
		}
		err = client.LabelNode(ctx, node, map[string]string{nodestate.ServeLabel: by})
		if apierrors.IsConflict(err) && attempt < maxConflicts { // another writer changed the Node meanwhile
			continue
		}
		if err != nil {
			return fmt.Errorf("label Node %s: %w", name, err)
		}
		return nil
	}
}

// waitServe shows the node after each change, until the switch is complete.
func (c *command) waitServe(ctx context.Context, client *cluster.Client, node string, timeout time.Duration, stdout io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not complete within %v (--timeout)", timeout))
	defer cancel()
	shown := ""
	for {
		s, err := readServing(ctx, client, node)
		switch {
		case ctx.Err() != nil:
		case permanent(err):
			return err
		case err == nil:
			var text strings.Builder
			if err := c.write(&text, s, s.text); err != nil {
				return err
			}
			if text.String() != shown {
				shown = text.String()
				if _, err := io.WriteString(stdout, shown); err != nil {
					return err
				}
			}
			if s.Complete {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return program.WithExitCode(exitNothing, cause)
			}
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

func readServing(ctx context.Context, client *cluster.Client, node string) (serving, error) {
	o, err := client.Offer(ctx, node)
	if err != nil {
		return serving{}, fmt.Errorf("read Node %s: %w", node, err)
	}
	return servingOf(o), nil
}

// servingOf sums up what a node offers.
func servingOf(o cluster.Offer) serving {
	s := serving{Node: o.Node.Name, Label: record.Clean(o.Node.Labels[nodestate.ServeLabel], 64), Allocatable: map[string]int64{},
		Published: append([]string{}, o.Published...), Pods: append([]cluster.Holder{}, o.Pods...), Claims: append([]cluster.Holder{}, o.Claims...), Ready: "no condition GPUReady"}
	slices.Sort(s.Published)
	total := int64(0)
	for name, n := range o.Node.Status.Allocatable {
		if strings.HasPrefix(string(name), "nvidia.com/") {
			s.Allocatable[string(name)] = n.Value()
			total += n.Value()
		}
	}
	switch {
	case len(s.Published) > 0 && total == 0:
		s.Serve, s.Complete = nodestate.ServeDRA, len(s.Pods) == 0
	case len(s.Published) == 0 && total > 0:
		s.Serve, s.Complete = nodestate.ServePlugin, len(s.Claims) == 0
	}
	if s.Label != "" {
		s.Complete = s.Complete && s.Label == s.Serve
	}
	for _, c := range o.Node.Status.Conditions {
		if c.Type == corev1.NodeConditionType("GPUReady") {
			s.Ready = fmt.Sprintf("%s %s: %s", c.Status, record.Clean(c.Reason, 64), record.Clean(c.Message, 1024))
		}
	}
	return s
}

// text writes the node for people.
func (s serving) text(w io.Writer, look style) error {
	p := &pen{style: look}
	who := map[string]string{"": "nobody offers GPUs", nodestate.ServePlugin: "the device plugin offers GPUs", nodestate.ServeDRA: "gpu-dra-driver offers GPUs"}[s.Serve]
	chosen := "no label " + nodestate.ServeLabel
	if s.Label != "" {
		chosen = nodestate.ServeLabel + "=" + s.Label
	}
	color, state := yellow, "the switch is not complete"
	if s.Complete {
		color, state = green, "complete"
	}
	p.line(color, 0, fmt.Sprintf("%s: %s (%s), %s", s.Node, who, chosen, state))
	var resources []string
	for name, n := range s.Allocatable {
		resources = append(resources, fmt.Sprintf("%s: %d", name, n))
	}
	slices.Sort(resources)
	p.line("", 2, "allocatable: "+cmp.Or(strings.Join(resources, ", "), "none"))
	p.line("", 2, "in ResourceSlices: "+cmp.Or(strings.Join(s.Published, ", "), "none"))
	for _, h := range s.Pods {
		p.line("", 2, "pod "+h.Name+" holds "+strings.Join(h.Devices, ", "))
	}
	for _, h := range s.Claims {
		p.line("", 2, "claim "+h.Name+" holds "+strings.Join(h.Devices, ", "))
	}
	p.line(dim, 2, "GPUReady: "+s.Ready)
	_, err := io.WriteString(w, p.String())
	return err
}
