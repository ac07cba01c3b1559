package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/measure"
)

const cleanupUsage = `Remove the workloads and NodeClaims that a killed run has left in the cluster. With
--policy-file, also recreate the ClusterPolicy that it had deleted. A run that ends by itself
or by Ctrl-C leaves nothing.

Usage:
  gpu-provision cleanup [--policy-file FILE] [--dry-run]

Examples:
  gpu-provision cleanup --dry-run
  gpu-provision cleanup --policy-file run/gpu-provision-clusterpolicy.json
`

func runCleanup(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("gpu-provision cleanup", cleanupUsage, exitCodes, stdout)
	var where cluster.Options
	dry := f.Bool("dry-run", false, "say what would be done, and do nothing")
	file := f.String("policy-file", "", "file with the ClusterPolicy to create again, unless the cluster has one of that name")
	clusterFlags(f, &where)
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	var policy map[string]any
	if *file != "" {
		if err := readManifest(*file, &policy); err != nil {
			return program.UsageErrorf("--policy-file: %w", err)
		}
	}
	client, err := connectCluster(where)
	if err != nil {
		return err
	}
	defer client.Close()
	done, err := measure.Cleanup(ctx, client, policy, *dry)
	prefix := ""
	if *dry {
		prefix = "would "
	}
	for _, action := range done {
		fmt.Fprintln(stdout, prefix+action)
	}
	if err == nil && len(done) == 0 {
		fmt.Fprintln(stdout, "there is nothing to clean up")
	}
	return err
}
