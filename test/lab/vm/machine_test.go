package vm

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const version = "580.95.05"

// eachSeries runs a test on each kernel, at most as many at a time as -parallel says.
func eachSeries(t *testing.T, test func(t *testing.T, k *Kernel)) {
	for _, s := range AllSeries {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, FetchKernel(t, s))
		})
	}
}

// references returns the number of references to a loaded module, or -1.
func references(t *testing.T, m *Machine, name string) int {
	t.Helper()
	text, err := m.ReadFile(t.Context(), "/proc/modules")
	require.NoError(t, err)
	for line := range strings.Lines(text) { // "nvidia 16384 1 nvidia_uvm, Live 0x0000000000000000 (OE)"
		var size, count int
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(rest, &size, &count)
			require.NoError(t, err, line)
			return count
		}
	}
	return -1
}

// loads loads stub modules in the given order: each after those it depends on.
func loads(t *testing.T, m *Machine, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, m.LoadModule(t.Context(), "/modules/"+name+".ko", ""), name)
	}
}

func unloads(t *testing.T, m *Machine, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, m.UnloadModule(t.Context(), name), name)
	}
}

// otherSeries returns the kernel that is not k.
func otherSeries(t *testing.T, k *Kernel) *Kernel {
	t.Helper()
	for _, s := range AllSeries {
		if other := FetchKernel(t, s); other.Release != k.Release {
			return other
		}
	}
	t.Fatal("there is one kernel alone")
	return nil
}

func TestStubsLoadAndUnload(t *testing.T) {
	eachSeries(t, func(t *testing.T, k *Kernel) {
		ctx := t.Context()
		stubs := BuildStubs(t, k, version)
		extra := Modules{}
		for name, data := range stubs {
			extra["updates/"+name] = data
		}
		m := Boot(t, Config{Kernel: k, Files: Merge(
			k.ModuleTree(t, []string{"ecc"}, extra),
			stubs.Below("/modules"),
			BuildStubs(t, otherSeries(t, k), version).Below("/other"),
		)})
		require.Equal(t, k.Release+"\n", m.MustRun(ctx, "uname", "-r"))
		// -1: ecc is built into 6.12, and 6.1 has not loaded it yet.
		require.Equal(t, -1, references(t, m, "ecc"))

		t.Run("missing dependencies", func(t *testing.T) {
			require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia-uvm.ko", ""), syscall.ENOENT)
			require.Contains(t, m.MustRun(ctx, "dmesg"), "nvidia_uvm: Unknown symbol nvidia_simulated_version (err -2)")
			if strings.HasPrefix(k.Release, "6.1.") {
				require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", ""), syscall.ENOENT)
				require.Contains(t, m.MustRun(ctx, "dmesg"), "nvidia: Unknown symbol ecc_get_curve (err -2)")
				m.MustRun(ctx, "modprobe", "ecc")
			}
		})
		t.Run("another kernel's modules", func(t *testing.T) {
			require.ErrorIs(t, m.LoadModule(ctx, "/other/nvidia.ko", ""), syscall.ENOEXEC)
		})
		t.Run("simulated failures", func(t *testing.T) {
			require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", "simulated_no_device=1"), syscall.ENODEV)
			require.Contains(t, m.MustRun(ctx, "dmesg"), "NVRM: No NVIDIA GPU found. (SIMULATED)")
			require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", "simulated_init_error=5"), syscall.EIO)
			require.Equal(t, -1, references(t, m, "nvidia"))
		})
		t.Run("parameters", func(t *testing.T) {
			require.NoError(t, m.LoadModule(ctx, "/modules/nvidia.ko", `NVreg_EnableGpuFirmware=0 NVreg_RegistryDwords="a=1;b=2" NVreg_Misspelt=1`))
			params, err := m.ReadFile(ctx, "/proc/driver/nvidia/params")
			require.NoError(t, err)
			require.Contains(t, params, "EnableGpuFirmware: 0\n")
			require.Contains(t, params, "RegistryDwords: \"a=1;b=2\"\n")
			text, err := m.ReadFile(ctx, "/proc/driver/nvidia/version")
			require.NoError(t, err)
			require.Regexp(t, `^NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580\.95\.05  SIMULATED\nGCC version: .*\n$`, text)
			unloads(t, m, "nvidia")
			_, err = m.ReadFile(ctx, "/proc/driver/nvidia/version")
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
		t.Run("references", func(t *testing.T) {
			loads(t, m, "nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
			require.Equal(t, 3, references(t, m, "nvidia"))
			require.Equal(t, 1, references(t, m, "nvidia_modeset"))
			require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", ""), fs.ErrExist)
			require.ErrorIs(t, m.UnloadModule(ctx, "nvidia"), syscall.EWOULDBLOCK)
			majors, err := m.ReadFile(ctx, "/proc/devices")
			require.NoError(t, err)
			require.Regexp(t, `(?m)^195 nvidia$`, majors)
			require.Regexp(t, `(?m)^195 nvidiactl$`, majors)
			require.Regexp(t, `(?m)^195 nvidia-modeset$`, majors)
			require.Regexp(t, `(?m)^\d+ nvidia-uvm$`, majors)
			unloads(t, m, "nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm")
		})
		t.Run("a device that is held open", func(t *testing.T) {
			m.MustRun(ctx, "mknod", "/dev/nvidia0", "c", "195", "0")
			held, err := m.Open(ctx, "/dev/nvidia0")
			require.NoError(t, err)
			require.Equal(t, 2, references(t, m, "nvidia")) // the kernel counts the device and its file
			require.ErrorIs(t, m.UnloadModule(ctx, "nvidia"), syscall.EWOULDBLOCK)
			require.NoError(t, held.Close(ctx))
			unloads(t, m, "nvidia")
			_, err = m.Open(ctx, "/dev/nvidia0")
			require.ErrorIs(t, err, syscall.ENXIO)
		})
		t.Run("peermem without ib_core", func(t *testing.T) {
			loads(t, m, "nvidia")
			require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia-peermem.ko", "simulated_no_ib_core=1"), syscall.EINVAL)
			unloads(t, m, "nvidia")
		})
		t.Run("modprobe", func(t *testing.T) {
			m.MustRun(ctx, "modprobe", "nvidia-drm") // of the tree, with those that it depends on
			require.Equal(t, 1, references(t, m, "nvidia"))
			require.Equal(t, 1, references(t, m, "nvidia_modeset"))
			m.MustRun(ctx, "modprobe", "-r", "nvidia-drm")
		})
		require.ErrorIs(t, m.UnloadModule(ctx, "nvidia"), syscall.ENOENT)
	})
}

// TestUntrustedModules checks how a kernel treats modules that it does not trust.
func TestUntrustedModules(t *testing.T) {
	SkipUnlessEnabled(t)
	for name, c := range map[string]struct {
		argument string
		want     error
	}{
		"signatures enforced":    {"module.sig_enforce=1", syscall.EKEYREJECTED},
		"lockdown for integrity": {"lockdown=integrity", syscall.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			eachSeries(t, func(t *testing.T, k *Kernel) {
				ctx := t.Context()
				stubs := BuildStubs(t, k, version)
				m := Boot(t, Config{Kernel: k, Args: []string{c.argument}, Files: Merge(
					k.ModuleTree(t, []string{"ecc", "dummy"}, nil),
					stubs.Below("/modules"),
					k.Sign(t, stubs, NewKey(t)).Below("/unknown"),
					k.Sign(t, stubs, Snakeoil).Below("/snakeoil"),
				)})
				m.MustRun(ctx, "modprobe", "-a", "ecc", "dummy") // Debian's own are signed by Debian
				require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", ""), c.want)
				require.ErrorIs(t, m.LoadModule(ctx, "/unknown/nvidia.ko", ""), c.want)
				require.ErrorIs(t, m.LoadModule(ctx, "/snakeoil/nvidia.ko", ""), c.want)
			})
		})
	}
}

func TestSecureBoot(t *testing.T) {
	eachSeries(t, func(t *testing.T, k *Kernel) {
		ctx := t.Context()
		stubs := BuildStubs(t, k, version)
		m := Boot(t, Config{Kernel: k, SecureBoot: true, Files: Merge(
			k.ModuleTree(t, []string{"ecc"}, nil),
			stubs.Below("/modules"),
			k.Sign(t, stubs, NewKey(t)).Below("/unknown"),
			k.Sign(t, stubs, Snakeoil).Below("/snakeoil"),
		)})
		state, err := m.ReadFile(ctx, "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(state, "\x01"), "%q", state)
		lockdown, err := m.ReadFile(ctx, "/sys/kernel/security/lockdown")
		require.NoError(t, err)
		require.Equal(t, "none [integrity] confidentiality\n", lockdown)
		m.MustRun(ctx, "modprobe", "-a", "ecc")
		require.ErrorIs(t, m.LoadModule(ctx, "/modules/nvidia.ko", ""), syscall.EKEYREJECTED)
		require.ErrorIs(t, m.LoadModule(ctx, "/unknown/nvidia.ko", ""), syscall.EKEYREJECTED)
		require.NoError(t, m.LoadModule(ctx, "/snakeoil/nvidia.ko", ""))
		require.Equal(t, 0, references(t, m, "nvidia"))
	})
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := Boot(t, Config{Kernel: FetchKernel(t, Linux612), Files: Files{
		"/etc/issue": {Data: []byte("a file\n")},
		"/jail/bin":  {Mode: fs.ModeDir},
	}, Devices: []string{"edu"}})

	t.Run("output, input, environment, exit status", func(t *testing.T) {
		r := m.RunCommand(ctx, Command{
			Args: []string{"sh", "-c", "cat; echo $NAME; pwd; echo wrong >&2; exit 3"}, Dir: "/usr",
			Env: []string{"NAME=value"}, Stdin: "input\n",
		})
		require.Equal(t, Result{Code: 3, Stdout: "input\nvalue\n/usr\n", Stderr: "wrong\n", Wall: r.Wall}, r)
		require.Positive(t, r.Wall)
	})
	t.Run("a program that hangs is killed with its children", func(t *testing.T) {
		r := m.RunCommand(ctx, Command{Args: []string{"sh", "-c", "echo began; sleep 1000 & sleep 1001"}, Timeout: time.Second})
		require.True(t, r.TimedOut)
		require.Equal(t, "began\n", r.Stdout)
		require.Equal(t, syscall.SIGKILL, r.Signal)
		require.NotContains(t, m.MustRun(ctx, "ps"), "sleep")
	})
	t.Run("in the background", func(t *testing.T) {
		p := m.Start(ctx, Command{Args: []string{"sh", "-c", `trap "echo stopping; exit 0" TERM; echo ready; while :; do sleep 0.1; done`}})
		require.Eventually(t, func() bool { r, _ := p.Output(ctx); return r.Stdout == "ready\n" }, patience, 50*time.Millisecond)
		require.NoError(t, p.Signal(ctx, syscall.SIGTERM))
		require.Equal(t, "ready\nstopping\n", p.Wait(ctx, patience).String())
		require.ErrorIs(t, p.Signal(ctx, syscall.SIGTERM), syscall.ESRCH)
	})
	t.Run("orphans are reaped", func(t *testing.T) {
		m.MustRun(ctx, "sh", "-c", "(sleep 0.1 &) ; sleep 0.5")
		require.NotContains(t, m.MustRun(ctx, "ps"), "sleep")
	})
	t.Run("files", func(t *testing.T) {
		text, err := m.ReadFile(ctx, "/etc/issue")
		require.NoError(t, err)
		require.Equal(t, "a file\n", text)
		large := strings.Repeat("0123456789abcdef", 1<<10)
		require.NoError(t, m.WriteFile(ctx, "/root/large", large, 0o600))
		back, err := m.ReadFile(ctx, "/root/large")
		require.NoError(t, err)
		require.Equal(t, large, back)
		require.Equal(t, "600 16384\n", m.MustRun(ctx, "stat", "-c", "%a %s", "/root/large"))
		_, err = m.ReadFile(ctx, "/nowhere")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("mounts as on a node", func(t *testing.T) {
		mounts := m.MustRun(ctx, "cat", "/proc/self/mountinfo")
		require.Regexp(t, `(?m) /run rw,nosuid,nodev,noexec,relatime shared:\d+ - tmpfs`, mounts)
		require.Regexp(t, `(?m) /sys/kernel/security `, mounts)
		m.MustRun(ctx, "cp", "/bin/busybox", "/run/true")
		require.Equal(t, 126, m.Run(ctx, "sh", "-c", "/run/true").Code)
	})
	t.Run("another root", func(t *testing.T) {
		m.MustRun(ctx, "cp", "/bin/busybox", "/jail/bin/busybox")
		require.Equal(t, "bin\n", m.RunCommand(ctx, Command{Args: []string{"/bin/busybox", "ls", "/"}, Root: "/jail"}).Stdout)
	})
	t.Run("more devices", func(t *testing.T) {
		require.Contains(t, m.MustRun(ctx, "sh", "-c", "cat /sys/bus/pci/devices/*/device"), "0x11e8")
	})
	t.Run("reboot, power cut", func(t *testing.T) {
		require.NoError(t, m.WriteFile(ctx, "/root/kept", "", 0o600))
		boot, err := m.ReadFile(ctx, "/proc/sys/kernel/random/boot_id")
		require.NoError(t, err)
		m.Reboot(ctx)
		again, err := m.ReadFile(ctx, "/proc/sys/kernel/random/boot_id")
		require.NoError(t, err)
		require.NotEqual(t, boot, again)
		_, err = m.ReadFile(ctx, "/root/kept")
		require.ErrorIs(t, err, fs.ErrNotExist)
		m.Kill()
		m.Restart(ctx)
		m.PowerOff(ctx)
		require.Contains(t, m.Console(), "reboot: Power down")
	})
}

// TestRootOnADisk checks that a root on a disk suits containers, and keeps written files.
func TestRootOnADisk(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := Boot(t, Config{Kernel: FetchKernel(t, Linux612), CPUs: 2, Disk: 256, Files: Files{
		"/etc/issue": {Data: []byte("a file\n")}, "/etc/alias": {Link: "issue"}, "/bin/program": {Data: []byte("#!/bin/sh\necho runs\n"), Mode: 0o755},
	}})
	require.Equal(t, "a file\n", m.MustRun(ctx, "cat", "/etc/alias"))
	require.Equal(t, "runs\n", m.MustRun(ctx, "program"))
	require.Equal(t, "2\n", m.MustRun(ctx, "nproc"))
	mounts := m.MustRun(ctx, "cat", "/proc/self/mountinfo")
	require.Regexp(t, `(?m) / / rw,noatime shared:\d+ - ext4 /dev/vda `, mounts)
	require.Regexp(t, `(?m) /dev rw,nosuid,relatime shared:\d+ - devtmpfs `, mounts)
	// As runc changes the root of a container.
	m.MustRun(ctx, "sh", "-c", "mkdir -p /jail && mount -t tmpfs tmpfs /jail && mkdir /jail/old && unshare -m sh -c 'mount --make-rprivate / && cd /jail && pivot_root . old'")
	require.NoError(t, m.WriteFile(ctx, "/root/kept", "kept\n", 0o600))
	m.MustRun(ctx, "sync")
	m.Reboot(ctx)
	require.Equal(t, "kept\n", m.MustRun(ctx, "cat", "/root/kept"))
}
