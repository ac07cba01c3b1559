package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// waitReady waits until the nodes are Ready, each since its last boot.
func waitReady(ctx context.Context, client *folder.Client, nodes ...*Node) error {
	waiting, why := map[string]*Node{}, map[string]string{}
	ctx, cancel := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel(nil)
	for _, n := range nodes {
		waiting[n.Name] = n
		watchers.Go(func() {
			if err := n.machine.WaitCrashing(ctx, kubelet); err != nil {
				cancel(err)
			}
		})
	}
	err := client.WatchNodes(ctx, func(seen folder.NodeObject) bool {
		n := waiting[seen.Metadata.Name]
		if n == nil || seen.Status.NodeInfo.BootID != n.bootID {
			return false
		}
		if ready, message := seen.Ready(); ready {
			delete(waiting, n.Name)
		} else {
			why[n.Name] = message
		}
		return len(waiting) == 0
	})
	if err == nil || !errors.Is(err, ctx.Err()) { // ready, or its kubelet does not run
		return err
	}
	errs := []error{fmt.Errorf("waiting for nodes to be Ready: %w", err)}
	for name, n := range waiting {
		reason := why[name]
		if reason == "" {
			reason = "the API server has not heard of this boot of it"
		}
		errs = append(errs, n.machine.WithLog(kubelet, errors.New(reason)))
	}
	return errors.Join(errs...)
}
