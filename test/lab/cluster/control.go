package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Serve takes commands from other processes until ctx is done: bin/cluster reboot, add-node and remove-node. It
// must have returned before Down is called.
func (c *Cluster) Serve(ctx context.Context) error { return c.folder.Serve(ctx, commands{c}) }

// EndedNodes returns the nodes whose first process has ended by itself, and with it everything on the node.
func (c *Cluster) EndedNodes() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.Nodes {
		if n.hasEnded() {
			names = append(names, n.Name)
		}
	}
	return names
}

// commands are the commands of other processes.
type commands struct{ c *Cluster }

// RebootNode reboots a node, also one that has ended.
func (o commands) RebootNode(ctx context.Context, name string) error {
	n, err := o.node(name)
	if err != nil {
		return err
	}
	if err := n.Reboot(ctx); err != nil {
		return fmt.Errorf("reboot node %s: %w", name, err)
	}
	return nil
}

// AddNode adds a node of that name or, if name is "", of the first free one among n1, n2, …
func (o commands) AddNode(ctx context.Context, name string) (string, error) {
	for number := 1; name == ""; number++ {
		if free := fmt.Sprintf("n%d", number); o.c.Node(free) == nil {
			name = free
		}
	}
	_, err := o.c.AddNode(ctx, name, NodeSpec{})
	return name, err
}

// RemoveNode removes a node.
func (o commands) RemoveNode(ctx context.Context, name string) error {
	if _, err := o.node(name); err != nil {
		return err
	}
	return o.c.RemoveNode(ctx, name)
}

// EndedNodes returns the nodes that have ended by themselves.
func (o commands) EndedNodes() []string { return o.c.EndedNodes() }

// node returns a node, or an error that lists those that there are.
func (o commands) node(name string) (*Node, error) {
	if n := o.c.Node(name); n != nil {
		return n, nil
	}
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	var names []string
	for _, n := range o.c.Nodes {
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		return nil, errors.New("the cluster has no nodes")
	}
	slices.Sort(names)
	return nil, fmt.Errorf("there is no node %s; there are %s", name, strings.Join(names, ", "))
}
