package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// peer is one GPU of a pair, with a buffer to send, one to receive, and a stopwatch.
type peer struct {
	*gpu
	source, target *driver.Memory
	watch          *sample.Watch
}

// firstPeerSeed is the seed of the data that the first GPU sends; each further GPU adds 1. So no
// two GPUs send the same words, and none sends those that measure.go wrote before.
const firstPeerSeed = 100

// measurePairs copies n bytes between each two visible GPUs, each way, and reports the speeds. With
// fewer than two GPUs it does nothing. own is the device that the run has opened: it is the current
// one again when measurePairs returns.
func measurePairs(ctx context.Context, r *sample.Run, own *driver.Device, n uint64, plan sample.Plan) (err error) {
	devices, err := r.Driver.Devices()
	if err != nil || len(devices) < 2 {
		return err
	}
	var peers []*peer
	defer func() { err = errors.Join(err, own.MakeCurrent()) }() // runs after all peers are freed
	for i, d := range devices {
		release, err := d.Use()
		if err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		defer func() { _ = release() }()
		p, err := newPeer(d, n, firstPeerSeed+uint32(i))
		if p != nil {
			defer p.free()
		}
		if err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		peers = append(peers, p)
	}
	var results []sample.Peer
	for i, from := range peers {
		for j, to := range peers {
			if i == j {
				continue
			}
			// The first half of the run measured one GPU.
			r.Progress(0.5+0.5*float64(i*len(peers)+j)/float64(len(peers)*len(peers)), fmt.Sprintf("from GPU %d to GPU %d", i, j))
			result, err := measurePair(ctx, from, to, n, firstPeerSeed+uint32(i), plan)
			if err != nil {
				return fmt.Errorf("from GPU %d (%s) to GPU %d (%s): %w", i, from.UUID, j, to.UUID, err)
			}
			r.Peer(result)
			results = append(results, result)
		}
	}
	r.EndPhase("peers")
	r.Printf("%s", matrix(peers, results, r.Simulated()))
	return nil
}

// newPeer allocates what a pair needs of a device, whose context must be current, and fills the
// buffer to send with the words of seed. After an error the caller frees the peer unless it is nil.
func newPeer(d *driver.Device, n uint64, seed uint32) (*peer, error) {
	g, err := newGPU(d)
	if err != nil {
		return nil, err
	}
	p := &peer{gpu: g}
	for _, buffer := range []**driver.Memory{&p.source, &p.target} {
		if *buffer, err = g.memory(n); err != nil {
			return p, err
		}
	}
	if p.watch, err = sample.NewWatch(d); err != nil {
		return p, err
	}
	if err := p.fill(p.source, n, seed); err != nil {
		return p, err
	}
	return p, d.Synchronize()
}

// free closes the stopwatch and frees the GPU's memory. Both need the GPU's context to be current.
func (p *peer) free() {
	if p.MakeCurrent() != nil {
		return
	}
	if p.watch != nil {
		_ = p.watch.Close()
	}
	p.close()
}

// measurePair measures copies in one direction, which the copy engine of the sending GPU makes. It
// then verifies that the received words are those of seed.
func measurePair(ctx context.Context, from, to *peer, n uint64, seed uint32, plan sample.Plan) (sample.Peer, error) {
	result := sample.Peer{From: from.UUID, To: to.UUID, Unit: "B/s"}
	if err := to.MakeCurrent(); err != nil {
		return result, err
	}
	// Clear the buffer, so that words of an earlier copy do not count.
	if err := to.target.SetBytes(0, 0, n); err != nil {
		return result, err
	}
	if err := to.Synchronize(); err != nil {
		return result, err
	}
	if err := from.MakeCurrent(); err != nil {
		return result, err
	}
	var err error
	if result.Access, err = from.CanAccess(to.Device); err != nil {
		return result, err
	}
	if result.Access {
		if err := from.EnableAccess(to.Device); err != nil {
			return result, err
		}
	}
	took, err := from.watch.Best(ctx, plan, func() error { return driver.CopyPeerAsync(to.target, from.source, n, nil) }, nil)
	if err != nil {
		return result, err
	}
	result.Value = rate(n, took)
	if err := to.MakeCurrent(); err != nil {
		return result, err
	}
	return result, to.check(to.target, n, seed, "peer")
}

// matrix formats the speeds as a table, from the row's GPU to the column's. results has all pairs,
// row by row.
func matrix(peers []*peer, results []sample.Peer, simulated bool) string {
	var b strings.Builder
	title := "GB/s"
	if simulated {
		title = "n/a (simulated)"
	}
	fmt.Fprintf(&b, "peer to peer, from row to column, %s; * through the host's memory:\n", title)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i := range peers {
		fmt.Fprintf(w, "\t%d", i)
	}
	fmt.Fprint(w, "\t\n")
	next := 0
	for i := range peers {
		fmt.Fprint(w, i)
		for j := range peers {
			cell := "-"
			if i != j {
				cell = cellOf(results[next], simulated)
				next++
			}
			fmt.Fprint(w, "\t", cell)
		}
		fmt.Fprint(w, "\t\n")
	}
	_ = w.Flush() // to a strings.Builder
	for i, p := range peers {
		fmt.Fprintf(&b, "%d is %s at %s\n", i, p.UUID, p.PCI)
	}
	return b.String()
}

// cellOf formats one speed, with a * if the copy went through the host's memory.
func cellOf(p sample.Peer, simulated bool) string {
	cell := "n/a"
	if !simulated {
		cell = fmt.Sprintf("%.1f", p.Value/1e9)
	}
	if !p.Access {
		cell += "*"
	}
	return cell
}
