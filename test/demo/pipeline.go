package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/contract"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/node"
)

// resource is the resource that the pod requests.
const resource = "nvidia.com/gpu"

// Paths at which the components meet, the same as in production.
const (
	devicePluginDir = "/var/lib/kubelet/device-plugins"
	podResourcesDir = "/var/lib/kubelet/pod-resources"
	stateDir        = "/run/nvidia/gpuready"
	cdiDir          = "/var/run/cdi"
)

// stepTimeout limits each step; a step takes well under a second.
const stepTimeout = 30 * time.Second

// timeoutError names the limit that ended a step.
type timeoutError struct {
	limit time.Duration
	name  string
}

func (e *timeoutError) Error() string { return fmt.Sprintf("not done within %v (%s)", e.limit, e.name) }

// during adds what was going on.
func (e *timeoutError) during(err error) error {
	text := strings.TrimRight(err.Error(), ": ")
	for _, ended := range []string{context.DeadlineExceeded.Error(), "signal: killed", e.Error()} {
		text = strings.TrimSuffix(strings.TrimSuffix(text, ended), ": ")
	}
	if text == "" {
		return e
	}
	return fmt.Errorf("%w: %s", e, text)
}

// pipeline is one run of the demo.
type pipeline struct {
	o       options
	s       *screen
	agents  []*agent
	kubelet *kubelettest.Kubelet
	machine machine
	output  string
}

// machine describes the GPUs that the demo uses.
type machine struct {
	driver    string // version
	simulated bool
	gpus      int
	product   string // of the first GPU
}

func newPipeline(o options, s *screen) *pipeline { return &pipeline{o: o, s: s} }

func (r *pipeline) result() result {
	return result{Driver: r.machine.driver, Simulated: r.machine.simulated, GPUs: r.machine.gpus, Output: r.output}
}

// run runs all steps in order.
func (r *pipeline) run(ctx context.Context) error {
	// An agent that ends by itself, or reports a failure, ends the run.
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	found := r.findDriver(ctx)
	real := found && !r.o.simulate
	title := "gpuready demo: this machine has a GPU; its own driver is used"
	switch {
	case real:
	case found:
		title = "gpuready demo: a simulated driver is used, not that of this machine's GPU"
		r.machine = machine{simulated: true}
	default:
		title = "gpuready demo: no GPU on this machine; a simulated driver is used"
		r.machine.simulated = true
	}
	// A driver that is broken, or that must be found before the machine's own, is there from the start.
	driverFirst := r.o.breaks != "" || found && !real
	r.s.printf(true, "%s\n\n", r.s.wrap(0, title))
	steps := []struct {
		name, doing, next string
		run               func(context.Context) (detail string, err error)
	}{
		{"node agents", "start the agents and a kubelet", "run make build", func(ctx context.Context) (string, error) { return r.startAgents(ctx, fail, real || driverFirst) }},
		{"driver", "bring up the driver", "a real driver: nvidia-smi must work; a simulated one: bin/gpusim up --help", func(ctx context.Context) (string, error) { return r.driver(ctx, real) }},
		{"toolkit", "write CDI specs", "bin/gpu-toolkit plan shows what it would write", r.toolkit},
		{"device plugin", "advertise GPUs to the kubelet", "bin/gpu-device-plugin devices shows what it would advertise", r.devicePlugin},
		{"validator", "prove driver, toolkit, CUDA and plugin", "bin/gpu-validator run names the layer", r.validator},
		{"pod", "run vectoradd in a pod that asks for one GPU", "let the container runtime inject the GPU (CDI), or give the user access", r.pod},
	}
	if driverFirst {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, st := range steps {
		done := r.s.begin(st.name, st.doing)
		stepCtx, cancel := context.WithTimeoutCause(ctx, stepTimeout, &timeoutError{stepTimeout, "the limit of a step"})
		detail, err := st.run(stepCtx)
		if cause := context.Cause(stepCtx); err != nil && cause != nil {
			if late, is := errors.AsType[*timeoutError](cause); is {
				cause = late.during(err)
			}
			err = cause
		}
		cancel()
		if err != nil {
			return r.explain(st.name, st.next, err)
		}
		done(detail)
	}
	return nil
}

// explain adds advice to an error.
func (r *pipeline) explain(name, next string, err error) error {
	var at *stepError
	if late, is := errors.AsType[*timeoutError](err); is && late.name == "--timeout" {
		next = "give it more time: --timeout"
	}
	if errors.As(err, &at) {
		name = at.step
	} else {
		at = &stepError{step: name, err: err, next: cmp.Or(actionFor(err), next)}
	}
	if at.next == "" {
		at.next = next
	}
	for _, a := range r.agents {
		if a.name == "gpu-"+strings.ReplaceAll(name, " ", "-") {
			at.log = a.log()
		}
	}
	return at
}

// end ends the agents.
func (r *pipeline) end() {
	var all sync.WaitGroup
	for _, a := range r.agents {
		all.Go(a.end)
	}
	all.Wait()
	if r.kubelet != nil {
		r.kubelet.Stop()
	}
}

// findDriver reports whether the machine has a GPU of its own.
func (r *pipeline) findDriver(ctx context.Context) bool {
	src, err := nvml.Open(nvml.Options{DriverRoot: "/", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return false
	}
	defer src.Close()
	snap, err := src.Snapshot(ctx)
	if err != nil || len(snap.Devices) == 0 || snap.Driver.Simulated {
		return false
	}
	r.machine = machine{driver: snap.Driver.Version, gpus: len(snap.Devices), product: snap.Devices[0].Product}
	return true
}

// startAgents starts the programs that run on every node. hasDriver says whether there is a driver yet.
func (r *pipeline) startAgents(ctx context.Context, fail context.CancelCauseFunc, hasDriver bool) (string, error) {
	var echo io.Writer
	if r.o.verbose {
		echo = os.Stderr
	}
	var err error
	if r.kubelet, err = kubelettest.Start(kubelettest.Config{Dir: devicePluginDir, PodResourcesDir: podResourcesDir}); err != nil {
		return "", err
	}
	if err := r.breakCDI(); err != nil {
		return "", err
	}
	for _, start := range []struct {
		component nodestate.Component
		step      string
		command   []string
	}{
		{nodestate.Toolkit, "toolkit", []string{"gpu-toolkit", "run"}},
		{nodestate.DevicePlugin, "device plugin", []string{"gpu-device-plugin"}},
		{nodestate.Validator, "validator", []string{"gpu-validator", "daemon", "--allow-simulated"}},
	} {
		a, err := startAgent(echo, func(err error) {
			if ctx.Err() == nil {
				fail(&stepError{step: start.step, err: err})
			}
		}, start.command[0], start.command[1:]...)
		if err != nil {
			return "", err
		}
		r.agents = append(r.agents, a)
	}
	if hasDriver {
		return "toolkit, device plugin, validator and kubelet run", nil
	}
	return "toolkit, device plugin, validator and kubelet run and wait for a driver", nil
}

// driver starts a driver, unless the machine has one.
func (r *pipeline) driver(ctx context.Context, real bool) (string, error) {
	if !real {
		args := []string{"up", "--profile", r.o.profile}
		if r.o.gpus > 0 {
			args = append(args, "--gpus", fmt.Sprint(r.o.gpus))
		}
		if r.o.breaks == "driver" {
			args = append(args, "--module-version", "1.2.3")
		}
		if _, err := runProgram(ctx, "gpusim", args...); err != nil {
			return "", err
		}
		if r.o.breaks == "memory" {
			if _, err := runProgram(ctx, "gpusim", "memfault", "--gpu", "0", "--kind", "stuck"); err != nil {
				return "", err
			}
		}
		var err error
		if r.machine, err = readSimulated(ctx); err != nil {
			return "", err
		}
		src, err := nvml.Open(nvml.Options{DriverRoot: node.DriverRoot, Log: slog.New(slog.DiscardHandler)})
		switch {
		case err == nil:
			_ = src.Close()
		case !errors.Is(err, nvml.ErrOtherLibrary): // findDriver has loaded that of the machine
			return "", err
		}
	}
	return fmt.Sprintf("%d × %s, driver %s", r.machine.gpus, r.machine.product, r.machine.driver), nil
}

// readSimulated reads the simulated driver by gpusim, because NVML can be loaded only once into a
// process.
func readSimulated(ctx context.Context) (machine, error) {
	out, err := runProgram(ctx, "gpusim", "status", "-o", "json")
	if err != nil {
		return machine{}, err
	}
	var status struct {
		Driver string
		GPUs   []struct{ Name string }
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return machine{}, fmt.Errorf("gpusim status: %w", err)
	}
	if len(status.GPUs) == 0 {
		return machine{}, errors.New("the driver has no GPU")
	}
	return machine{driver: status.Driver, simulated: true, gpus: len(status.GPUs), product: status.GPUs[0].Name}, nil
}

// toolkit waits until the toolkit reports that GPUs can be injected.
func (r *pipeline) toolkit(ctx context.Context) (string, error) {
	state, err := waitReady(ctx, nodestate.Toolkit)
	if err != nil {
		return "", err
	}
	var kinds []string
	for _, spec := range state.Toolkit.Specs {
		kinds = append(kinds, spec.Kind)
	}
	return "CDI specs " + strings.Join(kinds, ", "), nil
}

// devicePlugin waits until the kubelet can allocate every GPU.
func (r *pipeline) devicePlugin(ctx context.Context) (string, error) {
	got, err := r.kubelet.Wait(ctx, resource, func(res kubelettest.Resource) bool { return res.Allocatable == r.machine.gpus })
	if err != nil {
		return "", fmt.Errorf("the kubelet can allocate %d of %d %s: %w", got.Allocatable, r.machine.gpus, resource, err)
	}
	return fmt.Sprintf("%s: %d allocatable", resource, got.Allocatable), nil
}

// pod runs the CUDA job as a user would.
func (r *pipeline) pod(ctx context.Context) (string, error) {
	admitted, err := r.kubelet.Admit(ctx, kubelettest.Pod{Namespace: "default", Name: "vectoradd", Container: "vectoradd", Requests: map[string]int{resource: 1}})
	if err != nil {
		return "", err
	}
	sample, err := program("vectoradd")
	if err != nil {
		return "", err
	}
	var env []string
	for k, v := range admitted.Envs {
		env = append(env, k+"="+v)
	}
	out, exit, err := node.RunContainer(ctx, node.Container{
		Args: []string{"/usr/bin/vectoradd"}, Files: map[string]string{"/usr/bin/vectoradd": sample},
		Env: env, CDIDevices: admitted.CDIDevices, DenyDevices: r.o.breaks == "permission",
	})
	r.output = out
	if err != nil {
		return "", err
	}
	passed := "Test PASSED"
	if r.machine.simulated {
		passed += " (SIMULATED)"
	}
	if exit != 0 || !strings.Contains(out, passed+"\n") {
		return "", fmt.Errorf("vectoradd exited with %d: %s", exit, errorLine(out))
	}
	return strings.TrimPrefix(strings.Join(admitted.CDIDevices, ", "), cdi.KindGPU+"=") + " → vectoradd: " + passed, nil
}

// errorLine returns the line of vectoradd's output with its error, or all of it if there is none.
func errorLine(out string) string {
	for line := range strings.Lines(out) {
		if text, is := strings.CutPrefix(line, "vectoradd: "); is {
			return strings.TrimSpace(text)
		}
	}
	return strings.TrimSpace(out)
}

// stateError is the state of a component that has failed.
type stateError struct {
	component nodestate.Component
	reason    gpu.Reason
	message   string
}

func (e *stateError) Error() string { return fmt.Sprintf("%s: %s", e.reason, e.message) }

// actionFor returns what a person should do about an error, by the table of reasons; "": it is not known.
func actionFor(err error) string {
	by, reason := contract.Toolkit, "VersionMismatch"
	if failed, is := errors.AsType[*stateError](err); is {
		reason = string(failed.reason)
		if failed.component == nodestate.DevicePlugin {
			by = contract.DevicePlugin
		}
	} else if !errors.Is(err, gpu.ErrVersionMismatch) {
		return ""
	}
	for _, r := range contract.Reasons() {
		if r.By == by && r.Reason == reason {
			return r.Next
		}
	}
	return ""
}

// waitReady waits until a component's state is Ready; Failed ends the wait.
func waitReady(ctx context.Context, c nodestate.Component) (nodestate.State, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var last nodestate.State
	var failed error
	err := nodestate.Watch(ctx, stateDir+"/"+string(c), func(s nodestate.State, err error) {
		if err != nil || ctx.Err() != nil {
			return
		}
		last = s
		switch s.Phase {
		case nodestate.Ready:
			stop()
		case nodestate.Failed:
			failed = &stateError{c, s.Reason, s.Message}
			stop()
		}
	})
	switch {
	case failed != nil:
		return last, failed
	case last.Phase == nodestate.Ready:
		return last, nil
	}
	return last, fmt.Errorf("%s is %s: %s: %w", c, last.Phase, last.Message, err)
}

// breakCDI makes the folder for CDI specs read-only, if requested.
func (r *pipeline) breakCDI() error {
	if r.o.breaks != "cdi" {
		return nil
	}
	if err := os.MkdirAll(cdiDir, 0o755); err != nil {
		return err
	}
	return unix.Mount("tmpfs", cdiDir, "tmpfs", unix.MS_RDONLY, "")
}
