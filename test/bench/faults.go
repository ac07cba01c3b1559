package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuready/gpuready/simulator/gpusim/fault"
	"github.com/gpuready/gpuready/simulator/state"
)

// xids measures from an XID in the driver until the kubelet has a list in which
// the GPU, with all that it is shared into, is unhealthy.
func (b *bench) xids(ctx context.Context) error {
	for _, replicas := range []int{1, 10} {
		name := "device plugin: XID → the kubelet has the GPU as unhealthy"
		config := ""
		if replicas > 1 {
			name, config = fmt.Sprintf("device plugin: the same, all of %d replicas", replicas), shared(replicas)
		}
		took, err := b.xid(ctx, replicas, config)
		if errors.Is(err, errRefused) {
			leaveOut(name, err)
			continue
		}
		if err != nil {
			return err
		}
		show(name, took, within(700*time.Microsecond, 0))
	}
	return nil
}

// xid breaks the 8 GPUs one after the other. A GPU breaks once in a plugin's
// life, so that no sample begins with the memory of another.
func (b *bench) xid(ctx context.Context, replicas int, config string) ([]time.Duration, error) {
	const gpus = 8
	n, err := b.newNode(ctx, "h100-sxm", gpus)
	if err != nil {
		return nil, err
	}
	defer n.close()
	var took []time.Duration
	for range b.starts {
		p, err := n.startPlugin(ctx, gpus*replicas, config)
		if err != nil {
			return nil, err
		}
		for i := range gpus {
			var events []state.Event
			began := time.Now()
			err := n.driver.Update(func(s *state.State) (err error) {
				events, err = fault.XID(s, i, fault.XIDFallenOff, state.None, state.None)
				return err
			}, func() []state.Event { return events })
			if err == nil {
				err = n.wait(ctx, (gpus-1-i)*replicas)
			}
			if err != nil {
				return nil, p.failed(err)
			}
			took = append(took, time.Since(began))
		}
		if err := errors.Join(p.stop(ctx), n.mend()); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// kubelets measures from the moment that kubelet.sock is there again, and does
// not accept yet, until the new kubelet has its list.
func (b *bench) kubelets(ctx context.Context) error {
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return err
	}
	defer n.close()
	p, err := n.startPlugin(ctx, 8, "")
	if err != nil {
		return err
	}
	var took []time.Duration
	for range b.restarts {
		if err := n.kubelet.Restart(); err != nil {
			return err
		}
		if err := n.wait(ctx, 8); err != nil {
			return p.failed(err)
		}
		took = append(took, time.Since(*n.listening.Load()))
	}
	show("device plugin: kubelet.sock is made anew → the kubelet has 8 GPUs", took, within(6*time.Millisecond, 50*time.Millisecond))
	return p.stop(ctx)
}

// events lets every call about events fail for 3 s, and counts what the plugin
// makes of it, until all GPUs can be given away again.
func (b *bench) events(ctx context.Context) error {
	const failing = 3 * time.Second
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return err
	}
	defer n.close()
	p, err := n.startPlugin(ctx, 8, "")
	if err != nil {
		return err
	}
	before, _ := n.kubelet.Resource(resource)
	linesBefore, err := p.lines()
	if err != nil {
		return err
	}
	answer := func(ret uint32) error {
		return n.driver.Update(func(s *state.State) error { s.EventError = ret; return nil })
	}
	unknown, err := fault.Error("unknown")
	if err != nil {
		return err
	}
	if err := answer(unknown); err != nil {
		return err
	}
	select {
	case <-time.After(failing):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := answer(0); err != nil {
		return err
	}
	mended := time.Now()
	if err := n.wait(ctx, 8); err != nil {
		return p.failed(err)
	}
	took := time.Since(mended)
	after, _ := n.kubelet.Resource(resource)
	lines, err := p.lines()
	if err != nil {
		return err
	}
	const name = "device plugin: events fail for 3 s: "
	count(name+"lists", []float64{float64(after.Lists - before.Lists)}, 0, goal{median: 10})
	count(name+"log lines", []float64{float64(lines - linesBefore)}, 0, goal{median: 20})
	show(name+"mended → 8 GPUs again", []time.Duration{took}, goal{})
	return p.stop(ctx)
}
