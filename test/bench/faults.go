package main

import (
	"context"
	"errors"
	"time"

	"github.com/gpuready/gpuready/simulator/state"
)

// calm is the pause between two faults. The plugin checks all GPUs after each fault, and a fault
// in that time would wait for it.
const calm = 100 * time.Millisecond

// xids measures the time from an XID in the driver until the kubelet has a list in which the GPU,
// with all its replicas, is unhealthy.
func (b *bench) xids(ctx context.Context) error {
	for _, row := range []struct {
		name     string
		replicas int
		call     time.Duration
		pause    time.Duration
		goal     goal
	}{
		{"XID → the kubelet has the GPU as unhealthy", 1, 0, calm, within(700*time.Microsecond, 0)},
		{"XID, each of 10 replicas", 10, 0, calm, within(700*time.Microsecond, 0)},
		{"XID, NVML takes 10 µs a call", 1, callCost, calm, goal{}},
		{"XID right after one of another GPU", 1, 0, 0, goal{}},
		{"XID right after another, NVML takes 10 µs a call", 1, callCost, 0, goal{}},
	} {
		took, err := b.xid(ctx, row.replicas, row.call, row.pause)
		if errors.Is(err, errRefused) {
			leaveOut("device plugin: "+row.name, err)
			continue
		}
		if err != nil {
			return err
		}
		show("device plugin: "+row.name, took, row.goal)
	}
	return nil
}

// xid breaks the 8 GPUs one after the other, once for each start of a plugin: a GPU breaks only
// once in a plugin's life.
func (b *bench) xid(ctx context.Context, replicas int, call, pause time.Duration) ([]time.Duration, error) {
	const gpus = 8
	n, err := b.newNode(ctx, "h100-sxm", gpus)
	if err != nil {
		return nil, err
	}
	defer n.close()
	if err := n.setLatency(0, call); err != nil {
		return nil, err
	}
	config := ""
	if replicas > 1 {
		config = sharedConfig(replicas)
	}
	var took []time.Duration
	for range b.starts {
		p, err := n.startPlugin(ctx, gpus*replicas, config)
		if err != nil {
			return nil, err
		}
		for i := range gpus {
			if err := sleep(ctx, pause); err != nil {
				return nil, err
			}
			began, err := n.xid(i)
			if err != nil {
				return nil, err
			}
			listed, err := n.waitForDevices(ctx, (gpus-1-i)*replicas)
			if err != nil {
				return nil, p.failed(err)
			}
			took = append(took, listed.Sub(began))
		}
		if err := errors.Join(p.stop(ctx), n.restoreGPUs()); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// xid makes a GPU fall off the bus, and returns when the driver reported it.
func (n *node) xid(gpu int) (raised time.Time, err error) {
	var events []state.Event
	err = n.driver.Update(func(s *state.State) (err error) {
		events, err = s.ReportXID(gpu, state.XIDFallenOff, state.None, state.None)
		return err
	}, func() []state.Event {
		raised = time.Now()
		return events
	})
	return raised, err
}

// kubelets measures the time from a recreated kubelet.sock, which does not accept yet, until the
// new kubelet has its list.
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
		listed, err := n.waitForDevices(ctx, 8)
		if err != nil {
			return p.failed(err)
		}
		took = append(took, listed.Sub(*n.listening.Load()))
	}
	show("device plugin: kubelet.sock is made anew → the kubelet has 8 GPUs", took, within(6*time.Millisecond, 50*time.Millisecond))
	return p.stop(ctx)
}

// events makes every call about events fail for 3 s, and counts the plugin's calls until all GPUs
// can be allocated again.
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
	unknown, err := state.ParseError("unknown")
	if err != nil {
		return err
	}
	if err := answer(unknown); err != nil {
		return err
	}
	if err := sleep(ctx, failing); err != nil {
		return err
	}
	if err := answer(0); err != nil {
		return err
	}
	mended := time.Now()
	listed, err := n.waitForDevices(ctx, 8)
	if err != nil {
		return p.failed(err)
	}
	after, _ := n.kubelet.Resource(resource)
	lines, err := p.lines()
	if err != nil {
		return err
	}
	const name = "device plugin: events fail for 3 s: "
	count(name+"lists", []float64{float64(after.Lists - before.Lists)}, 0, goal{median: 10})
	count(name+"log lines", []float64{float64(lines - linesBefore)}, 0, goal{median: 20})
	show(name+"mended → 8 GPUs again", []time.Duration{max(0, listed.Sub(mended))}, goal{})
	return p.stop(ctx)
}
