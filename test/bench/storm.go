package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// measurePasses measures full passes after a change of one node, without requests, with the package's own
// benchmark. It must run in the repository's root.
func (b *bench) measurePasses(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-run", "^$", "-bench", "^BenchmarkPass$", "-count", "3", "./operator/controller")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for _, row := range []struct{ benchmark, name string }{
		{"5000_nodes_without_pods", "5,000 nodes without pods"},
		{"5000_ready_nodes", "5,000 ready nodes"},
	} {
		took, err := benchmarkValues(string(out), "BenchmarkPass/"+row.benchmark, "cpu-ms/op")
		if err != nil {
			return err
		}
		count("operator: a full pass over "+row.name+", processor time, ms", took, 1, goal{median: passCPUGoal})
	}
	return nil
}

// benchmarkValues returns what a benchmark measured in a unit, from the output of go test: one value
// a run.
func benchmarkValues(out, benchmark, unit string) (values []float64, err error) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != benchmark && !strings.HasPrefix(fields[0], benchmark+"-") {
			continue
		}
		for i, f := range fields[1:] {
			if f != unit {
				continue
			}
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", benchmark, err)
			}
			values = append(values, v)
		}
	}
	if values == nil {
		return nil, fmt.Errorf("%s reported no %s: %s", benchmark, unit, out)
	}
	return values, nil
}

// streamEvery is the time between two changes of stream: a large cluster is hardly ever idle.
const streamEvery = 100 * time.Millisecond

// stream removes the GPUs of n nodes, ten a second.
func (o *operator) stream(ctx context.Context, f *fleet, n int) error {
	before, err := o.passCount(ctx)
	if err != nil {
		return err
	}
	cpu, began := o.cpu(), time.Now()
	for i := range n {
		if err := f.patch(ctx, name(2*i+1), withoutGPU); err != nil {
			return err
		}
		if err := pause(ctx, time.Until(began.Add(time.Duration(i+1)*streamEvery))); err != nil {
			return err
		}
	}
	lasted, used := time.Since(began), o.cpu()-cpu
	after, err := o.passCount(ctx)
	if err != nil {
		return err
	}
	count("operator: of a core while ten nodes change a second, %", []float64{100 * used.Seconds() / lasted.Seconds()}, 2, goal{streamCPUGoal, 0})
	count("operator: passes a second of that", []float64{rate(after-before, lasted)}, 2, goal{passRateGoal, 0})
	return pause(ctx, fleetQuiet)
}

// storm changes nodes as fast as the API server permits: the GPUs of all go and come back.
func (o *operator) storm(ctx context.Context, f *fleet) error {
	before, err := o.passCount(ctx)
	if err != nil {
		return err
	}
	g, patching := errgroup.WithContext(ctx)
	g.SetLimit(16)
	began, changes := time.Now(), 0
	for ; time.Since(began) < fleetStorm && patching.Err() == nil; changes++ {
		node, body := name(changes%fleetNodes), withGPU
		if changes/fleetNodes%2 == 0 {
			body = withoutGPU
		}
		g.Go(func() error { return f.patch(patching, node, body) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	lasted := time.Since(began)
	after, err := o.passCount(ctx)
	if err != nil {
		return err
	}
	count("operator: a storm: nodes that change a second", []float64{float64(changes) / lasted.Seconds()}, 0, goal{})
	count("operator: passes a second of that", []float64{rate(after-before, lasted)}, 2, goal{passRateGoal, 0})
	return nil
}

// rate returns how often a second something happened, by the times between one and the next.
func rate(times float64, lasted time.Duration) float64 { return max(0, times-1) / lasted.Seconds() }

// passCount returns the number of passes so far, from the operator's metrics.
func (o *operator) passCount(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.listen+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, o.tail())
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, err
	}
	const passes = `gpuready_operator_reconciles_total{about="nodes",outcome="ok"} `
	for line := range strings.Lines(string(body)) {
		if value, found := strings.CutPrefix(line, passes); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the operator's metrics have no %s", passes)
}
