package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// Process describes how to run the autoscaler.
type Process struct {
	Program    string // the built cluster-autoscaler
	Kubeconfig string
	Log        string // file for its output
	Flags      []string
}

// settings are the common flags. They switch off the delays that slow it down in production.
// Process.Flags come after them.
var settings = []string{
	"--cloud-provider=externalgrpc", "--leader-elect=false", "--address=127.0.0.1:0", "--v=4",
	"--scan-interval=2s", "--scale-down-delay-after-add=0s", "--unremovable-node-recheck-timeout=5s", "--node-delete-delay-after-taint=0s",
}

// Autoscaler is a running Cluster Autoscaler.
type Autoscaler struct {
	cmd    *exec.Cmd
	server *grpc.Server
	dir    string
	ended  chan struct{}
	err    error // how it ended
}

// Start starts an autoscaler that calls p. It ends with Stop or with this process.
func Start(p *Provider, c Process) (*Autoscaler, error) {
	dir, err := os.MkdirTemp("", "gpuready-autoscaler-")
	if err != nil {
		return nil, err
	}
	a := &Autoscaler{server: grpc.NewServer(), dir: dir, ended: make(chan struct{})}
	if err := a.start(p, c); err != nil {
		a.server.Stop()
		return nil, errors.Join(fmt.Errorf("start the Cluster Autoscaler: %w", err), os.RemoveAll(dir))
	}
	return a, nil
}

func (a *Autoscaler) start(p *Provider, c Process) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.register(a.server)
	go func() { _ = a.server.Serve(listener) }() // until Stop
	config := filepath.Join(a.dir, "cloud-config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "address: %s\n", listener.Addr()), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"--cloud-config=" + config, "--kubeconfig=" + c.Kubeconfig}, settings...)
	a.cmd = exec.Command(c.Program, append(args, c.Flags...)...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return err
	}
	go func() {
		a.err = a.cmd.Wait()
		close(a.ended)
	}()
	return nil
}

// Ended is closed when the program has ended, through Stop or a crash.
func (a *Autoscaler) Ended() <-chan struct{} { return a.ended }

// Stop ends the autoscaler and its server. It returns an error if it had already ended.
func (a *Autoscaler) Stop() error {
	var early error
	select {
	case <-a.ended:
		early = fmt.Errorf("the Cluster Autoscaler had ended by itself: %w", a.err)
	default:
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.ended:
	case <-time.After(10 * time.Second):
		_ = a.cmd.Process.Kill()
		<-a.ended
	}
	a.server.Stop()
	return errors.Join(early, os.RemoveAll(a.dir))
}
