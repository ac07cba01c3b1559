package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/test/lab/fault"
)

// hostile is the number of connections opened to the metrics port.
const hostile = 4000

// flood measures the cost of hostile connections to the metrics port for the device plugin, and
// how long a probe then waits.
func (b *bench) flood(ctx context.Context) error {
	for _, kind := range []fault.Kind{fault.Unfinished, fault.Unread} {
		more, probes, failed, err := b.flooded(ctx, kind)
		if err != nil {
			return err
		}
		count(fmt.Sprintf("device plugin: memory for %d connections, %s, MB", hostile, kind), more, 1, goal{median: 20})
		show("device plugin: a probe beside them", probes, within(100*time.Millisecond, 0))
		count("device plugin: attempts of these that failed", []float64{float64(failed)}, 0, goal{})
	}
	return nil
}

// flooded returns the memory for the connections, how long each probe took, and how many attempts of
// probes failed.
func (b *bench) flooded(ctx context.Context, kind fault.Kind) (more []float64, probes []time.Duration, failed int, err error) {
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return nil, nil, 0, err
	}
	defer n.close()
	if n.listen, err = freeAddress(); err != nil {
		return nil, nil, 0, err
	}
	n.program = filepath.Join(n.dir, "gpu-device-plugin")
	if err := copyFile(n.program, b.program(pluginProgram)); err != nil {
		return nil, nil, 0, err
	}
	p, err := n.startPlugin(ctx, 8, "")
	if err != nil {
		return nil, nil, 0, err
	}
	own := func() (float64, error) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		if err != nil {
			return 0, p.failed(err)
		}
		return field(string(status), "RssAnon")
	}
	before, err := own()
	if err != nil {
		return nil, nil, 0, err
	}
	attacking, cancel := context.WithCancel(ctx)
	attack := fault.Start(attacking, "127.0.0.3", n.listen, kind, hostile)
	defer attack.Wait()
	defer cancel()
	most := before
	for len(probes) < 100 || attack.Connections() < hostile {
		now, err := own()
		if err != nil {
			return nil, nil, 0, err
		}
		most = max(most, now)
		took, again, err := p.probe(ctx)
		if err != nil {
			return nil, nil, 0, err
		}
		probes, failed = append(probes, took), failed+again
	}
	cancel()
	attack.Wait()
	return []float64{(most - before) / megabyte}, probes, failed, p.stop(ctx)
}

// freeAddress returns an address with a port that is free.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// probe returns how long the plugin took to answer a probe. An attempt that fails, as it may on a
// busy machine, is repeated, as by a kubelet.
func (p *process) probe(ctx context.Context) (took time.Duration, failed int, err error) {
	for began := time.Now(); ; failed++ {
		_, err := fault.Probe(ctx, p.node.listen, "/healthz")
		if err == nil {
			return time.Since(began), failed, nil
		}
		select {
		case <-p.done:
			return 0, failed, p.failed(err)
		default:
		}
		if ctx.Err() != nil || time.Since(began) > waitLimit {
			return 0, failed, p.failed(err)
		}
	}
}

// stops measures the time from SIGTERM to the end of a device plugin.
func (b *bench) stops(ctx context.Context) error {
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return err
	}
	defer n.close()
	var took []time.Duration
	for range b.starts {
		p, err := n.startPlugin(ctx, 8, "")
		if err != nil {
			return err
		}
		if err := sleep(ctx, idle/4); err != nil {
			return err
		}
		if err := p.stop(ctx); err != nil {
			return err
		}
		took = append(took, p.stopped)
	}
	show("device plugin: SIGTERM to its end", took, within(10*time.Millisecond, 0))
	return nil
}
