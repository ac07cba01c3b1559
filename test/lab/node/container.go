package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Container describes an unprivileged container for runc, with a root file system that holds glibc
// and the given files.
type Container struct {
	Args       []string
	Env        []string
	CDIDevices []string          // qualified names, resolved in /etc/cdi and /var/run/cdi
	Files      map[string]string // path inside: file outside, copied with its mode
	Mounts     []Mount           // folders of the node
	// Bare limits the container to what our pods have: no /tmp, and without the system calls that the
	// runtimes' seccomp profiles refuse without a capability.
	Bare bool
	// DenyDevices removes the permission for CDI device nodes, as a runtime does that does not know of
	// a node that was mounted into it.
	DenyDevices bool
}

// Mount is a folder of the node, mounted at the same path in a container. Later mounts below it on
// the node appear inside (HostToContainer).
type Mount struct {
	Path     string
	Writable bool
}

var containers atomic.Int64

// RunContainer runs a container to its end and returns its output, both streams in one, and its
// exit code. An error means that it could not be run.
func RunContainer(ctx context.Context, c Container) (output string, exit int, err error) {
	if !Inside() {
		return "", 0, errors.New("node: containers run inside a node; see Enter")
	}
	id := fmt.Sprintf("c%d", containers.Add(1))
	bundle := filepath.Join(scratch, "containers", id)
	if err := createRootfs(filepath.Join(bundle, "rootfs"), c.Files); err != nil {
		return "", 0, fmt.Errorf("root file system of the container: %w", err)
	}
	defer os.RemoveAll(bundle)
	spec, err := ociSpec(c, id)
	if err != nil {
		return "", 0, err
	}
	config, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return "", 0, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return "", 0, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "runc", "--root", filepath.Join(scratch, "runc"), "run", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if ctx.Err() != nil {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = exec.CommandContext(kill, "runc", "--root", filepath.Join(scratch, "runc"), "delete", "--force", id).Run()
		return out.String(), 0, fmt.Errorf("container: %w", ctx.Err())
	}
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return "", 0, fmt.Errorf("run runc: %w; is the package runc installed?", err)
	}
	return out.String(), cmd.ProcessState.ExitCode(), nil
}

func ociSpec(c Container, id string) (*oci.Spec, error) {
	spec := &oci.Spec{
		Version:  "1.0.2",
		Hostname: id,
		Root:     &oci.Root{Path: "rootfs", Readonly: true},
		Process: &oci.Process{
			Args: c.Args, Cwd: "/", NoNewPrivileges: true,
			Env:          append([]string{"PATH=/usr/bin:/bin"}, c.Env...),
			Capabilities: &oci.LinuxCapabilities{},
		},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmp", Options: []string{"nosuid", "nodev"}},
		},
		Linux: &oci.Linux{
			CgroupsPath: "/" + Name() + "/" + id,
			Namespaces: []oci.LinuxNamespace{
				{Type: oci.PIDNamespace}, {Type: oci.IPCNamespace}, {Type: oci.UTSNamespace},
				{Type: oci.MountNamespace}, {Type: oci.NetworkNamespace},
			},
			Resources:   &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"},
		},
	}
	if c.Bare {
		spec.Mounts = spec.Mounts[:len(spec.Mounts)-1]
		spec.Linux.Seccomp = &oci.LinuxSeccomp{
			DefaultAction: oci.ActAllow,
			Syscalls:      []oci.LinuxSyscall{{Names: refused, Action: oci.ActErrno}},
		}
	}
	for _, m := range c.Mounts {
		options := []string{"rbind", "rslave", "ro"}
		if m.Writable {
			options[2] = "rw"
		}
		spec.Mounts = append(spec.Mounts, oci.Mount{Destination: m.Path, Type: "bind", Source: m.Path, Options: options})
	}
	if len(c.CDIDevices) == 0 {
		return spec, nil
	}
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs("/etc/cdi", "/var/run/cdi"))
	if err != nil {
		return nil, fmt.Errorf("read the CDI specs: %w", err)
	}
	rules := len(spec.Linux.Resources.Devices)
	if _, err := cache.InjectDevices(spec, c.CDIDevices...); err != nil {
		return nil, fmt.Errorf("CDI injection: %w; specs in error: %v", err, cache.GetErrors())
	}
	if c.DenyDevices {
		spec.Linux.Resources.Devices = spec.Linux.Resources.Devices[:rules]
	}
	return spec, nil
}

// refused are the system calls that the default profile of containerd and Docker allows only with
// a capability or not at all.
var refused = []string{
	"acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "finit_module",
	"fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
	"ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "mount", "mount_setattr",
	"move_mount", "move_pages", "open_by_handle_at", "open_tree", "perf_event_open", "pivot_root", "process_madvise",
	"quotactl", "reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon",
	"syslog", "umount2", "unshare", "userfaultfd", "vhangup",
}

// createRootfs creates the files of a distroless image with glibc.
func createRootfs(root string, files map[string]string) error {
	for _, dir := range []string{"proc", "dev", "sys", "tmp", "etc", "usr/bin", "var", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	libraries, loader, err := Glibc()
	if err != nil {
		return err
	}
	for _, lib := range libraries {
		if err := copyFile(filepath.Join(root, LibraryDir(), filepath.Base(lib)), lib); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(root, loader), loader); err != nil {
		return err
	}
	for inside, outside := range files {
		if err := copyFile(filepath.Join(root, path.Clean("/"+inside)), outside); err != nil {
			return err
		}
	}
	return nil
}

// LibraryDir returns Debian's library folder for this architecture.
func LibraryDir() string {
	if runtime.GOARCH == "arm64" {
		return "/usr/lib/aarch64-linux-gnu"
	}
	return "/usr/lib/x86_64-linux-gnu"
}

// Glibc returns the paths of this machine's C library and its loader.
func Glibc() (libraries []string, loader string, err error) {
	loader = "/lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		loader = "/lib/ld-linux-aarch64.so.1"
	}
next:
	for _, name := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"} {
		for _, dir := range []string{LibraryDir(), "/usr/lib64", "/lib64"} {
			file := filepath.Join(dir, name)
			if _, err := os.Stat(file); err == nil {
				libraries = append(libraries, file)
				continue next
			}
		}
		return nil, "", fmt.Errorf("this machine has no glibc: %s not found", name)
	}
	return libraries, loader, nil
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return built.WriteProgram(to, data, st.Mode().Perm())
}
