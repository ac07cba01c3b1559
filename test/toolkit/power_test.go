package toolkit

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/fault"
	"github.com/gpuready/gpuready/test/lab/node"
	account "github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/containerd"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// imagined is a containerd that accepts any file on the disk.
type imagined struct {
	root    *host.Root
	version string
	runs    []string // handlers
}

func (i *imagined) Query(context.Context) (runtime.Info, error) {
	return runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: i.version, Handlers: i.runs}, Default: "runc"}, nil
}

func (i *imagined) Plan(version string, want runtime.Want) (runtime.Plan, error) {
	return containerd.Plan(i.root, runtime.Place{
		Kind: runtime.Containerd, Version: version,
		Config: "/etc/containerd/config.toml", DropIn: "/etc/containerd/conf.d/99-gpuready.toml",
	}, want)
}

func (i *imagined) CanRestart() (bool, string) { return true, "" }

func (i *imagined) CheckRestart(context.Context) error { return nil }

func (i *imagined) Restart(context.Context, []runtime.Edit) (string, error) {
	i.read()
	return "restarted", nil
}

// read reads the handlers that the files name.
func (i *imagined) read() {
	i.runs = []string{"runc", "runc-batch"}
	for _, name := range []string{"/etc/containerd/config.toml", "/etc/containerd/conf.d/99-gpuready.toml"} {
		if data, err := i.root.ReadFile(name, runtime.MaxFile); err == nil && bytes.Contains(data, []byte("nvidia")) {
			i.runs = append(i.runs, "nvidia")
			return
		}
	}
}

// machine is a host in a directory whose power can fail.
type machine struct {
	*setup.Toolkit
	runtime *imagined
	held    *account.Held
}

func openMachine(t *testing.T, dir, version string) machine {
	t.Helper()
	program := filepath.Join(t.TempDir(), setup.ShimName)
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755)) // written often, never run
	tk, err := setup.New(setup.Config{
		HostRoot: dir, DriverRoot: "/", DevRoot: "/", CDIDir: "/var/run/cdi", InstallDir: "/usr/local/nvidia/gpuready",
		StateDir: "/run/nvidia/gpuready", Configure: true, Handler: "nvidia", Shim: request.DefaultSettings(), ShimProgram: program,
	}, nil)
	require.NoError(t, err)
	held, err := tk.Lock(t.Context(), nil)
	require.NoError(t, err)
	r := &imagined{root: tk.Root, version: version}
	r.read()
	return machine{tk, r, held}
}

func (m machine) close(t *testing.T) {
	t.Helper()
	require.NoError(t, m.held.Unlock())
	require.NoError(t, m.Close())
}

func (m machine) apply(ctx context.Context) error {
	c := m.Configurer(nil)
	c.Runtime = m.runtime
	_, err := m.ConfigureRuntime(ctx, c, false)
	return err
}

func (m machine) restore(ctx context.Context) error {
	if _, err := m.RestoreRuntime(ctx, false, func(string) {}); err != nil {
		return err
	}
	_, left, err := m.Uninstall(false)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left: %v", left)
	}
	return err
}

// bootID writes the boot ID of the n-th boot.
func bootID(t *testing.T, dir string, n int) {
	t.Helper()
	at := filepath.Join(dir, "proc/sys/kernel/random")
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(at, "boot_id"), fmt.Appendf(nil, "0f0e0d0c-0b0a-4909-8807-%012d\n", n), 0o644))
}

// config returns containerd's files below a directory, by path.
func config(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for path, f := range contents(t, filepath.Join(dir, "etc/containerd")) {
		all[strings.TrimPrefix(path, dir)] = f.content
	}
	return all
}

// outage simulates a power failure at each step of an apply and of a restore. The real containerd
// must start with each distinct resulting configuration, and keep all earlier handlers. From each
// tree, an apply and a restore must reach their usual final states.
func outage(t *testing.T, kind node.Kind, version string) {
	t.Helper()
	if !enter(t) {
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/containerd"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/local"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, written[kind].path), byHand(t, kind)[written[kind].path], 0o644))
	bootID(t, dir, 1)
	bare := config(t, dir)
	m := openMachine(t, dir, version)
	disk, err := fault.ReadDisk(dir)
	require.NoError(t, err)
	var trace []host.Op
	m.Root.Trace(func(op host.Op) error { trace = append(trace, op); return nil })
	require.NoError(t, m.apply(t.Context()))
	applied := config(t, dir)
	require.NotEqual(t, bare, applied)
	half := len(trace)
	require.NoError(t, m.restore(t.Context()))
	m.Root.Trace(nil)
	require.Equal(t, bare, config(t, dir))
	m.close(t)

	states := map[string]map[string]string{}
	trees := 0
	for i, op := range trace {
		require.NoError(t, disk.Do(op), "step %d, %s %s", i, op.Kind, op.Path)
		for k, loss := range fault.PowerLosses(uint64(i)) {
			if !long && (i+k)%7 != 0 { // each loss at every seventh step
				continue
			}
			trees++
			for _, first := range []string{"apply", "restore"} {
				at := t.TempDir()
				require.NoError(t, disk.Write(at, loss))
				if k > 0 {
					bootID(t, at, 2)
					require.NoError(t, os.RemoveAll(filepath.Join(at, "run")))
					require.NoError(t, os.Mkdir(filepath.Join(at, "run"), 0o755))
				}
				found := config(t, at)
				states[fmt.Sprint(found)] = found
				after := openMachine(t, at, version)
				what := fmt.Sprintf("step %d of %d (apply: %d), %s %s, lost: %s", i, len(trace), half, op.Kind, op.Path, loss.Name)
				if first == "apply" {
					require.NoError(t, after.apply(t.Context()), what)
					require.Equal(t, applied, config(t, at), what)
				}
				require.NoError(t, after.restore(t.Context()), what)
				require.Equal(t, bare, config(t, at), what)
				after.close(t)
				require.NoError(t, os.RemoveAll(at))
			}
		}
	}
	t.Logf("%d steps, %d trees, %d distinct states of the configuration", len(trace), trees, len(states))
	require.Greater(t, len(states), 1)
	accepted(t, kind, states)
}

// accepted starts the real containerd with each state of its configuration.
func accepted(t *testing.T, kind node.Kind, states map[string]map[string]string) {
	t.Helper()
	h := node.CreateHost(t, node.HostOptions{Kind: kind})
	for _, name := range slices.Sorted(maps.Keys(states)) {
		require.NoError(t, os.RemoveAll("/etc/containerd"))
		for path, content := range states[name] {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		}
		_, err := h.Output(t.Context(), "containerd", "config", "dump")
		require.NoError(t, err, name)
		require.NoError(t, h.Start(t.Context()), name)
		require.Subset(t, status(t, h).Handlers, []string{"runc", "runc-batch"}, name)
		require.NoError(t, h.Stop(t.Context()))
	}
}

func TestContainerd2SurvivesAPowerLoss(t *testing.T) {
	outage(t, node.Containerd2, "2.4.2")
}

func TestContainerd16SurvivesAPowerLoss(t *testing.T) {
	outage(t, node.Containerd16, "1.6.20")
}
