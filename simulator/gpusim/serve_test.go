package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

const (
	driverRoot = node.DriverRoot
	stateDir   = "/run/nvidia/gpuready/driver"
	readyFile  = "/run/nvidia/validations/.driver-ctr-ready"
)

// libraries is the library directory of a driver root on this machine.
var libraries = filepath.Join(driverRoot, node.LibraryDir())

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// host enters a node whose /run is as systemd makes it: what is mounted in it
// propagates. It returns false where the test is not inside.
func host(t *testing.T) bool {
	if !node.Enter(t) {
		return false
	}
	require.NoError(t, unix.Unmount(driverRoot, 0)) // the node's own, for other tests
	require.NoError(t, os.Remove(driverRoot))
	require.NoError(t, unix.Mount("", "/run", "", unix.MS_SHARED, ""))
	return true
}

// serve starts gpusim serve and waits until it has the driver.
func serve(t *testing.T, args ...string) *built.Process {
	t.Helper()
	p := start(t, args...)
	require.NoError(t, p.WaitOutput(within(t), "msg=ready"))
	waitPhase(t, nodestate.Ready)
	require.FileExists(t, readyFile)
	return p
}

// start starts it, in the environment of a pod on the node n1.
func start(t *testing.T, args ...string) *built.Process {
	t.Helper()
	built.Path(t, "lib/libcuda.so")
	args = append([]string{"serve", "--listen=", "--lib-dir", filepath.Dir(built.Path(t, "lib/libnvidia-ml.so"))}, args...)
	return built.Start(t, "gpusim", args, "NODE_NAME=n1")
}

func kill(t *testing.T, p *built.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGKILL))
	_, err := p.Wait(within(t))
	require.NoError(t, err)
}

func terminate(t *testing.T, p *built.Process) {
	t.Helper()
	require.NoError(t, p.Signal(syscall.SIGTERM))
	exit, err := p.Wait(within(t))
	require.NoError(t, err)
	require.Zero(t, exit, p.Output())
}

func fails(t *testing.T, p *built.Process, exit int, why string) {
	t.Helper()
	got, err := p.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, exit, got, p.Output())
	require.Contains(t, p.Output(), why)
}

func waitPhase(t *testing.T, phase nodestate.Phase) nodestate.State {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var last nodestate.State
	_ = nodestate.Watch(ctx, stateDir, func(s nodestate.State, err error) {
		if last = s; err == nil && s.Phase == phase {
			cancel()
		}
	})
	require.Equal(t, phase, last.Phase, "%+v", last)
	return last
}

func served(t *testing.T) bool {
	t.Helper()
	ours, err := root.FileSystem.Is(driverRoot)
	require.NoError(t, err)
	return ours
}

// pod is a mount namespace beside the node's, as a container has it that mounted
// a folder or file of the host with mountPropagation: HostToContainer.
type pod struct {
	do    chan func()
	ended chan struct{}
}

// inPod is the mount point in a pod.
const inPod = "/mnt/host"

func newPod(t *testing.T, hostPath string) *pod {
	t.Helper()
	p := &pod{make(chan func()), make(chan struct{})}
	ready := make(chan error)
	go onThreadOfItsOwn(func() {
		ready <- mountPod(hostPath)
		for {
			select {
			case f := <-p.do:
				f()
			case <-p.ended:
				return
			}
		}
	})
	require.NoError(t, <-ready)
	t.Cleanup(func() { close(p.ended) })
	return p
}

// onThreadOfItsOwn runs f on a thread that ends with it. The process's first
// thread is none: what /proc/self shows is of that one's mount namespace.
func onThreadOfItsOwn(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return // locked: the thread ends
	}
	other := make(chan struct{})
	go func() {
		defer close(other)
		onThreadOfItsOwn(f)
	}()
	<-other
	runtime.UnlockOSThread()
}

func mountPod(hostPath string) error {
	info, err := os.Stat(hostPath)
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""),
		unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""),
	)
	if info.IsDir() {
		err = errors.Join(err, os.Mkdir(inPod, 0o755))
	} else {
		err = errors.Join(err, os.WriteFile(inPod, nil, 0o644))
	}
	return errors.Join(err,
		unix.Mount(hostPath, inPod, "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("", inPod, "", unix.MS_REC|unix.MS_SLAVE, ""),
	)
}

// in runs f in the pod.
func (p *pod) in(f func() error) error {
	result := make(chan error, 1)
	select {
	case p.do <- func() { result <- f() }:
		return <-result
	case <-p.ended:
		return errors.New("the pod has ended")
	}
}

// version returns the version of the driver in the pod, "" if there is none.
func (p *pod) version() (v string) {
	_ = p.in(func() error {
		target, err := os.Readlink(filepath.Join(inPod, node.LibraryDir(), "libnvidia-ml.so.1"))
		if err == nil {
			v = strings.TrimPrefix(target, "libnvidia-ml.so.")
		}
		return err
	})
	return v
}

func TestServedDriverIsSeenByPodsAndUsable(t *testing.T) {
	if !host(t) {
		return
	}
	require.NoError(t, os.MkdirAll(driverRoot, 0o755))
	early := newPod(t, driverRoot) // was there before the driver
	serve(t, "--profile", "h100-sxm")
	late := newPod(t, driverRoot)
	for _, p := range []*pod{early, late} {
		require.Equal(t, "580.95.05", p.version())
		// Devices are allowed there, unlike in /run: opened, a simulated one says
		// "no such device", which is what libraries of the simulator go by.
		require.ErrorIs(t, p.in(func() error {
			_, err := os.OpenFile(inPod+"/dev/nvidia0", os.O_RDWR, 0)
			return err
		}), unix.ENXIO)
	}
	smi := exec.Command(filepath.Join(driverRoot, "usr/bin/nvidia-smi"), "-L") // programs are allowed, too
	smi.Env = []string{"LD_LIBRARY_PATH=" + libraries}
	out, err := smi.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, 8, strings.Count(string(out), "SIMULATED NVIDIA H100"))

	s, err := nodestate.Read(stateDir)
	require.NoError(t, err)
	require.Equal(t, &nodestate.DriverInfo{Root: driverRoot, Version: "580.95.05", CUDAVersion: "13.0", Simulated: true}, s.Driver)
	text, err := os.ReadFile(readyFile)
	require.NoError(t, err)
	require.Equal(t, "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: false\n", string(text))
	p, err := mount.Top(driverRoot)
	require.NoError(t, err)
	require.True(t, p.Shared)
}

func TestNodesHaveTheirOwnStableGPUs(t *testing.T) {
	if !host(t) {
		return
	}
	ids := func(seed string) []string {
		p := serve(t, "--profile", "h100-sxm", "--seed", seed)
		var ids []string
		for _, g := range read(t, driverRoot).GPUs() {
			ids = append(ids, state.Text(g.Uuid[:]), state.Text(g.Serial[:]))
		}
		terminate(t, p)
		require.False(t, served(t), "as after a reboot")
		return ids
	}
	first, second := ids("n1"), ids("n2")
	require.Equal(t, first, ids("n1"))
	for _, id := range second {
		require.NotContains(t, first, id)
	}
}

func TestServeResumesTheDriverAfterAKill(t *testing.T) {
	if !host(t) {
		return
	}
	args := []string{"--profile", "h100-sxm", "--gpus", "4", "--mig", "3=1g.10gb,2g.20gb"}
	p := serve(t, args...)
	f, err := state.OpenRead(filepath.Join(driverRoot, "var/lib/gpusim/state")) // as a process in a pod
	require.NoError(t, err)
	defer f.Close()
	ok(t, "xid", "--gpu", "1", "--xid", "79")
	ok(t, "mig", "--gpu", "2", "--layout", "7g.80gb")
	before := *read(t, driverRoot)
	kill(t, p)
	// A removed file is restored.
	require.NoError(t, os.Remove(filepath.Join(driverRoot, "usr/bin/nvidia-smi")))
	p = serve(t, args...)
	require.Contains(t, p.Output(), "going on with the driver that is there")
	require.FileExists(t, filepath.Join(driverRoot, "usr/bin/nvidia-smi"))
	require.Equal(t, before, *read(t, driverRoot))
	require.Contains(t, ok(t, "status"), "MIG 2g.20gb")
	events := f.EventCount()
	ok(t, "xid", "--gpu", "0", "--xid", "13")
	require.Equal(t, events+1, f.EventCount(), "the process in the pod sees it")
}

// TestAnotherMachineReplacesTheDriverAtomically looks, all the while, from a pod
// that has mounted the old driver root itself.
func TestAnotherMachineReplacesTheDriverAtomically(t *testing.T) {
	if !host(t) {
		return
	}
	old := serve(t, "--profile", "h100-sxm")
	p := newPod(t, driverRoot)
	f, err := state.OpenRead(filepath.Join(driverRoot, "var/lib/gpusim/state"))
	require.NoError(t, err)
	defer f.Close()
	kill(t, old)

	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		for seen := map[string]bool{}; ; {
			err := p.in(func() error { return whole(inPod, seen) })
			select {
			case <-stop:
				if err == nil && !seen["590.10 t4-1"] {
					err = fmt.Errorf("the pod saw %v", seen)
				}
				looked <- err
				return
			default:
				if err != nil {
					looked <- err
					return
				}
			}
		}
	}()
	next := serve(t, "--profile", "t4", "--driver-version", "590.10")
	close(stop)
	require.NoError(t, <-looked)
	require.Contains(t, next.Output(), "it will be replaced")
	var s state.State
	f.Read(&s)
	require.Equal(t, "590.10", state.Text(s.ModuleVersion[:]), "who uses the old one learns that the versions differ")

	// The same version, other GPUs: the old driver is gone for who uses it.
	g, err := state.OpenRead(filepath.Join(driverRoot, "var/lib/gpusim/state"))
	require.NoError(t, err)
	defer g.Close()
	kill(t, next)
	next = serve(t, "--profile", "t4", "--gpus", "2", "--driver-version", "590.10")
	g.Read(&s)
	require.EqualValues(t, 9, s.InitError) // NVML_ERROR_DRIVER_NOT_LOADED
	require.Contains(t, ok(t, "status"), "machine t4-2")
	require.Equal(t, "590.10", p.version())

	// All of it goes at the end, layer by layer.
	terminate(t, next)
	require.NoDirExists(t, filepath.Join(driverRoot, "usr"))
	require.False(t, served(t))
}

// whole fails if what is at root is not one driver and all of it. It looks only
// at one mount: what it opens is relative to it. One that was covered by another meanwhile is
// being emptied.
func whole(root string, seen map[string]bool) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = wholeDriver(dir, seen)
	if errors.Is(err, os.ErrNotExist) {
		was, errWas := dir.Stat(".")
		now, errNow := os.Stat(root)
		if errWas == nil && errNow == nil && !os.SameFile(was, now) {
			return nil
		}
	}
	return err
}

func wholeDriver(dir *os.Root, seen map[string]bool) error {
	lib := strings.TrimPrefix(node.LibraryDir(), "/")
	target, err := dir.Readlink(lib + "/libnvidia-ml.so.1")
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(target, "libnvidia-ml.so.")
	text, err := dir.ReadFile("proc/driver/nvidia/version")
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), "  "+version+"  ") {
		return fmt.Errorf("libraries of %s, but %s", version, text)
	}
	info, err := dir.Stat(lib + "/libnvidia-gpusim.so." + version)
	if err != nil {
		return err
	}
	machine := map[string]string{"580.95.05": "h100-sxm-8", "590.10": "t4-1"}[version]
	seen[version+" "+machine] = info.Size() > 0
	return nil
}

func TestDriverInUseOutlivesServe(t *testing.T) {
	if !host(t) {
		return
	}
	p := serve(t, "--profile", "t4")
	f, err := state.OpenRead(filepath.Join(driverRoot, "var/lib/gpusim/state")) // what libcuda does
	require.NoError(t, err)
	terminate(t, p)
	require.True(t, served(t))
	require.NoFileExists(t, readyFile)
	s := waitPhase(t, nodestate.Degraded)
	require.EqualValues(t, "DriverUnattended", s.Reason)
	require.NotNil(t, s.Driver)
	ok(t, "xid", "--gpu", "0", "--xid", "31")
	p = serve(t, "--profile", "t4")
	require.EqualValues(t, 1, f.EventCount())

	require.NoError(t, f.Close())
	bound := newPod(t, filepath.Join(libraries, "libnvidia-gpusim.so.580.95.05"))
	terminate(t, p)
	require.False(t, served(t), "nobody uses it")
	s = waitPhase(t, nodestate.Waiting)
	require.EqualValues(t, "DriverStopped", s.Reason)
	require.NoFileExists(t, readyFile)
	require.NoFileExists(t, "/run/nvidia/nvidia-driver.pid")
	require.NoError(t, bound.in(func() error {
		f, err := state.OpenRead(inPod)
		if err != nil {
			return err
		}
		var s state.State
		f.Read(&s)
		if s.InitError != 0 {
			err = errors.New("a pod that was given the driver, idle just then, cannot use it any more")
		}
		return errors.Join(err, f.Close())
	}))
}

func TestTwoAtOnceAreRefused(t *testing.T) {
	if !host(t) {
		return
	}
	p := serve(t, "--profile", "t4")
	fails(t, start(t, "--profile", "t4"), 3, fmt.Sprintf("/run/nvidia/nvidia-driver.pid is locked by pid %d on ", p.PID()))
	require.Equal(t, nodestate.Ready, waitPhase(t, nodestate.Ready).Phase, "the other one's state is not touched")
	_, stderr, exit := gpusim(t, "up", "--profile", "h100-sxm")
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, driverRoot+" is what gpusim serve mounted")
}

func TestFullOrReadOnlyPlaceIsReportedAndLeavesNothing(t *testing.T) {
	if !host(t) {
		return
	}
	fails(t, start(t, "--profile", "t4", "--size", "1m"), 1, "no space left on device; it may take 1m, as --size says")
	require.False(t, served(t))
	s := waitPhase(t, nodestate.Failed)
	require.EqualValues(t, "DriverFailed", s.Reason)
	require.Contains(t, s.Message, "make the driver root: "+driverRoot+"/usr/")
	require.NoFileExists(t, readyFile)
	fails(t, start(t, "--profile", "t4", "--size", "much"), 1, "make a tmpfs: size=much: invalid argument")

	serve(t, "--profile", "t4") // the same node, with room
	ok(t, "down")
	waitPhase(t, nodestate.Failed)

	const place = "/run/readonly"
	require.NoError(t, os.Mkdir(place, 0o755))
	require.NoError(t, unix.Mount("tmpfs", place, "tmpfs", unix.MS_RDONLY, ""))
	fails(t, start(t, "--profile", "t4", "--root", place+"/driver"), 1, "mkdir /run/readonly/driver: read-only file system")
	p := start(t, "--profile", "t4", "--state-dir", place)
	fails(t, p, 1, "write /run/readonly/driver/state.json: ")
	require.Contains(t, p.Output(), "read-only file system")
}

func TestForeignRootIsNotCovered(t *testing.T) {
	if !host(t) {
		return
	}
	ok(t, "up", "--profile", "t4")
	fails(t, start(t, "--profile", "t4"), 1, driverRoot+" already has dev, which gpusim serve did not put there")
	ok(t, "down")
	// A real driver's container shows its root.
	require.NoError(t, os.MkdirAll(libraries, 0o755))
	loader, err := filepath.Glob(filepath.Join(node.LibraryDir(), "libc.so.6"))
	require.NoError(t, err)
	require.NotEmpty(t, loader)
	data, err := os.ReadFile(loader[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(libraries, "libnvidia-ml.so.580.1"), data, 0o644))
	fails(t, start(t, "--profile", "t4"), 1, "libnvidia-ml.so.580.1 is not of the simulated driver")
	const lock = "/nvidia-driver.pid" // the machine's, which may have one
	before, _ := os.ReadFile(lock)
	fails(t, start(t, "--profile", "t4", "--root", "/"), 1, "another --root")
	after, _ := os.ReadFile(lock)
	require.Equal(t, before, after, "nothing is left where nothing is shown")
}

func TestUnmountedDriverEndsServe(t *testing.T) {
	if !host(t) {
		return
	}
	p := serve(t, "--profile", "t4")
	f, err := state.OpenRead(filepath.Join(driverRoot, "var/lib/gpusim/state"))
	require.NoError(t, err)
	defer f.Close()
	require.Contains(t, ok(t, "down"), "removed")
	fails(t, p, 1, driverRoot+": the driver root was taken away")
	require.NoFileExists(t, readyFile)
	waitPhase(t, nodestate.Failed)
	var s state.State
	f.Read(&s)
	require.EqualValues(t, 9, s.InitError)
	serve(t, "--profile", "t4")
}

func TestSlowDriverAppearsLaterAndCanBeCancelled(t *testing.T) {
	if !host(t) {
		return
	}
	get := func(path string) string {
		_, text := built.Get(t, "http://127.0.0.1:9405"+path)
		return text
	}
	p := start(t, "--profile", "t4", "--boot-delay", "1h", "--listen", "127.0.0.1:9405")
	s := waitPhase(t, nodestate.Waiting)
	require.EqualValues(t, "DriverStarting", s.Reason)
	require.Equal(t, "ok\n", get("/healthz"))
	require.Equal(t, "not ready: DriverStarting: the simulated driver takes 1h0m0s to come (--boot-delay)\n", get("/readyz"))
	require.NotContains(t, get("/metrics"), "gpuready_driver_info")
	terminate(t, p)
	require.False(t, served(t))

	p = serve(t, "--profile", "t4", "--boot-delay", "1ms", "--listen", "127.0.0.1:9405")
	require.Equal(t, "ok\n", get("/readyz"))
	require.Contains(t, get("/metrics"), "gpuready_driver_gpus 1\n")
	fails(t, start(t, "--profile", "t4", "--root", "/run/other/driver", "--listen", "127.0.0.1:9405"), 1, "choose another address with --listen")
	kill(t, p)
	serve(t, "--profile", "t4", "--boot-delay", "1h") // it is there: nothing to wait for
}

func TestServeOutsideASharedMountWarns(t *testing.T) {
	if !host(t) {
		return
	}
	require.NoError(t, unix.Mount("", "/run", "", unix.MS_PRIVATE, ""))
	require.Contains(t, serve(t, "--profile", "t4").Output(), "mountPropagation: Bidirectional")
}

func TestInstalledLibrariesAreFound(t *testing.T) {
	dir := t.TempDir()
	bin, lib := filepath.Join(dir, "usr/bin"), filepath.Join(dir, "usr/lib/gpusim")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.CopyFS(lib, os.DirFS(filepath.Dir(built.Path(t, "lib/libcuda.so")))))
	built.Copy(t, filepath.Join(bin, "gpusim"), "gpusim")
	cmd := exec.Command(filepath.Join(bin, "gpusim"), "up", "--profile", "t4", "--root", filepath.Join(dir, "driver"))
	cmd.Env = environment
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
