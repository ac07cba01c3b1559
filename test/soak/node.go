package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/simulator/state"
)

// node is a simulated driver, a kubelet in this process, and the built plugin.
type node struct {
	bin, dir string
	driver   *state.File
	kubelet  *kubelettest.Kubelet
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the plugin has ended
	metrics  string        // host:port

	mu      sync.Mutex
	state   nodestate.State // the plugin's last state
	changed chan struct{}   // closed and replaced when state changes
}

func newNode(ctx context.Context, o options) (_ *node, err error) {
	n := &node{bin: o.bin, ended: make(chan struct{}), changed: make(chan struct{})}
	if n.dir, err = os.MkdirTemp("", "soak"); err != nil {
		return nil, err
	}
	if err := n.gpusim(ctx, "up", "--profile", o.profile, "--gpus", fmt.Sprint(o.gpus)); err != nil {
		return nil, err
	}
	if n.driver, err = state.Open(filepath.Join(n.path("driver"), "var/lib/gpusim/state")); err != nil {
		return nil, err
	}
	// The strictest kind of kubelet.
	n.kubelet, err = kubelettest.Start(kubelettest.Config{Dir: n.path("dp"), KeepReplaced: true})
	return n, err
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// start starts the plugin, once.
func (n *node) start() error {
	if err := n.configure(common, true); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		return err
	}
	n.metrics = ln.Addr().String()
	if err := ln.Close(); err != nil {
		return err
	}
	log, err := os.Create(n.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(n.program("gpu-device-plugin"), "--host-root", n.dir, "--driver-root", "/driver", "--kubelet-socket", "/dp/kubelet.sock",
		"--state-dir", "/state", "--listen", n.metrics, "--config-file", n.path("config.yaml"))
	n.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0 halt_on_error=1")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		close(n.ended)
		return err
	}
	go func() {
		_ = n.cmd.Wait() // its state says how it ended
		close(n.ended)
	}()
	return nil
}

// stop ends the plugin as a kubelet would end its pod.
func (n *node) stop() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-n.ended
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the device plugin ended with %d on SIGTERM", code)
	}
	return nil
}

// abort ends the plugin so that its log has the stacks of all goroutines. It gives a plugin that hangs ten seconds.
func (n *node) abort() {
	if n.cmd.Process.Signal(syscall.SIGQUIT) != nil {
		return
	}
	select {
	case <-n.ended:
	case <-time.After(10 * time.Second):
	}
}

// close ends everything else, and removes the files unless they are to be kept.
func (n *node) close(keep bool) {
	if n.cmd != nil && n.cmd.Process != nil {
		_ = n.cmd.Process.Kill()
		<-n.ended
	}
	if n.kubelet != nil {
		n.kubelet.Stop()
	}
	if n.driver != nil {
		_ = n.driver.Close()
	}
	if keep {
		return
	}
	_ = n.gpusim(context.Background(), "down") // its folder is removed in any case
	_ = os.RemoveAll(n.dir)
}

func (n *node) program(name string) string { return filepath.Join(n.bin, name) }

func (n *node) gpusim(ctx context.Context, command string, args ...string) error {
	cmd := exec.CommandContext(ctx, n.program("gpusim"), append([]string{command, "--root", n.path("driver")}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim %s %s: %w: %s", command, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// watch follows the plugin's state until ctx ends.
func (n *node) watch(ctx context.Context) error {
	boot, err := nodestate.BootIDAt(n.dir)
	if err != nil {
		return err
	}
	err = nodestate.WatchBoot(ctx, n.path("state/deviceplugin"), boot, func(s nodestate.State, err error) {
		if err != nil {
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.state = s
		close(n.changed)
		n.changed = make(chan struct{})
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// waitState waits until the plugin's state satisfies cond.
func (n *node) waitState(ctx context.Context, cond func(nodestate.State) bool) error {
	for {
		n.mu.Lock()
		s, changed := n.state, n.changed
		n.mu.Unlock()
		if cond(s) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
