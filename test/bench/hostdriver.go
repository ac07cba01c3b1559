package main

import (
	"context"
	"errors"
	"time"
)

// hostDriver measures one life of the device plugin on a node whose driver is installed on the
// host itself, in /, with 8 GPUs and the strategy envvar: the default shape of NVIDIA's device
// plugin, so that the two can be compared. The driver is found by searching, not by
// --driver-root.
func (b *bench) hostDriver(ctx context.Context) error {
	const gpus = 8
	n, err := b.makeNode(ctx, &node{bench: b, program: b.program(pluginProgram), onHost: true}, "h100-sxm", gpus)
	if err != nil {
		return err
	}
	defer n.close()
	var lists, xids, stops []time.Duration
	for range b.starts {
		p, err := n.startPlugin(ctx, gpus, "")
		if err != nil {
			return err
		}
		lists = append(lists, p.took)
		if err := sleep(ctx, calm); err != nil {
			return err
		}
		began, err := n.xid(0)
		if err != nil {
			return err
		}
		listed, err := n.waitForDevices(ctx, gpus-1)
		if err != nil {
			return p.failed(err)
		}
		xids = append(xids, listed.Sub(began))
		if err := errors.Join(sleep(ctx, calm), p.stop(ctx), n.restoreGPUs()); err != nil {
			return err
		}
		stops = append(stops, p.stopped)
	}
	show("device plugin, driver in /, envvar: exec → the kubelet has 8 GPUs", lists, within(15*time.Millisecond, 0))
	show("device plugin, driver in /, envvar: XID → the GPU is unhealthy", xids, within(700*time.Microsecond, 0))
	show("device plugin, driver in /, envvar: SIGTERM → exit", stops, within(20*time.Millisecond, 0))
	return nil
}
