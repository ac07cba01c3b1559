package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
)

// errGoesOn means that this process was interrupted, and the one that holds the cluster goes on.
var errGoesOn = errors.New("interrupted; the process that holds the cluster carries it out all the same")

// changeNode has the process that holds the cluster reboot, add or remove a node.
func changeNode(ctx context.Context, o options, out io.Writer) error {
	s, err := folder.FindRecord(o.name)
	if err != nil {
		return err
	}
	began, node, what := time.Now(), o.node, "rebooted, and Ready"
	switch o.command {
	case "reboot":
		err = s.RebootNode(ctx, node, o.timeout)
	case "add-node":
		node, err = s.AddNode(ctx, node, o.timeout)
		what = "added, and Ready"
	case "remove-node":
		err = s.RemoveNode(ctx, node, o.timeout)
		what = "removed"
	}
	switch {
	case ctx.Err() != nil:
		return errGoesOn
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(out, "node %s is %s, after %.1f s\n", node, what, time.Since(began).Seconds())
	return err
}

// watchNodes reports, once each, the nodes whose first process has ended by itself, until ctx is done.
func watchNodes(ctx context.Context, c *cluster.Cluster, out io.Writer) {
	told := map[string]bool{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		ended := map[string]bool{}
		for _, name := range c.EndedNodes() {
			if ended[name] = true; !told[name] {
				fmt.Fprintf(out, "node %s has ended: its first process was killed; %s\n", name, revive(c.Name, name))
			}
		}
		told = ended
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// revive returns the advice to reboot a node that has ended.
func revive(name, node string) string {
	if name == cluster.DefaultName {
		return "bin/cluster reboot " + node + " starts it again"
	}
	return "bin/cluster reboot " + node + " --name " + name + " starts it again"
}
