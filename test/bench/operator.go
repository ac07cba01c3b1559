package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// The number of nodes, and the goals.
const (
	fleetNodes    = 5000
	fleetFirst    = 1000                    // of them, to compute the cost of each
	fleetSteady   = 150 * time.Second       // includes Go's forced garbage collection every two minutes
	fleetQuiet    = 2500 * time.Millisecond // after an event, until the operator has nothing left to do
	fleetStorm    = 20 * time.Second
	firstGoal     = time.Minute
	writesGoal    = 2 // a node
	callsGoal     = 3 // an event
	labelsGoal    = 150 * time.Millisecond
	streamCPUGoal = 6  // per cent of a core, at ten events a second
	passCPUGoal   = 60 // ms
	passRateGoal  = 1  // a second
	steadyCPUGoal = 1  // per cent of a core
	memoryGoal    = 250
	nodeGoal      = 30 // kB
	podGoal       = time.Second
)

// operator measures the operator against a real API server with nodes without kubelets: the first
// sight of all nodes, one changing node, many, and no change.
func (b *bench) operator(ctx context.Context) error {
	if b.nodeEvents < 1 || b.nodeEvents > fleetNodes/2 {
		return fmt.Errorf("--node-events %d: from 1 to %d can be measured", b.nodeEvents, fleetNodes/2)
	}
	if os.Geteuid() != 0 {
		leaveOut("operator", cluster.ErrNotRoot)
		return nil
	}
	programs, err := binaries.Ensure(ctx, binaries.Options{Out: os.Stderr})
	if err != nil {
		return err
	}
	if err := b.measurePasses(ctx); err != nil {
		return err
	}
	if err := b.fleet(ctx, programs); err != nil {
		return err
	}
	return b.podsOfNewNodes(ctx, programs)
}

// fleet measures thousands of nodes in a separate cluster.
func (b *bench) fleet(ctx context.Context, programs binaries.Dir) (err error) {
	// Without the controllers that would taint nodes without kubelets, and create and evict pods by
	// the thousand.
	c, err := cluster.Up(ctx, cluster.Config{Name: "bench-operator", Binaries: programs,
		Controllers: "*,-daemonset-controller,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	f, err := newFleet(ctx, c, programs.Path("kubectl"))
	if err != nil {
		return err
	}
	return b.manyNodes(ctx, f)
}

// manyNodes measures a fleet on which nothing runs.
func (b *bench) manyNodes(ctx context.Context, f *fleet) error {
	if err := f.grow(ctx, fleetFirst); err != nil {
		return err
	}
	o, err := b.startOperator(ctx, f)
	if err != nil {
		return err
	}
	defer o.end()
	if err := f.labelled(ctx, fleetFirst); err != nil {
		return fmt.Errorf("%w\n%s", err, o.tail())
	}
	if err := o.quiet(ctx); err != nil {
		return err
	}
	small, err := o.memory("VmRSS")
	if err != nil {
		return err
	}
	o.end()
	if err := f.grow(ctx, fleetNodes); err != nil {
		return err
	}
	if err := f.unlabel(ctx); err != nil {
		return err
	}
	began := time.Now()
	if o, err = b.startOperator(ctx, f); err != nil {
		return err
	}
	defer o.end()
	if err := f.labelled(ctx, fleetNodes); err != nil {
		return fmt.Errorf("%w\n%s", err, o.tail())
	}
	show("operator: first reconcile of 5,000 nodes in 4 pools, from its start", []time.Duration{time.Since(began)}, within(firstGoal, 0))
	if err := o.quiet(ctx); err != nil {
		return err
	}
	writes, _ := o.requests()
	count("operator: API writes of that, a node", []float64{float64(writes) / fleetNodes}, 3, goal{writesGoal, 0})
	count("operator: API calls of that, not answered in time", []float64{float64(o.api.abandoned.Load())}, 0, goal{})
	large, err := o.memory("VmRSS")
	if err != nil {
		return err
	}
	count("operator: resident memory at 5,000 nodes, MB", []float64{large / 1e6}, 1, goal{memoryGoal, 0})
	count("operator: a further node, kB", []float64{(large - small) / (fleetNodes - fleetFirst) / 1e3}, 1, goal{nodeGoal, 0})
	idle, err := o.steady(ctx)
	if err != nil {
		return err
	}
	if err := o.events(ctx, f, b.nodeEvents, idle); err != nil {
		return err
	}
	if err := o.stream(ctx, f, b.nodeEvents); err != nil {
		return err
	}
	if err := o.storm(ctx, f); err != nil {
		return err
	}
	peak, err := o.memory("VmHWM")
	if err != nil {
		return err
	}
	count("operator: peak resident memory of all this, MB", []float64{peak / 1e6}, 1, goal{memoryGoal, 0})
	return nil
}

// steady measures the operator while nothing changes, and returns its share of a core.
func (o *operator) steady(ctx context.Context) (float64, error) {
	before, _ := o.requests()
	cpu, began := o.cpu(), time.Now()
	if err := pause(ctx, fleetSteady); err != nil {
		return 0, err
	}
	share := (o.cpu() - cpu).Seconds() / time.Since(began).Seconds()
	after, _ := o.requests()
	count("operator: API writes in 150 s in which nothing changes, but its lease", []float64{float64(after - before)}, 0, goal{zero, 0})
	count("operator: of a core in that time, %", []float64{100 * share}, 2, goal{steadyCPUGoal, 0})
	return share, nil
}

// events removes the GPUs of n nodes, one after the other. idle is the operator's share of a core
// when nothing changes, which is subtracted.
func (o *operator) events(ctx context.Context, f *fleet, n int, idle float64) error {
	var calls, took []float64
	var until []time.Duration
	for i := range n {
		_, before := o.requests()
		cpu, began := o.cpu(), time.Now()
		if err := f.removeGPU(ctx, 2*i); err != nil {
			return fmt.Errorf("%w\n%s", err, o.tail())
		}
		until = append(until, time.Since(began))
		if err := pause(ctx, fleetQuiet); err != nil {
			return err
		}
		used := (o.cpu() - cpu).Seconds() - idle*time.Since(began).Seconds()
		_, after := o.requests()
		calls = append(calls, float64(after-before))
		took = append(took, 1e3*used)
	}
	show("operator: a node's GPU goes → its labels say so", until, within(labelsGoal, 0))
	count("operator: API calls of that", calls, 0, goal{callsGoal, callsGoal})
	count("operator: processor time of that, beyond the idle share, ms", took, 2, goal{})
	count("operator: the same on average, with what is collected now and then, ms", []float64{mean(took)}, 2, goal{})
	return nil
}

func mean(samples []float64) (sum float64) {
	for _, s := range samples {
		sum += s / float64(len(samples))
	}
	return sum
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// operator is a running gpu-operator.
type operator struct {
	cmd    *exec.Cmd
	api    *counting
	listen string // address of its metrics
	log    string
	ended  chan struct{}
}

func (b *bench) startOperator(ctx context.Context, f *fleet) (*operator, error) {
	api, err := startCounting(ctx, f.config, b.tmp)
	if err != nil {
		return nil, err
	}
	o := &operator{api: api, log: filepath.Join(b.tmp, "gpu-operator.log"), ended: make(chan struct{})}
	if o.listen, err = freeAddress(); err != nil {
		return nil, err
	}
	file, err := os.Create(o.log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	o.cmd = exec.CommandContext(ctx, b.program("gpu-operator"), "run", "--kubeconfig", api.kubeconfig, "--namespace", fleetNamespace, "--listen", o.listen)
	o.cmd.Stdout, o.cmd.Stderr = file, file
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := o.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { defer close(o.ended); _ = o.cmd.Wait() }()
	return o, nil
}

// end ends it; it may be called again.
func (o *operator) end() {
	_ = o.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-o.ended:
	case <-time.After(20 * time.Second):
		_ = o.cmd.Process.Kill()
		<-o.ended
	}
	o.api.end()
}

// tail returns the end of its log.
func (o *operator) tail() string {
	data, _ := os.ReadFile(o.log)
	return string(data[max(0, len(data)-3000):])
}

// requests returns the number of requests so far: writes, and all.
func (o *operator) requests() (writes, all int64) { return o.api.writes.Load(), o.api.all.Load() }

// quiet waits until it has made no request for three seconds.
func (o *operator) quiet(ctx context.Context) error {
	last, since := int64(-1), time.Now()
	for time.Since(since) < 3*time.Second {
		_, all := o.requests()
		if all != last {
			last, since = all, time.Now()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// memory returns a size of /proc/PID/status, in bytes.
func (o *operator) memory(name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return field(string(status), name)
}

// cpu returns the processor time used so far.
func (o *operator) cpu() time.Duration {
	// schedstat covers the first thread only; task lists all threads.
	var total time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", o.cmd.Process.Pid))
	for _, t := range tasks {
		data, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		if n, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64); err == nil {
			total += time.Duration(n)
		}
	}
	return total
}

// podsOfNewNodes measures the time from the GPU label of a new node to its driver's pod, with the
// DaemonSet controller.
func (b *bench) podsOfNewNodes(ctx context.Context, programs binaries.Dir) (err error) {
	c, err := cluster.Up(ctx, cluster.Config{Name: "bench-operator-pods", Binaries: programs,
		Controllers: "*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	f, err := newFleet(ctx, c, programs.Path("kubectl"))
	if err != nil {
		return err
	}
	o, err := b.startOperator(ctx, f)
	if err != nil {
		return err
	}
	defer o.end()
	if err := f.grow(ctx, len(kernels)); err != nil { // the DaemonSet is there with the first
		return err
	}
	if err := f.labelled(ctx, len(kernels)); err != nil {
		return fmt.Errorf("%w\n%s", err, o.tail())
	}
	var took []time.Duration
	for range b.nodeEvents {
		d, err := f.addNode(ctx)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, o.tail())
		}
		took = append(took, d)
	}
	show("operator: a node's GPU is labelled → its driver's pod is made", took, within(0, podGoal))
	return nil
}
