package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/migrate"
)

// exitUnread is the exit code of migrate if the cluster cannot be read.
const exitUnread = 3

const migrateUsage = `Hand the nodes of a cluster over from NVIDIA's GPU Operator to gpuready's, one by one while
NVIDIA's operator goes on running, and back. Only labels of Nodes are written. No pod is
evicted: running pods keep their GPUs.

Usage:
  kubectl gpu migrate [plan]        show who serves each node, what is in the way, what to do next
  kubectl gpu migrate node NODE...  hand nodes over to gpuready, one after the other
  kubectl gpu migrate back NODE...  give nodes back to NVIDIA's operator
  kubectl gpu migrate COMMAND --help
` + migrateExits

const migrateExits = `
Exit codes:
  0  nothing is in the way; node, back: the nodes are handed over
  1  something is in the way: the reasons are listed; node, back: a node was refused, or was not
     ready in time
  2  bad usage
  3  the cluster cannot be read
`

const migratePlanUsage = `Show how far the migration from NVIDIA's GPU Operator is: both operators, the
ClusterPolicies and what gpuready does not follow in them, the operands, and for each GPU
node who serves it, which pods have its GPUs, what is in the way, and the next command. It
only reads.

For what becomes of a policy in full, with images and drivers, see:
kubectl get clusterpolicy -o yaml | gpu-operator check -

Examples:
  kubectl gpu migrate
  kubectl gpu migrate plan -o json | jq -r '.nodes[] | select(.servedBy == "nvidia") | .name'
`

const migrateNodeUsage = `Hand nodes over from NVIDIA's operator to gpuready's, one after the other. First NVIDIA's
operands leave the node. When their pods have ended, gpuready's start, and the command
waits until gpuready's validator has proven the node. Running pods keep their GPUs. New pods
get GPUs again when the device plugin has registered.

A node with a known problem is refused, and nothing is written to it; the others follow.
A node that is not ready within --timeout stays as it is, and no other follows. Run the
command again to continue.

Examples:
  kubectl gpu migrate node gpu-1 --dry-run
  kubectl gpu migrate node gpu-1
  kubectl gpu migrate node --all
`

const migrateBackUsage = `Give nodes back from gpuready's operator to NVIDIA's, one after the other. First gpuready's
operands leave the node. When their pods have ended, NVIDIA's operator gets the node again,
and the command waits until all of its operands there are ready. Running pods keep their
GPUs.

Examples:
  kubectl gpu migrate back gpu-1
  kubectl gpu migrate back --all
`

func migrateCluster(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	name := "plan"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	} else if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
		_, err := io.WriteString(stdout, migrateUsage)
		return err
	}
	switch name {
	case "plan":
		return planMigration(ctx, args, stdout)
	case "node":
		return moveNodes(ctx, "node", migrateNodeUsage, migrate.GPUReady, args, stdout, stderr)
	case "back":
		return moveNodes(ctx, "back", migrateBackUsage, migrate.NVIDIA, args, stdout, stderr)
	}
	err := cmdline.UnknownCommand(name, []string{"plan", "node", "back"})
	return program.WithExitCode(program.Usage, cmdline.AddHelp(err, "kubectl gpu migrate"))
}

// readSnapshot reads the cluster.
func (c *command) readSnapshot(ctx context.Context, mover *migrate.Mover) (err error) {
	if mover.Client, err = c.client(); err != nil {
		return err
	}
	if mover.Snapshot, err = migrate.Read(ctx, mover.Client); err != nil {
		mover.Client.Close()
		return program.WithExitCode(exitUnread, err)
	}
	return nil
}

func planMigration(ctx context.Context, args []string, stdout io.Writer) error {
	c := newCommandWithExits("migrate plan", migratePlanUsage, migrateExits, stdout)
	c.formatFlag("name")
	if err := c.parse(args); err != nil {
		return err
	}
	var m migrate.Mover
	if err := c.readSnapshot(ctx, &m); err != nil {
		return err
	}
	defer m.Client.Close()
	p := migrate.NewPlan(m.Snapshot, time.Now())
	if err := c.write(stdout, migrationPlan(p), migrationPlan(p).text); err != nil {
		return err
	}
	if n := p.CountRefusals(); n > 0 {
		return fmt.Errorf("in the way: %d, see above", n)
	}
	return nil
}

func moveNodes(ctx context.Context, name, usage string, to migrate.Side, args []string, stdout, stderr io.Writer) error {
	c := newCommandWithExits("migrate "+name, usage, migrateExits, stdout)
	c.formatFlag()
	m := &migrate.Mover{To: to, Progress: stderr}
	all := c.flags.Bool("all", false, "all nodes of the other operator, in the order of their names")
	dry := c.flags.Bool("dry-run", false, "print what would be written, and write nothing")
	c.flags.BoolVar(&m.WithPods, "with-gpu-pods", false, "also nodes with a driver container on which pods use GPUs: new pods get no GPU until these have ended")
	c.flags.DurationVar(&m.Timeout, "timeout", 10*time.Minute, "how long to wait for one node")
	if err := c.parseNames(args); err != nil {
		return err
	}
	names := c.flags.Args()
	switch {
	case *all == (len(names) > 0):
		return program.UsageErrorf("name the nodes, or say --all; see %s --help", c.flags.Name())
	case m.Timeout <= 0:
		return program.UsageErrorf("--timeout must be above 0")
	}
	if err := c.readSnapshot(ctx, m); err != nil {
		return err
	}
	defer m.Client.Close()
	if *all {
		names = m.Candidates()
	}
	moves := planMoves(m, names)
	if *dry {
		if err := c.write(stdout, moves, moves.text); err != nil {
			return err
		}
		return moves.outcome()
	}
	err := moves.run(func(node string) error { return m.Move(ctx, node) })
	return errors.Join(err, c.write(stdout, moves, moves.text))
}

// nodeMove describes what becomes of one node.
type nodeMove struct {
	Node    string         `json:"node"`
	Refused []string       `json:"refused,omitempty"`
	Steps   []migrate.Step `json:"steps,omitempty"`
	Done    bool           `json:"done"`
}

type nodeMoves []nodeMove

// planMoves decides which nodes are moved.
func planMoves(m *migrate.Mover, names []string) nodeMoves {
	moves := nodeMoves{}
	for _, name := range names {
		move := nodeMove{Node: record.Clean(name, 256), Refused: m.Refusals(name)}
		if len(move.Refused) == 0 {
			move.Steps = migrate.Steps(m.To)
		}
		moves = append(moves, move)
	}
	return moves
}

// run moves the nodes that are not refused, until one fails. A node that has got a known problem
// since they were planned is refused, too.
func (all nodeMoves) run(move func(node string) error) error {
	for i := range all {
		if len(all[i].Refused) > 0 {
			continue
		}
		err := move(all[i].Node)
		if refused, is := errors.AsType[*migrate.RefusedError](err); is {
			all[i].Refused, all[i].Steps = refused.Reasons, nil
			continue
		}
		if err != nil {
			return err
		}
		all[i].Done = true
	}
	return all.outcome()
}

// outcome returns an error if a node was refused.
func (all nodeMoves) outcome() error {
	refused := 0
	for _, move := range all {
		if len(move.Refused) > 0 {
			refused++
		}
	}
	if refused > 0 {
		return fmt.Errorf("nodes refused: %d of %d, see above", refused, len(all))
	}
	return nil
}
