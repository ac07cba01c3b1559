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

// programFolders are the folders, below a driver's root, that may hold its programs. A script in
// /usr/bin that runs the program elsewhere is welcome: here, unlike in a container, it has the
// driver's root, and it may set up the loader as the program needs it.
var programFolders = []string{"/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/bin"}

// waitDelay bounds the wait for files that a child's children keep open.
const waitDelay = time.Second

// site describes where the programs run.
type site struct {
	hostRoot   string // the host's root folder as this process sees it
	driverRoot string // host path
	mpsRoot    string // host path, as it was configured
	real       string // mpsRoot without links; set by resolveRoot
	resource   string
}

// local returns the path at which this process sees a host path.
func (s site) local(hostPath string) string { return filepath.Join("/", s.hostRoot, hostPath) }

// sandbox runs the driver's programs with the driver's root as their own, since they
// need its loader, its libraries, and its servers beside them. This is how
// github.com/kubernetes-sigs/dra-driver-nvidia-gpu runs them, with chroot.
//
// A program and its clients share memory in /dev/shm. Containers get a folder of their
// own there, not the host's, which others use. That folder is mounted in a mount
// namespace of these programs alone. A namespace belongs to a thread; sandbox keeps the
// thread that starts its programs. They end with it.
type sandbox struct {
	site    site
	program string        // below the driver's root
	calls   chan func()   // to run on the sandbox's thread
	ended   chan struct{} // closed when the thread has ended
}

// newSandbox returns a new sandbox; close ends it.
func newSandbox(s site) (*sandbox, error) {
	root := s.local(s.driverRoot)
	p := &sandbox{site: s, calls: make(chan func()), ended: make(chan struct{})}
	for _, folder := range programFolders {
		if _, err := os.Lstat(filepath.Join(root, folder, program)); err == nil {
			p.program = path.Join(folder, program)
			break
		}
	}
	if p.program == "" {
		return nil, fmt.Errorf("the driver root %s has no %s in %s; install the driver's compute programs there", s.driverRoot, program, strings.Join(programFolders, ", "))
	}
	ready := make(chan error, 1)
	go runOnOwnThread(func() {
		defer close(p.ended)
		err := p.enterNamespace(root)
		ready <- err
		if err != nil {
			return
		}
		for fn := range p.calls {
			fn()
		}
	})
	if err := <-ready; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// runOnOwnThread runs fn on a thread that ends after it, so that a namespace that fn enters ends,
// too. If possible that is the calling goroutine's thread, which then runs nothing else. The
// process's first thread cannot be used: it lives as long as the process, and /proc/self shows
// its namespaces.
func runOnOwnThread(fn func()) {
	// The thread stays locked, so that it ends with the goroutine.
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
	<-locked // to another thread: this goroutine occupies the first one
	runtime.UnlockOSThread()
}

func (p *sandbox) close() {
	close(p.calls)
	<-p.ended
}

// enterNamespace creates the mount namespace of the calling thread.
func (p *sandbox) enterNamespace(root string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w; run it in a privileged container", err)
	}
	// Mounts made here stay private; a driver that is mounted later is visible.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount namespace its own: %w", err)
	}
	inside, err := host.Open(root)
	if err != nil {
		return fmt.Errorf("the driver root: %w", err)
	}
	defer func() { _ = inside.Close() }()
	binds := [][2]string{{ShmDir(p.site.real), Shm}}
	if p.site.local(p.site.driverRoot) != p.site.local("/") {
		binds = append(binds, [2]string{p.site.real, p.site.real})
	}
	for _, b := range binds {
		at, err := inside.Resolve(b[1])
		if err != nil {
			return fmt.Errorf("make the mount point %s in the driver root: %w", b[1], err)
		}
		from, at := p.site.local(b[0]), inside.Path(at)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("make the mount point %s: %w", at, err)
		}
		if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", from, at, err)
		}
	}
	return nil
}

// newCommand returns a command that runs the program in the sandbox.
func (p *sandbox) newCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=" + strings.Join(programFolders, ":"),
		"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(p.site.real, p.site.resource),
		"CUDA_MPS_LOG_DIRECTORY=" + LogDir(p.site.real, p.site.resource),
		// Limits are set by index: set by UUID they have no effect (changelog of
		// NVIDIA's device plugin, v0.15.0-rc.2). CUDA must number GPUs as NVML does.
		"CUDA_DEVICE_ORDER=PCI_BUS_ID",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if root := p.site.local(p.site.driverRoot); root != "/" {
		cmd.SysProcAttr.Chroot = root
	}
	// Servers are in the group of the daemon that started them.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	return cmd
}

// startCommand starts cmd from the sandbox's thread.
func (p *sandbox) startCommand(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	p.calls <- func() { result <- cmd.Start() }
	err := <-result
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; is %s a complete root, with the loader and the C library that the program needs?", err, p.site.driverRoot)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.program, err)
	}
	return nil
}

// sendCommand runs one command of the daemon within the limit and returns its reply.
func (p *sandbox) sendCommand(ctx context.Context, limit time.Duration, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := p.newCommand(ctx)
	out, errs := &tail{}, &tail{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(command+"\n"), out, errs
	err := p.startCommand(cmd)
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

// tail keeps the end of a program's output.
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
