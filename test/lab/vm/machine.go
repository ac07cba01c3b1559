// Package vm boots Debian's own kernels in QEMU, without KVM, so that a test runs against a
// real kernel that loads, refuses and unloads modules.
//
//	k := vm.FetchKernel(t, vm.Linux612)
//	m := vm.Boot(t, vm.Config{
//		Kernel: k,
//		Files:  vm.BuildStubs(t, k, "580.95.05").Below("/modules"),
//	})
//	require.NoError(t, m.LoadModule(t.Context(), "/modules/nvidia.ko", ""))
//	fmt.Println(m.Run(t.Context(), "cat", "/proc/modules"))
//
// A machine has a kernel and a root in memory: an agent as its first process, busybox, and the
// files that the test names. The agent executes the test's requests from a serial port. With
// Config.Disk the root is a file system on a disk, as containers need it, and its files survive
// a reboot.
package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuready/gpuready/test/lab/built"
)

const (
	defaultMemory = 512 // MiB

	// bootPatience is for a loaded machine; without other work it is a few seconds.
	bootPatience = 2 * time.Minute
	// patience bounds each request that names no deadline of its own.
	patience = time.Minute

	// consoleLines is the number of console lines logged after a failure.
	consoleLines = 150
)

// Config configures a Machine.
type Config struct {
	Kernel     *Kernel
	Files      Files    // in addition to busybox and its links
	Args       []string // of the kernel: "module.sig_enforce=1", "lockdown=integrity"
	Memory     int      // MiB; 0 is 512
	CPUs       int      // 0 is 1
	Disk       int      // MiB of the root on a disk; 0: the root is in memory
	Network    *os.File // the tap device of the machine's network card; nil: no card
	SecureBoot bool     // boots with a UEFI that has Secure Boot on and trusts Snakeoil
	Devices    []string // more devices, as QEMU's -device has them: "edu"
}

// Machine is a booted machine. Several goroutines may use it at a time; a method that fails
// the test has to be called by the test's own.
type Machine struct {
	t      testing.TB
	config Config
	paths  paths

	mu     sync.Mutex
	qemu   *qemu
	client *client
}

// Boot boots a machine and returns once its agent serves. The machine ends with the test; its
// console is logged if the test failed.
func Boot(t testing.TB, c Config) *Machine {
	t.Helper()
	SkipUnlessEnabled(t)
	dir := t.TempDir()
	m := &Machine{t: t, config: c, paths: paths{
		initrd:    filepath.Join(dir, "initrd"),
		console:   filepath.Join(dir, "console"),
		variables: filepath.Join(dir, "variables.fd"),
		disk:      filepath.Join(dir, "disk"),
	}}
	if err := m.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.end)
	if err := m.boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// prepare writes QEMU's input files.
func (m *Machine) prepare(ctx context.Context) error {
	own, err := m.ownFiles(ctx)
	if err != nil {
		return err
	}
	first := Merge(own, m.config.Files)
	if m.config.Disk > 0 {
		if err := writeDisk(ctx, m.paths.disk, m.config.Disk, first); err != nil {
			return err
		}
		if first, err = m.diskFiles(own); err != nil {
			return err
		}
	}
	f, err := os.Create(m.paths.initrd)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(writeArchive(w, first), w.Flush(), f.Close()); err != nil {
		return err
	}
	if m.config.SecureBoot {
		return copyFile(firmwareVariables, m.paths.variables)
	}
	return nil
}

// ownFiles returns the files of every machine: the agent, busybox and its links.
func (m *Machine) ownFiles(ctx context.Context) (Files, error) {
	agent, err := buildAgent()
	if err != nil {
		return nil, err
	}
	const busybox = "/bin/busybox"
	listed, err := program(ctx, "/", busybox, "--list")
	if err != nil {
		return nil, fmt.Errorf("%w; make packages-machine installs busybox-static", err)
	}
	files := Files{
		"/init":            {Data: agent, Mode: 0o755},
		"/bin/busybox":     Program(busybox),
		"/root":            {Mode: os.ModeDir | 0o700},
		"/proc":            {Mode: os.ModeDir | 0o555},
		"/sys":             {Mode: os.ModeDir | 0o555},
		"/dev":             {Mode: os.ModeDir | 0o755},
		"/run":             {Mode: os.ModeDir | 0o755},
		"/tmp":             {Mode: os.ModeDir | os.ModeSticky | 0o777},
		"/var/run":         {Link: "../run"},
		"/etc/passwd":      {Data: []byte("root:x:0:0:root:/root:/bin/sh\n")},
		"/etc/group":       {Data: []byte("root:x:0:\n")},
		"/etc/os-release":  {Data: []byte("ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n")},
		"/usr/lib/machine": {Mode: os.ModeDir | 0o755},
		"/usr/local/sbin":  {Mode: os.ModeDir | 0o755},
		"/usr/local/bin":   {Mode: os.ModeDir | 0o755},
		"/lib/modules":     {Mode: os.ModeDir | 0o755},
		"/etc/modprobe.d":  {Mode: os.ModeDir | 0o755},
		"/lib/firmware":    {Mode: os.ModeDir | 0o755},
		"/usr/src":         {Mode: os.ModeDir | 0o755},
		"/var/lib":         {Mode: os.ModeDir | 0o755},
	}
	for applet := range strings.FieldsSeq(listed) {
		if applet != "busybox" {
			files["/bin/"+applet] = File{Link: "busybox"}
		}
	}
	if m.config.SecureBoot {
		if err := m.addOwnModules(files, "efivarfs"); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// addOwnModules adds modules of the kernel that the agent loads at its start. They depend
// on no others.
func (m *Machine) addOwnModules(files Files, names ...string) error {
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(m.config.Kernel.folder(), "kernel/fs", name, name+".ko*"))
		if err != nil {
			return err
		}
		for _, path := range found {
			files["/usr/lib/machine/"+filepath.Base(path)] = File{Source: path}
		}
	}
	return nil
}

// buildAgent returns the agent's program.
var buildAgent = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "agent-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "agent")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "./test/lab/vm/agent")
	cmd.Dir = built.Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the machine's agent: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// boot starts QEMU and waits for the agent.
func (m *Machine) boot(ctx context.Context) error {
	q, err := startQEMU(arguments(m.config, m.paths), m.config.Network)
	if err != nil {
		return err
	}
	c := newClient(q.out, q.in)
	m.mu.Lock()
	m.qemu, m.client = q, c
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	select {
	case <-c.serving:
		return nil
	case <-q.done:
		return fmt.Errorf("the machine ended before its agent served; QEMU printed: %s", q.stderr.String())
	case <-ctx.Done():
		return fmt.Errorf("the machine's agent did not serve within %v", bootPatience)
	}
}

// end ends the machine with its test.
func (m *Machine) end() {
	m.Kill()
	if m.t.Failed() {
		lines := strings.Split(m.Console(), "\n")
		m.t.Logf("end of the console of the machine with %s:\n%s", m.config.Kernel.Release, strings.Join(lines[max(0, len(lines)-consoleLines):], "\n"))
	}
}

// Kill ends the machine at once, as a power cut does.
func (m *Machine) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.qemu != nil {
		m.qemu.kill()
	}
}

// Restart boots the machine again after Kill, Reboot or PowerOff, with its initial files. Only a
// disk keeps changes.
func (m *Machine) Restart(ctx context.Context) {
	m.t.Helper()
	m.Kill()
	if err := m.boot(ctx); err != nil {
		m.t.Fatal(err)
	}
}

// Console returns what the machine has written to its console since it last booted.
func (m *Machine) Console() string {
	data, err := os.ReadFile(m.paths.console)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// call sends a request to the agent. A failure of the connection ends the test.
func (m *Machine) call(ctx context.Context, r Request) (Response, error) {
	m.t.Helper()
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout+patience)
	defer cancel()
	response, err := c.call(ctx, r)
	if err != nil && response.ID == 0 {
		m.t.Fatalf("%s in the machine: %v", r.Op, err)
	}
	return response, err
}

// OpenFile is a file that the agent holds open.
type OpenFile struct {
	m      *Machine
	handle int
}

// Open holds a file open, a device for example, until Close.
func (m *Machine) Open(ctx context.Context, path string) (*OpenFile, error) {
	m.t.Helper()
	response, err := m.call(ctx, Request{Op: OpOpenFile, Path: path, Flags: syscall.O_RDWR})
	if err != nil {
		return nil, err
	}
	return &OpenFile{m: m, handle: response.Handle}, nil
}

// Close closes the file.
func (h *OpenFile) Close(ctx context.Context) error {
	h.m.t.Helper()
	_, err := h.m.call(ctx, Request{Op: OpCloseFile, Handle: h.handle})
	return err
}

// ReadFile returns the content of a file of the machine.
func (m *Machine) ReadFile(ctx context.Context, path string) (string, error) {
	m.t.Helper()
	response, err := m.call(ctx, Request{Op: OpReadFile, Path: path})
	return string(response.Data), err
}

// WriteFile writes a file of the machine. Many or large files belong into Config.Files:
// a serial port is slow.
func (m *Machine) WriteFile(ctx context.Context, path, data string, mode os.FileMode) error {
	m.t.Helper()
	_, err := m.call(ctx, Request{Op: OpWriteFile, Path: path, Data: []byte(data), Mode: uint32(mode.Perm())})
	return err
}

// LoadModule loads a kernel module from a file with parameters ("a=1 b=2"). The error is
// the kernel's: errors.Is(err, syscall.ENOEXEC).
func (m *Machine) LoadModule(ctx context.Context, path, parameters string) error {
	m.t.Helper()
	_, err := m.call(ctx, Request{Op: OpLoadModule, Path: path, Params: parameters})
	return err
}

// UnloadModule unloads a kernel module by its name in /proc/modules.
func (m *Machine) UnloadModule(ctx context.Context, name string) error {
	m.t.Helper()
	_, err := m.call(ctx, Request{Op: OpUnloadModule, Path: name})
	return err
}

// Reboot has the kernel reboot and boots the machine again. A root in memory keeps nothing.
func (m *Machine) Reboot(ctx context.Context) {
	m.t.Helper()
	m.stop(ctx, OpReboot)
	m.Restart(ctx)
}

// PowerOff has the kernel turn the machine off; Restart boots it again.
func (m *Machine) PowerOff(ctx context.Context) {
	m.t.Helper()
	m.stop(ctx, OpPowerOff)
}

func (m *Machine) stop(ctx context.Context, op Op) {
	m.t.Helper()
	m.mu.Lock()
	c, q := m.client, m.qemu
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := c.call(ctx, Request{Op: op}); !errors.Is(err, errEnded) {
		m.t.Fatalf("%s the machine: %v", op, err)
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		m.t.Fatalf("%s: the machine still runs after %v", op, patience)
	}
}
