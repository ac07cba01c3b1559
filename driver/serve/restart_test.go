package serve

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/daemons/supervisor"
	"github.com/gpuready/gpuready/driver/kernel"
)

// newServed returns a Driver whose root is mounted, on a node whose modules are in a file of the returned
// folder.
func newServed(t *testing.T, modules string) (*Driver, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"proc/modules": modules, "proc/devices": "Character devices:\n195 nvidia\n\nBlock devices:\n", "sys/module/nvidia/srcversion": "A\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	d := &Driver{Config: Config{Root: "/proc", StateDir: filepath.Join(dir, "state"), OutputDir: filepath.Join(dir, "out"), Log: slog.New(slog.DiscardHandler)}}
	d.System = kernel.System{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"), Calls: &calls{modules: filepath.Join(dir, "proc/modules")}}
	return d, dir
}

const loadedNVIDIA = "nvidia 1000 0 - Live 0x0\n"

func TestWhatCannotBeReadDoesNotTakeTheDriver(t *testing.T) {
	d, dir := newServed(t, loadedNVIDIA)
	s := Snapshot{Wanted: []string{"nvidia"}, Files: kernel.Files{"nvidia": {Info: kernel.Info{Name: "nvidia", SrcVersion: "A"}}}}
	ticks, ended := make(chan time.Time), make(chan error, 1)
	go func() { ended <- d.checkOnEvents(t.Context(), s, nil, ticks) }()
	check := func() { // a second tick is received when the first has been checked
		for range 2 {
			select {
			case ticks <- time.Time{}:
			case err := <-ended:
				t.Fatalf("the watch ended: %v", err)
			}
		}
	}
	check()
	modules := filepath.Join(dir, "proc/modules")
	require.NoError(t, os.Mkdir(modules+".folder", 0o755)) // which cannot be read as a file
	exchange := func() {
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, modules, unix.AT_FDCWD, modules+".folder", unix.RENAME_EXCHANGE))
	}
	exchange()
	check()
	exchange()
	require.NoError(t, os.Rename(filepath.Join(dir, "sys/module"), filepath.Join(dir, "sys/away")))
	check()
	require.NoError(t, os.Rename(filepath.Join(dir, "sys/away"), filepath.Join(dir, "sys/module")))
	check()
	require.NoError(t, os.WriteFile(modules, []byte("loop 100 0 - Live 0x0\n"), 0o644))
	select {
	case ticks <- time.Time{}:
	case err := <-ended: // at the second tick before
		ended <- err
	}
	err := <-ended
	require.Equal(t, ReasonTaken, ReasonOf(err), "%v", err)
	require.EqualError(t, err, "module nvidia is no longer loaded: somebody unloaded it")
}

// runDaemon makes a Driver run a shell as its daemon, which writes the signal that ended it to a file.
func runDaemon(t *testing.T, d *Driver, record string) {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	k := &runningDaemons{end: end, ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	k.Supervisor = supervisor.New(supervisor.Config{Log: d.Log, Daemons: []supervisor.Daemon{{Name: "nv-fabricmanager", Required: true, Path: "/bin/sh",
		Args: []string{"-c", `trap 'echo terminated > ` + record + `; exit 0' TERM; : > ` + record + `; while :; do sleep 0.05; done`}, StartTimeout: time.Minute}}})
	go func() { k.ended <- k.Run(life); close(k.ended) }()
	t.Cleanup(func() {
		end()
		for range k.ended { // it may have been received already
		}
	})
	d.daemons = k
	require.Eventually(t, func() bool {
		_, err := os.Stat(record)
		return err == nil && k.Status()[0].PID != 0
	}, time.Minute, time.Millisecond)
}

// addProcess shows a process in the node's /proc with what it has open.
func addProcess(t *testing.T, dir string, pid int, stat string, open ...string) {
	t.Helper()
	at := filepath.Join(dir, "proc", strconv.Itoa(pid))
	require.NoError(t, os.MkdirAll(filepath.Join(at, "fd"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(at, "stat"), []byte(stat), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(at, "comm"), []byte("python\n"), 0o644))
	for i, target := range open {
		require.NoError(t, os.Symlink(target, filepath.Join(at, "fd", strconv.Itoa(i))))
	}
}

func TestDaemonsOutliveADriverThatJobsUse(t *testing.T) {
	device := filepath.Join(t.TempDir(), "dev", "nvidia0")
	require.NoError(t, os.Mkdir(filepath.Dir(device), 0o755))
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(195, 0))); err != nil {
		t.Skipf("device nodes cannot be made here: %v", err)
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, d *Driver, dir string, daemon int)
		busy    string // "": the daemons are stopped
	}{
		"A job": {func(t *testing.T, _ *Driver, dir string, _ int) {
			addProcess(t, dir, 77, "77 (a) b) S 1 77 77 0", device)
		},
			"module nvidia is in use by pid 77 (python) with " + device + "; end it first"},
		"Another module": {func(t *testing.T, d *Driver, dir string, _ int) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "proc/modules"), []byte("nvidia 1000 1 nvidia_fs, Live 0x0\n"), 0o644))
		}, "module nvidia is in use by the module nvidia_fs of somebody else; unload that first"},
		"Unreadable": {func(t *testing.T, _ *Driver, dir string, _ int) {
			require.NoError(t, os.Remove(filepath.Join(dir, "proc/devices")))
		}, "no such file or directory"},
		"Hidden processes": {func(t *testing.T, _ *Driver, dir string, _ int) {
			require.NoError(t, os.Remove(filepath.Join(dir, "proc/self/ns/pid")))
		}, "run this container with hostPID: true"},
		"The daemons alone": {func(t *testing.T, _ *Driver, dir string, daemon int) {
			addProcess(t, dir, daemon, "5 (sh) S 1 5 5 0", device)
			addProcess(t, dir, 1001, "1001 (child) S "+strconv.Itoa(daemon)+" 1001 1001 0", device)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, dir := newServed(t, loadedNVIDIA)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/self/ns"), 0o755))
			require.NoError(t, os.Symlink("pid:[4026531836]", filepath.Join(dir, "proc/self/ns/pid")))
			record := filepath.Join(dir, "ended")
			runDaemon(t, d, record)
			daemon := d.daemons.Status()[0].PID
			c.prepare(t, d, dir, daemon)
			busy, err := d.stopUnusedDaemons()
			require.NoError(t, err)
			how, err := os.ReadFile(record)
			require.NoError(t, err)
			if c.busy == "" {
				require.NoError(t, busy)
				require.Equal(t, "terminated\n", string(how))
				return
			}
			require.ErrorContains(t, busy, c.busy)
			require.Empty(t, string(how), "the daemon was told to end")
			require.NoError(t, unix.Kill(daemon, 0))
			require.NoError(t, d.shutDown(t.Context(), busy))
			require.Equal(t, ReasonUnattended, d.published.Reason)
			require.Contains(t, d.published.Message, c.busy)
			require.Empty(t, d.System.Calls.(*calls).recorded(), "a module was unloaded")
		})
	}
}
