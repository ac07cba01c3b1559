package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

const program = "nvidia-cuda-mps-control"

// folders are where drivers have their programs, below their root.
var folders = []string{"/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/bin"}

// lingering is how long to wait for what a child's children keep open.
const lingering = time.Second

// site says where the programs run.
type site struct {
	hostRoot   string // where the host's file system is seen
	driverRoot string // host path
	mpsRoot    string // host path, as it was configured
	real       string // the same without links; find fills it in
	resource   string
}

func (s site) seen(hostPath string) string { return filepath.Join("/", s.hostRoot, hostPath) }

// place is where the driver's programs run: with the driver's root as their own,
// since they need its loader and libraries, and its servers' beside them. This is
// how github.com/kubernetes-sigs/dra-driver-nvidia-gpu runs them, with chroot.
//
// A program and its clients share memory in /dev/shm, and containers are given a
// folder of their own there: not the host's, in which others have theirs. So that
// is mounted in a mount namespace that only these programs are in. A namespace is
// a thread's; place keeps the thread from which its programs are started. They end
// with it.
type place struct {
	site    site
	program string // below the root
	work    chan func()
	ended   chan struct{}
}

// enter makes a place; leave ends it.
func enter(s site) (*place, error) {
	root := s.seen(s.driverRoot)
	p := &place{site: s, work: make(chan func()), ended: make(chan struct{})}
	for _, folder := range folders {
		if _, err := os.Lstat(filepath.Join(root, folder, program)); err == nil {
			p.program = path.Join(folder, program)
			break
		}
	}
	if p.program == "" {
		return nil, fmt.Errorf("the driver root %s has no %s in %s; install the driver's compute programs there", s.driverRoot, program, strings.Join(folders, ", "))
	}
	ready := make(chan error, 1)
	go apart(func() {
		defer close(p.ended)
		err := p.mount(root)
		ready <- err
		if err != nil {
			return
		}
		for fn := range p.work {
			fn()
		}
	})
	if err := <-ready; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// apart runs fn on a thread that ends with it, and its namespace with it: the calling
// goroutine's, which has nothing else to do, or another. The process's first thread
// does not end while the process lives, and is what /proc/self shows.
func apart(fn func()) {
	// It is not unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	locked := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(locked)
		fn()
	}()
	<-locked // to another thread: this one is taken
	runtime.UnlockOSThread()
}

func (p *place) leave() {
	close(p.work)
	<-p.ended
}

// mount makes the mount namespace of the calling thread.
func (p *place) mount(root string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w; run it in a privileged container", err)
	}
	// What is mounted here is nobody else's; a driver that is mounted later is seen.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount namespace its own: %w", err)
	}
	inside, err := host.Open(root)
	if err != nil {
		return fmt.Errorf("the driver root: %w", err)
	}
	defer func() { _ = inside.Close() }()
	binds := [][2]string{{ShmDir(p.site.real), Shm}}
	if p.site.seen(p.site.driverRoot) != p.site.seen("/") {
		binds = append(binds, [2]string{p.site.real, p.site.real})
	}
	for _, b := range binds {
		at, err := inside.Resolve(b[1])
		if err != nil {
			return fmt.Errorf("make the mount point %s in the driver root: %w", b[1], err)
		}
		from, at := p.site.seen(b[0]), inside.Path(at)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("make the mount point %s: %w", at, err)
		}
		if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", from, at, err)
		}
	}
	return nil
}

// command is a run of the program there.
func (p *place) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=" + strings.Join(folders, ":"),
		"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(p.site.real, p.site.resource),
		"CUDA_MPS_LOG_DIRECTORY=" + LogDir(p.site.real, p.site.resource),
		// Limits are set by index: set by UUID they have no effect (changelog of
		// the reference, v0.15.0-rc.2). CUDA has to count as NVML does.
		"CUDA_DEVICE_ORDER=PCI_BUS_ID",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if root := p.site.seen(p.site.driverRoot); root != "/" {
		cmd.SysProcAttr.Chroot = root
	}
	// Servers are in the group of the daemon that started them.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = lingering
	return cmd
}

// start starts it from the place's thread.
func (p *place) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	p.work <- func() { result <- cmd.Start() }
	err := <-result
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; is %s a whole root, with the loader and the C library that the program needs?", err, p.site.driverRoot)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.program, err)
	}
	return nil
}

// ask has the daemon carry out one command within the limit and returns its answer.
func (p *place) ask(ctx context.Context, limit time.Duration, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := p.command(ctx)
	out, errs := &tail{}, &tail{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(command+"\n"), out, errs
	err := p.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no answer within %v", command, limit)
	case err != nil:
		return "", fmt.Errorf("%s: %w %s", command, err, errs)
	}
	return out.String(), nil
}

// tail keeps the end of what a program prints.
type tail struct{ data []byte }

const tailBytes = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.data)) }
