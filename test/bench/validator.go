package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// The goals of the validator.
const (
	provenGoal = 200 * time.Millisecond
	hopGoal    = 20 * time.Millisecond
)

// validator measures how soon the plugin's layer is proven once the kubelet has its devices (the
// pod is simulated and takes no time), one hop of the readiness contract, and the cost of the idle
// daemon.
func (b *bench) validator(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("validator: left out, it needs root")
		return nil
	}
	var proven, said, ended []time.Duration
	var rests []idleness
	for run := range max(b.starts/2, 1) {
		n, err := b.newProven(ctx)
		if err != nil {
			return err
		}
		took, err := n.prove(ctx)
		proven = append(proven, took)
		if err == nil && run < 3 {
			var i idleness
			i, err = idleOf(ctx, n.daemon.Process.Pid)
			rests = append(rests, i)
		}
		if err == nil && run == 0 {
			said, ended, err = n.hops(ctx, b.hookRuns)
		}
		if err != nil {
			err = errors.Join(err, n.logError())
		}
		if n.close(); err != nil {
			return err
		}
	}
	show("validator: kubelet has 8 GPUs → all layers proven, the pod's time left out", proven, within(provenGoal, 0))
	show("validator: proof written → gpu-validator wait says that it is there", said, within(0, hopGoal))
	show("validator: proof written → gpu-validator wait has ended", ended, goal{})
	showRest("validator", rests, goal{median: 28 << 20 / megabyte}, goal{median: 8 << 20 / megabyte}, goal{median: 10})
	return nil
}

// showRest prints the cost of an idle daemon.
func showRest(who string, all []idleness, resident, own, wakeups goal) {
	var sizes, owns, shares, woken []float64
	for _, i := range all {
		sizes, owns = append(sizes, i.resident/megabyte), append(owns, i.own/megabyte)
		shares, woken = append(shares, 100*i.busy.Seconds()/watched.Seconds()), append(woken, i.wakeups)
	}
	count(who+": resident memory, idle, MB", sizes, 1, resident)
	count(who+": anonymous memory, idle, MB", owns, 1, own)
	count(who+": % of a core, idle, over 10 s", shares, 3, goal{median: 0.1})
	count(who+": threads woken, idle, over 10 s", woken, 0, wakeups)
}

// provenNode is a folder that serves as a node, with the toolkit, a kubelet and an API server, for
// the validator's daemon.
type provenNode struct {
	*toolkitHost
	api       *kubetest.Server
	outputLog string // path of the log of validator and plugin

	daemon, deviceplugin *exec.Cmd
}

func (b *bench) newProven(ctx context.Context) (_ *provenNode, err error) {
	h, err := b.newHost(ctx)
	if err != nil {
		return nil, err
	}
	n := &provenNode{toolkitHost: h, api: kubetest.Start("n1"), outputLog: filepath.Join(h.dir, "said")}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.logError())
			n.close()
		}
	}()
	if err := n.gpusim(ctx, "up", "--profile", "h100-sxm"); err != nil {
		return nil, err
	}
	if _, err := n.await(ctx, specFile); err != nil {
		return nil, err
	}
	n.kubelet, err = kubelettest.Start(kubelettest.Config{
		Dir: filepath.Join(n.dir, "var/lib/kubelet/device-plugins"), PodResourcesDir: filepath.Join(n.dir, "var/lib/kubelet/pod-resources"),
	})
	if err != nil {
		return nil, err
	}
	n.api.OnPod(n.succeed)
	account := filepath.Join(n.dir, "account")
	if err := os.Mkdir(account, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(account, "token"), []byte("secret"), 0o600); err != nil {
		return nil, err
	}
	n.daemon, err = n.start("gpu-validator", "daemon", "--allow-simulated", "--listen=", "--node-name=n1", "--namespace=gpuready",
		"--workload-image=gpuready/validator", "--api-server="+n.api.URL(), "--service-account-dir="+account)
	if err != nil {
		return nil, err
	}
	return n, n.until(ctx, readiness.CUDA, func(s readiness.Status) bool { return s.Proof != nil })
}

// start starts a program for this node.
func (n *provenNode) start(program string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(n.outputLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(n.program(program), append(args, "--host-root", n.dir, "--driver-root", "/driver")...)
	cmd.Env = []string{"PATH=" + n.bin}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func (n *provenNode) program(name string) string { return n.bench.program(name) }

// succeed marks a pod as succeeded as soon as it is created.
func (n *provenNode) succeed(p *corev1.Pod) {
	r, _ := n.kubelet.Resource(resource)
	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Message: fmt.Sprintf(`{"passed":true,"simulated":true,"uuid":%q}`, r.Devices[0].GetID()),
	}}}}
}

// until waits until the validator has written a status of a layer that satisfies.
func (n *provenNode) until(ctx context.Context, layer readiness.Layer, satisfies func(readiness.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	boot, err := nodestate.BootIDAt(n.dir)
	if err != nil {
		return err
	}
	met := false
	err = readiness.Watch(ctx, n.proofs(), []readiness.Layer{layer}, boot, func(_ readiness.Layer, s readiness.Status, err error) {
		if err == nil && satisfies(s) {
			met = true
			cancel()
		}
	})
	if met {
		return nil
	}
	return fmt.Errorf("%s: %w", layer, err)
}

func (n *provenNode) proofs() string { return filepath.Join(n.dir, readiness.DefaultDir) }

// prove starts the device plugin. It returns the time from the kubelet's device list to the
// validator's proof.
func (n *provenNode) prove(ctx context.Context) (took time.Duration, err error) {
	if n.deviceplugin, err = n.start(pluginProgram, "--listen="); err != nil {
		return 0, err
	}
	listed, err := n.waitForDevices(ctx, 8)
	if err != nil {
		return 0, err
	}
	var at time.Time
	err = n.until(ctx, readiness.Plugin, func(s readiness.Status) bool {
		if s.Proof != nil {
			at = s.Proof.Time
		}
		return s.Proof != nil
	})
	return at.Sub(listed), err
}

// hops measures, from the write of a proof, the time until a waiting process reports it and the
// time until that process has ended. The kernel takes up to tens of milliseconds to end a process
// that watches files. It uses a separate folder.
func (n *provenNode) hops(ctx context.Context, times int) (reported, ended []time.Duration, err error) {
	dir := filepath.Join(n.dir, "hops")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, nil, err
	}
	for range times {
		s, e, err := n.hop(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		reported, ended = append(reported, s), append(ended, e)
	}
	return reported, ended, nil
}

func (n *provenNode) hop(ctx context.Context, dir string) (reported, ended time.Duration, err error) {
	if err := readiness.Clear(dir, readiness.CUDA); err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, n.program("gpu-validator"), "wait", "cuda", "--output-dir", dir, "--timeout", waitLimit.String())
	says, err := cmd.StderrPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	lines := bufio.NewReader(says)
	until := func(words string) error {
		for {
			if line, err := lines.ReadString('\n'); err != nil || strings.Contains(line, words) {
				return err
			}
		}
	}
	if err := until("waiting for cuda"); err != nil {
		return 0, 0, errors.Join(err, cmd.Wait())
	}
	began := time.Now()
	if err := readiness.WriteReady(dir, readiness.CUDA, readiness.Proof{Summary: "bench"}); err != nil {
		return 0, 0, errors.Join(err, cmd.Wait())
	}
	if err := until("cuda is ready"); err != nil {
		return 0, 0, errors.Join(err, cmd.Wait())
	}
	reported = time.Since(began)
	err = cmd.Wait()
	return reported, time.Since(began), err
}

// logError returns the end of the log of the node's programs, as an error.
func (n *provenNode) logError() error {
	out, err := os.ReadFile(n.outputLog)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("the end of the log:\n%s", strings.Join(lines[max(0, len(lines)-10):], "\n"))
}

func (n *provenNode) close() {
	for _, cmd := range []*exec.Cmd{n.daemon, n.deviceplugin} {
		if cmd != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
	}
	n.api.Stop()
	if n.kubelet != nil {
		n.kubelet.Stop()
	}
	_ = n.toolkitHost.close() // its folder is removed in any case
}
