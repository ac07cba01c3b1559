package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/inotify"
)

// The toolkit's output for 8 GPUs, and the goals.
const (
	specFile   = "k8s.gpuready.io-gpu.yaml"
	readyGoal  = 150 * time.Millisecond
	layoutGoal = 300 * time.Millisecond
	endGoal    = time.Second
	settled    = 3 * time.Second  // after a change, the toolkit checks for more during two of them
	watched    = 10 * time.Second // how long an idle toolkit is measured
)

// toolkit measures how soon specifications follow a driver and a MIG layout, and the cost of an
// idle toolkit.
func (b *bench) toolkit(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("toolkit: left out, it needs root")
		return nil
	}
	var ready, layout, ended []time.Duration
	var rests []idleness
	for run := range max(b.starts/2, 1) {
		h, err := b.newHost(ctx)
		if err != nil {
			return err
		}
		r, l, err := h.follow(ctx)
		if err == nil && run < 3 {
			var i idleness
			if i, err = idleOf(ctx, h.cmd.Process.Pid); err == nil {
				rests = append(rests, i)
			}
		}
		var e time.Duration
		if err == nil {
			e, err = h.end()
		}
		if err := errors.Join(err, h.close()); err != nil {
			return err
		}
		ready, layout, ended = append(ready, r), append(layout, l), append(ended, e)
	}
	show("toolkit: driver ready → CDI specification, 8 GPUs", ready, within(readyGoal, 0))
	show("toolkit: gpusim mig started → new CDI specification", layout, within(layoutGoal, layoutGoal))
	show("toolkit: SIGTERM → ended", ended, within(endGoal, endGoal))
	showRest("toolkit", rests, goal{median: 24 << 20 / megabyte}, goal{median: 6 << 20 / megabyte}, goal{median: 20})
	return nil
}

// toolkitHost is a folder that serves as a toolkit's host and waits for a driver.
type toolkitHost struct {
	*node
	cmd   *exec.Cmd
	log   string
	specs *inotify.Watcher
}

func (b *bench) newHost(ctx context.Context) (*toolkitHost, error) {
	dir, err := os.MkdirTemp(b.tmp, "h")
	if err != nil {
		return nil, err
	}
	h := &toolkitHost{node: &node{bench: b, dir: dir}, log: filepath.Join(dir, "log")}
	cdi, state := filepath.Join(dir, "var/run/cdi"), filepath.Join(dir, "run/nvidia/gpuready/toolkit")
	for _, d := range []string{cdi, state} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if h.specs, err = inotify.New(); err != nil {
		return nil, err
	}
	if err := errors.Join(h.specs.Add(cdi), h.specs.Add(state)); err != nil {
		return nil, err
	}
	log, err := os.Create(h.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	h.cmd = exec.Command(b.program("gpu-toolkit"), "run", "--host-root", dir, "--driver-root", "/driver", "--listen=")
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := h.await(ctx, "state.json"); err != nil { // it waits for the driver
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// await waits until a file is created or replaced, and returns the time of that event.
func (h *toolkitHost) await(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	for {
		e, err := h.specs.Next(ctx)
		if err != nil {
			out, readErr := os.ReadFile(h.log)
			return time.Time{}, errors.Join(fmt.Errorf("%s of the toolkit: %w; its log: %s", name, err, out), readErr)
		}
		if e.Name != name {
			continue
		}
		now := time.Now()
		if _, err := os.Stat(filepath.Join(e.Dir, name)); err == nil {
			return now, nil
		}
	}
}

// follow installs a driver and divides a GPU.
func (h *toolkitHost) follow(ctx context.Context) (ready, layout time.Duration, err error) {
	if err := h.gpusim(ctx, "up", "--profile", "a100-80gb"); err != nil {
		return 0, 0, err
	}
	specified, err := h.await(ctx, specFile)
	if err != nil {
		return 0, 0, err
	}
	// The simulator's last step: a driver is ready once its libnvidia-ml can be found.
	found, err := filepath.Glob(filepath.Join(h.root(), "usr/lib/*/libnvidia-ml.so.1"))
	if err != nil || len(found) != 1 {
		return 0, 0, fmt.Errorf("libnvidia-ml.so.1 of the simulator: %v, %w", found, err)
	}
	info, err := os.Lstat(found[0])
	if err != nil {
		return 0, 0, err
	}
	ready = specified.Sub(info.ModTime())
	began := time.Now()
	if err := h.gpusim(ctx, "mig", "--gpu", "0", "--layout", "1g.10gb,2g.20gb"); err != nil {
		return 0, 0, err
	}
	for {
		specified, err = h.await(ctx, specFile)
		if err != nil {
			return 0, 0, err
		}
		data, err := os.ReadFile(filepath.Join(h.dir, "var/run/cdi", specFile))
		if err != nil {
			return 0, 0, err
		}
		if strings.Count(string(data), "name: MIG-") == 2 {
			return ready, specified.Sub(began), nil
		}
	}
}

// idleness is the cost of an idle process: sizes in bytes, and the number of times that one of its
// threads went from waiting to running.
type idleness struct {
	resident, own, wakeups float64
	busy                   time.Duration
}

func idleOf(ctx context.Context, pid int) (i idleness, err error) {
	if err := sleep(ctx, settled); err != nil {
		return i, err
	}
	before, beforeWakeups, err := ran(pid)
	if err != nil {
		return i, err
	}
	if err := sleep(ctx, watched); err != nil {
		return i, err
	}
	after, afterWakeups, err := ran(pid)
	if err != nil {
		return i, err
	}
	i.busy, i.wakeups = after-before, afterWakeups-beforeWakeups
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return i, err
	}
	if i.resident, err = field(string(status), "VmRSS"); err != nil {
		return i, err
	}
	i.own, err = field(string(status), "RssAnon")
	return i, err
}

// ran returns how long a process's threads have run (schedstat of proc(5)), and how often they
// have yielded the processor voluntarily.
func ran(pid int) (busy time.Duration, switches float64, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return 0, 0, fmt.Errorf("threads of process %d: %v, %w", pid, tasks, err)
	}
	for _, task := range tasks {
		schedstat, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			return 0, 0, err
		}
		var nanoseconds int64
		if _, err := fmt.Sscan(string(schedstat), &nanoseconds); err != nil {
			return 0, 0, err
		}
		busy += time.Duration(nanoseconds)
		status, err := os.ReadFile(filepath.Join(task, "status"))
		if err != nil {
			return 0, 0, err
		}
		_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		var n float64
		if _, err := fmt.Sscan(rest, &n); err != nil {
			return 0, 0, err
		}
		switches += n
	}
	return busy, switches, nil
}

// end ends the toolkit as on a node.
func (h *toolkitHost) end() (time.Duration, error) {
	began := time.Now()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	err := h.cmd.Wait()
	return time.Since(began), err
}

func (h *toolkitHost) close() error {
	err := h.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = h.cmd.Wait() // killed
	return errors.Join(err, h.specs.Close(), h.gpusim(context.Background(), "down"), os.RemoveAll(h.dir))
}
