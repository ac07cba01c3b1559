package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/simulator/state"
)

const (
	resource      = "nvidia.com/gpu"
	pluginProgram = "gpu-device-plugin"
)

// waitLimit limits every wait: anything slower is broken.
const waitLimit = time.Minute

// How long NVML takes with a real driver, to initialise and for another call. The simulator takes
// as long in the rows of the table that say so.
const (
	initCost = 200 * time.Millisecond
	callCost = 10 * time.Microsecond
)

// node is a simulated driver and a kubelet, with which device plugins are started.
type node struct {
	*bench
	dir     string
	program string // path of the device plugin
	kubelet *kubelettest.Kubelet
	driver  *state.File // the simulated driver's state
	onHost  bool        // the driver is in the host's /, which is dir; else in a root of its own
	plugins int         // number of plugins started so far
	plugin  *process    // the last one, which may have ended

	environ []string // of the plugin, beside our own
	listen  string   // address of the plugin's metrics; "": none
	// listening is the time when kubelet.sock was last created.
	listening atomic.Pointer[time.Time]
}

func (b *bench) newNode(ctx context.Context, profile string, gpus int) (*node, error) {
	return b.makeNode(ctx, &node{bench: b, program: b.program(pluginProgram)}, profile, gpus)
}

// makeNode starts a driver and a kubelet for a node that has none.
func (b *bench) makeNode(ctx context.Context, n *node, profile string, gpus int) (_ *node, err error) {
	if n.dir, err = os.MkdirTemp(b.tmp, "n"); err != nil {
		return nil, err
	}
	if err := n.gpusim(ctx, "up", "--profile", profile, "--gpus", fmt.Sprint(gpus)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.driver, err = state.Open(filepath.Join(n.root(), "var/lib/gpusim/state")); err != nil {
		return nil, err
	}
	n.kubelet, err = kubelettest.Start(kubelettest.Config{
		Dir:          filepath.Join(n.dir, "dp"),
		BeforeListen: func() { now := time.Now(); n.listening.Store(&now) },
	})
	return n, err
}

func (n *node) close() {
	if n.plugin != nil {
		_ = n.plugin.cmd.Process.Kill() // after an aborted row
		<-n.plugin.done
	}
	if n.kubelet != nil {
		n.kubelet.Stop()
	}
	if n.driver != nil {
		_ = n.driver.Close()
	}
	_ = n.gpusim(context.Background(), "down") // its folder is removed in any case
}

// root returns the driver's root.
func (n *node) root() string {
	if n.onHost {
		return n.dir
	}
	return filepath.Join(n.dir, "driver")
}

// pathFlags returns the plugin's flags for the kubelet's socket, the driver, and the state
// directory below dir.
func (n *node) pathFlags(dir string) []string {
	if n.onHost {
		return []string{"--host-root", n.dir, "--kubelet-socket", "/dp/kubelet.sock", "--state-dir", "/" + filepath.Base(dir) + "/state"}
	}
	return []string{"--kubelet-socket", n.kubelet.Socket(), "--driver-root", n.root(), "--state-dir", filepath.Join(dir, "state")}
}

func (n *node) gpusim(ctx context.Context, command string, args ...string) error {
	cmd := exec.CommandContext(ctx, n.bench.program("gpusim"), append([]string{command, "--root", n.root()}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim %s: %w: %s", command, err, bytes.TrimSpace(out))
	}
	return nil
}

// setLatency sets how long NVML's calls take; 0 means that they return at once.
func (n *node) setLatency(init, call time.Duration) error {
	return n.driver.Update(func(s *state.State) error {
		s.InitCostNs, s.CallCostNs = uint64(init), uint64(call)
		return nil
	})
}

// restoreGPUs ends the faults of all GPUs.
func (n *node) restoreGPUs() error {
	return n.driver.Update(func(s *state.State) error {
		for i := range s.GPUs() {
			s.ResetGPU(i)
		}
		return nil
	})
}

// waitForDevices waits until the kubelet can allocate that many devices. It returns the time at
// which the kubelet received the list with them.
func (n *node) waitForDevices(ctx context.Context, devices int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	r, err := n.kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool {
		return r.Allocatable == devices && !r.Gone && r.Lists > 0
	})
	return r.Listed, err
}

// process is a running device plugin.
type process struct {
	node    *node
	cmd     *exec.Cmd
	log     string // path of what it printed
	done    chan struct{}
	took    time.Duration // from its start until the kubelet had its devices
	stopped time.Duration // from SIGTERM to its end
}

// errRefused means that the plugin ended with exit code 2: it rejects the configuration and
// prints the reason.
var errRefused = errors.New("the device plugin refuses it")

// startPlugin starts a plugin without saved state, and waits until the kubelet can allocate that
// many devices. config is the text of its configuration file; "": none.
func (n *node) startPlugin(ctx context.Context, devices int, config string) (*process, error) {
	n.plugins++
	dir := filepath.Join(n.dir, fmt.Sprint(n.plugins))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	args := append(n.pathFlags(dir), "--listen="+n.listen)
	if n.onHost {
		args = append(args, "--device-list-strategy", "envvar")
	}
	if config != "" {
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--config-file", file)
	}
	p := &process{node: n, log: filepath.Join(dir, "log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(n.program, args...)
	p.cmd.Env = append(os.Environ(), n.environ...)
	p.cmd.Stdout, p.cmd.Stderr = log, log // to the file itself: no goroutine has to copy it
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	n.plugin = p
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = p.cmd.Wait() // cmd.ProcessState has the result
		close(p.done)
		cancel()
	}()
	listed, err := n.waitForDevices(ctx, devices)
	if err != nil {
		return nil, p.failed(err)
	}
	p.took = listed.Sub(began)
	return p, nil
}

// failed kills a plugin that has not done what it should, and adds its last output to the error.
// The error is errRefused if the plugin has rejected its configuration.
func (p *process) failed(err error) error {
	_ = p.cmd.Process.Kill()
	<-p.done
	out, readErr := os.ReadFile(p.log)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if p.cmd.ProcessState.ExitCode() == 2 {
		return fmt.Errorf("%w: %s", errRefused, strings.ReplaceAll(strings.Join(lines, "; "), filepath.Dir(p.log)+"/", ""))
	}
	return fmt.Errorf("the device plugin: %w; its last line: %s", err, lines[len(lines)-1])
}

// stop ends the plugin, and waits until the kubelet has noticed.
func (p *process) stop(ctx context.Context) error {
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	select {
	case <-p.done:
		p.stopped = time.Since(began)
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("the device plugin does not end on SIGTERM: %w", ctx.Err())
	}
	_, err := p.node.kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Gone })
	return err
}

// lines returns the number of lines that it has printed.
func (p *process) lines() (int, error) {
	out, err := os.ReadFile(p.log)
	return bytes.Count(out, []byte("\n")), err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sharedConfig returns a configuration that advertises each GPU as that many replicas.
func sharedConfig(replicas int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: %s, replicas: %d}]}}\n", resource, replicas)
}
