package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/simulator/state"
)

// tenantCount is the number of users: sometimes too many for the GPUs.
const tenantCount = 4

// options are the settings of a run.
type options struct {
	out                    io.Writer
	bin                    string // the built programs
	duration, calm, settle time.Duration
	pace                   time.Duration // the longest pause between two events of a GPU
	seed                   uint64
	profile                string
	gpus                   int
}

// rerun returns the command that repeats the run.
func (o options) rerun() string {
	return fmt.Sprintf("make soak SOAK_ARGS='--duration %v --calm %v --pace %v --seed %d --profile %s --gpus %d'", o.duration, o.calm, o.pace, o.seed, o.profile, o.gpus)
}

type soak struct {
	options
	node  *node
	truth *truth
	check *check
	pods  podSet
	began time.Time

	mu     sync.Mutex
	counts map[string]int
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// run runs the soak. Its error describes what the plugin did wrong, and where to look.
func run(ctx context.Context, o options) (err error) {
	fmt.Fprintf(o.out, "seed %d; again: %s\n", o.seed, o.rerun())
	n, err := newNode(ctx, o)
	if n != nil {
		defer func() { n.close(err != nil && ctx.Err() == nil) }()
	}
	if err != nil {
		return err
	}
	if err := n.start(); err != nil {
		return err
	}
	var st state.State
	n.driver.Read(&st)
	t := newTruth(&st)
	s := &soak{
		options: o, node: n, truth: t, check: newCheck(t, n.kubelet.Resources, o.settle), began: time.Now(),
		pods: podSet{all: map[*admittedPod]bool{}}, counts: map[string]int{},
	}
	s.check.disturbed()
	if err := s.live(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		n.abort()
		return fmt.Errorf("%w\nseed %d; again: %s\nkept: the plugin's log and all else in %s", err, o.seed, o.rerun(), n.dir)
	}
	s.progress(ctx)
	fmt.Fprintf(o.out, "all was as it should be for %v\n", time.Since(s.began).Round(time.Second))
	return nil
}

// live runs the storms and the checks beside them, and ends with the plugin.
func (s *soak) live(ctx context.Context) error {
	watched, end := context.WithCancel(ctx)
	defer end()
	g, watched := errgroup.WithContext(watched)
	g.Go(func() error { return s.node.watch(watched) })
	g.Go(func() error { return s.check.run(watched) })
	g.Go(func() error { s.reportProgress(watched); return nil })
	g.Go(func() error {
		select {
		case <-s.node.ended:
			return fmt.Errorf("the device plugin has ended: %s", s.lastLine())
		case <-watched.Done():
			return nil
		}
	})
	g.Go(func() error {
		defer end()
		return s.storms(watched)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if err := s.node.stop(); err != nil {
		return fmt.Errorf("%w: %s", err, s.lastLine())
	}
	return s.races()
}

func (s *soak) storms(ctx context.Context) error {
	if err := s.check.still(ctx); err != nil {
		return err
	}
	before, err := s.node.leastFootprint(ctx, func(footprint) bool { return false }, 2*time.Second)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%8s  at the start: %v\n", s.since(), before)
	for i := uint64(0); ; i++ {
		rest := s.duration - time.Since(s.began)
		if err := s.storm(ctx, i, min(s.calm, rest)); err != nil {
			return err
		}
		if rest <= s.calm {
			return s.end(ctx, before)
		}
		if err := s.check.still(ctx); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%8s  everything stands still and is as it should be\n", s.since())
	}
}

// storm runs all kinds of events at once for a while.
func (s *soak) storm(ctx context.Context, number uint64, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	stream := number << 16
	random := func() *rand.Rand {
		stream++
		return rand.New(rand.NewPCG(s.seed, stream))
	}
	for _, c := range s.truth.gpus {
		f := &fate{soak: s, gpu: c, rand: random()}
		g.Go(func() error { return f.run(ctx) })
	}
	for i := range tenantCount {
		r := random()
		g.Go(func() error { return s.runTenant(ctx, fmt.Sprintf("t%d-%d", i, number), r) })
	}
	kubelets, stranger, configurations := random(), random(), random()
	g.Go(func() error { return s.restartKubelets(ctx, kubelets) })
	g.Go(func() error { return s.runStranger(ctx, stranger) })
	g.Go(func() error { return s.configurations(ctx, configurations) })
	return g.Wait()
}

// end restores the initial state and compares the footprint.
func (s *soak) end(ctx context.Context, before footprint) error {
	if err := s.applyShape(plain, false); err != nil {
		return err
	}
	for _, c := range s.truth.gpus {
		if err := (&fate{soak: s, gpu: c}).mend(ctx); err != nil {
			return err
		}
	}
	if err := s.check.still(ctx); err != nil {
		return err
	}
	// A kubelet serves what it was once told until the next kubelet starts.
	if err := s.restartKubelet(); err != nil {
		return err
	}
	if err := s.check.still(ctx); err != nil {
		return err
	}
	after, err := s.node.leastFootprint(ctx, func(f footprint) bool { return f.growthSince(before) == "" }, s.settle)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%8s  at the end: %v\n", s.since(), after)
	if growth := after.growthSince(before); growth != "" {
		return fmt.Errorf("the device plugin holds more than at the start: %s", growth)
	}
	return nil
}

// reportProgress prints the counts so far from time to time.
func (s *soak) reportProgress(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.progress(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (s *soak) progress(ctx context.Context) {
	s.mu.Lock()
	faults := 0
	for what, n := range s.counts {
		if strings.HasPrefix(what, "XID") || strings.HasPrefix(what, "lost") || what == "ECC error" {
			faults += n
		}
	}
	line := fmt.Sprintf("%4d faults, %3d MIG layouts, %3d kubelets, %3d+%d configurations; pods: %d admitted, %d refused, %d cut off, %d too late; settled ≤ %.1f s", faults,
		s.counts["MIG layout"], s.counts["kubelet"], s.counts["configuration"], s.counts["refused configuration"], s.counts["admitted"], s.counts["refused"], s.counts["cut off"], s.counts["too late"], s.check.most().Seconds())
	s.mu.Unlock()
	if f, err := s.node.footprint(ctx); err == nil {
		line += fmt.Sprintf("; %v", f)
	}
	fmt.Fprintf(s.out, "%8s  %s\n", s.since(), line)
}

func (s *soak) since() time.Duration { return time.Since(s.began).Round(time.Second) }

func (s *soak) lastLine() string {
	log, err := os.ReadFile(s.node.path("log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return lines[len(lines)-1]
}

// races returns an error if the race detector has found something.
func (s *soak) races() error {
	log, err := os.ReadFile(s.node.path("log"))
	if err == nil && bytes.Contains(log, []byte("DATA RACE")) {
		return errors.New("the race detector has found something in the device plugin")
	}
	return err
}
