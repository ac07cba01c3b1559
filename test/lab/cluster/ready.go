package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// waitReady waits until the nodes are Ready in their current boot: Ready from before a reboot does not count.
func waitReady(ctx context.Context, client *folder.Client, nodes ...*Node) error {
	waiting := map[string]*Node{}
	why := map[string]string{} // the latest reason of each node that is not Ready
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
	if err == nil || !errors.Is(err, ctx.Err()) { // all are Ready, or a kubelet ends again and again, or the watch failed
		return err
	}
	errs := []error{fmt.Errorf("waiting for nodes to be Ready: %w", err)}
	for name, n := range waiting {
		reason := why[name]
		if reason == "" {
			reason = "it has not registered since its last boot"
		}
		errs = append(errs, n.machine.WithLog(kubelet, errors.New(reason)))
	}
	return errors.Join(errs...)
}
