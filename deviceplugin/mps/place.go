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
	mpsRoot    string // host path
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
	go func() {
		defer close(p.ended)
		// It is not unlocked: the thread ends with the goroutine, and the namespace with it.
		runtime.LockOSThread()
		err := p.mount(root)
		ready <- err
		if err != nil {
			return
		}
		for fn := range p.work {
			fn()
		}
	}()
	if err := <-ready; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
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
	binds := [][2]string{{p.site.seen(ShmDir(p.site.mpsRoot)), filepath.Join(root, Shm)}}
	if mps := filepath.Join(root, p.site.mpsRoot); mps != p.site.seen(p.site.mpsRoot) {
		binds = append(binds, [2]string{p.site.seen(p.site.mpsRoot), mps})
	}
	for _, b := range binds {
		if err := os.MkdirAll(b[1], 0o755); err != nil {
			return fmt.Errorf("make the mount point %s: %w", b[1], err)
		}
		if err := unix.Mount(b[0], b[1], "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b[0], b[1], err)
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
		"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(p.site.mpsRoot, p.site.resource),
		"CUDA_MPS_LOG_DIRECTORY=" + LogDir(p.site.mpsRoot, p.site.resource),
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
