package vm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Firmware of a machine with Secure Boot: a UEFI that refuses unsigned programs, and variables in
// which Debian's snakeoil key is trusted (package ovmf).
const (
	firmwareCode      = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	firmwareVariables = "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"
)

// paths are the files of one machine, in a folder of its own.
type paths struct{ initrd, console, variables, disk string }

// withoutCX16 disables an instruction that kernels do not need. After CMPXCHG16B, QEMU 7.2
// sometimes sets wrong flags, including the trap flag, and one boot in five of Linux 6.12 panics.
const withoutCX16 = ",-cx16"

// arguments returns the arguments of QEMU. QEMU's standard input and output are connected to the virtual
// machine's second serial port, for the agent there. The processor is emulated, without KVM: a build machine
// that is itself a virtual one may have /dev/kvm and still not be able to use it.
func arguments(c Config, p paths) []string {
	memory := c.Memory
	if memory == 0 {
		memory = defaultMemory
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg", "-m", strconv.Itoa(memory), "-smp", strconv.Itoa(max(1, c.CPUs)),
		"-chardev", "file,id=console,path=" + escape(p.console), "-serial", "chardev:console",
		"-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent",
		"-kernel", c.Kernel.Image(), "-initrd", p.initrd,
		"-append", strings.Join(append([]string{"console=ttyS0", "panic=-1"}, append(rootArguments(c), c.Args...)...), " "),
	}
	if c.Disk > 0 {
		// unsafe: nothing of the disk is needed after the test.
		args = append(args, "-drive", "if=virtio,format=raw,cache=unsafe,file="+escape(p.disk))
	}
	if c.Network != nil {
		args = append(args, "-netdev", "tap,id=network,fd="+strconv.Itoa(networkFD), "-device", "virtio-net-pci,netdev=network,romfile=")
	}
	if c.SecureBoot {
		args = append(args,
			"-machine", "q35,smm=on", "-cpu", "qemu64"+withoutCX16, "-global", "driver=cfi.pflash01,property=secure,value=on",
			"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+firmwareCode,
			"-drive", "if=pflash,format=raw,unit=1,file="+escape(p.variables))
	} else {
		args = append(args, "-machine", "q35", "-cpu", "max"+withoutCX16)
	}
	for _, device := range c.Devices {
		args = append(args, "-device", device)
	}
	return args
}

// escape keeps commas in a value of one of QEMU's options.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// qemu is a running QEMU.
type qemu struct {
	in     io.WriteCloser
	out    io.ReadCloser
	stderr strings.Builder
	cmd    *exec.Cmd
	done   chan struct{} // closed once it has ended
}

// networkFD is the file descriptor of the tap device in QEMU.
const networkFD = 3

// startQEMU starts QEMU, which ends with this process, however that ends. network, the tap device
// of its network card, may be nil.
func startQEMU(args []string, network *os.File) (*qemu, error) {
	q := &qemu{cmd: exec.Command("qemu-system-x86_64", args...), done: make(chan struct{})}
	q.cmd.Stderr = &q.stderr
	if network != nil {
		q.cmd.ExtraFiles = []*os.File{network}
	}
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var err error
	if q.in, err = q.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it before everything has been read.
	var w *os.File
	if q.out, w, err = os.Pipe(); err != nil {
		return nil, err
	}
	q.cmd.Stdout = w
	started := make(chan error)
	go func() {
		defer close(q.done)
		// Pdeathsig ends QEMU when the thread that started it ends, so the thread stays until then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := q.cmd.Start()
		started <- errors.Join(w.Close(), err)
		if err == nil {
			_ = q.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%w; make packages-machine installs it", err)
		}
		return nil, err
	}
	return q, nil
}

// kill ends QEMU, as a power cut does, and waits for that.
func (q *qemu) kill() {
	_ = q.cmd.Process.Kill()
	<-q.done
	_ = q.out.Close()
}

// copyFile makes a writable copy of a file.
func copyFile(from, to string) error {
	data, err := os.ReadFile(filepath.Clean(from))
	if err != nil {
		return fmt.Errorf("%w; make packages-machine installs what is missing", err)
	}
	return os.WriteFile(to, data, 0o600)
}
