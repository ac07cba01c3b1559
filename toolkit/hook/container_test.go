package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// blindVariable makes this program become the hook that its arguments name, on a kernel that
// has neither statx nor openat2.
const blindVariable = "GPUREADY_TEST_BLIND"

func TestMain(m *testing.M) {
	if os.Getenv(blindVariable) != "" {
		err := refuse(unix.SYS_STATX, unix.SYS_OPENAT2)
		if err == nil {
			err = unix.Exec(os.Args[1], os.Args[1:], []string{"PATH=/usr/bin:/bin"})
		}
		fmt.Fprintln(os.Stderr, "become a hook:", err)
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// refuse makes system calls fail with ENOSYS in this process and its children.
func refuse(calls ...uint32) error {
	const load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{{Code: load}} // the number of the call is the first field
	for _, c := range calls {
		filter = append(filter, unix.SockFilter{Code: equal, Jf: 1, K: c}, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	}
	filter = append(filter, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}

// scratch returns a directory in a mount namespace of this thread: its mounts are invisible
// to others and end with the thread. The test's goroutine keeps the thread.
func scratch(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("there is no runc; .ci/packages.sh containers installs it")
	}
	_, err := soleLibrary() // it is created in a directory that becomes read-only below
	require.NoError(t, err)
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS))
	require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir, err := os.MkdirTemp("", "hook")
	require.NoError(t, err)
	// The machine's own root is read-only, in case a hook or a test reaches it.
	root := func(flags uintptr) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|flags, "") }
	require.NoError(t, root(unix.MS_RDONLY))
	t.Cleanup(func() { require.NoError(t, errors.Join(root(0), os.Remove(dir))) })
	return dir
}

// pod is a container to create, with the volumes that it shares with others.
type pod struct {
	dir     string // the directory of everything
	image   string // directory of the image's files
	outside string // directory of volumes and other files outside of the container
	overlay bool   // the root file system is an overlay on image, not image itself
	mounts  []oci.Mount

	hook    []string    // program and arguments
	runs    int         // number of runs of the hook, one after the other
	blind   bool        // run on a kernel without statx and openat2
	flip    [][2]string // paths below outside that are exchanged meanwhile
	watched string      // directory in which nothing may change; default outside
}

// outcome records what happened while the hook ran.
type outcome struct {
	changed []string // watched files that changed
	message string
	failed  bool
	flips   int64
}

// newPod creates only an image, in a file system of its own at dir.
func newPod(dir, hook string) (*pod, error) {
	if err := unix.Mount("hook", dir, "tmpfs", 0, "size=64m"); err != nil {
		return nil, err
	}
	p := &pod{dir: dir, image: dir + "/bundle/rootfs", outside: dir + "/outside", overlay: true}
	p.hook, p.runs, p.watched = append([]string{hook}, joined.Args(all()...)...), 1, p.outside
	elf, err := soleLibrary()
	if err != nil {
		return nil, err
	}
	cache := library.Cache{Entries: []library.Entry{{Name: "libz.so.1", Path: "/usr/lib/libz.so.1", Flags: 0x303}}}.Bytes()
	err = errors.Join(os.MkdirAll(p.outside, 0o755),
		writeFiles(p.image, map[string][]byte{
			loader: elf, musl: elf, "/usr/lib/libz.so.1": elf, "/usr/local/cuda/compat/libcuda.so.999.1": elf,
			"/etc/ld.so.cache": cache, "/etc/ld.so.conf": []byte("include /etc/ld.so.conf.d/*.conf\n"),
			"/etc/ld.so.conf.d/a.conf": []byte("/usr/local/lib\n"), muslPath: []byte("/lib\n"),
			libs + "/libcuda.so.570.1": nil, "/dev/dri/card0": nil, "/proc/none": nil, profilePath: nil,
		}),
		writeFiles(p.outside, map[string][]byte{"/driver/libcuda.so.570.1": elf}))
	p.mounts = []oci.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
		{Destination: libs + "/libcuda.so.570.1", Type: "bind", Source: p.outside + "/driver/libcuda.so.570.1", Options: []string{"ro", "nosuid", "nodev", "bind"}},
	}
	return p, err
}

// writeFiles writes files below dir.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return within(dir, func(r *os.Root) error {
		for name, data := range files {
			if err := errors.Join(r.MkdirAll("."+path.Dir(name), 0o755), r.WriteFile(name[1:], data, 0o644)); err != nil {
				return err
			}
		}
		return nil
	})
}

// links creates links below dir, and replaces existing files.
func links(dir string, all map[string]string) error {
	return within(dir, func(r *os.Root) error {
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(all)) {
			at := strings.TrimPrefix(name, "/")
			errs = append(errs, errors.Join(r.RemoveAll(at), r.MkdirAll(path.Dir(at), 0o755), r.Symlink(all[name], at)))
		}
		return errors.Join(errs...)
	})
}

// within calls do with a root confined to dir: existing links may lead anywhere, and the
// test runs on the machine itself.
func within(dir string, do func(*os.Root) error) error {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}

// volume creates a directory outside that has a file of that name wherever a hook may read or
// write: as a root, as /etc, as a directory of libraries. With memory it is a tmpfs.
func (p *pod) volume(name string, memory bool) (string, error) {
	dir := p.outside + "/" + name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if memory {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
			return "", err
		}
	}
	elf, err := soleLibrary()
	if err != nil {
		return "", err
	}
	files := map[string][]byte{"/libcuda.so.570.1": elf, "/libcuda.so.999.1": elf, "/libc.so.6": elf, "/dri/card0": nil, "/dev/dri/card0": nil}
	for _, etc := range []string{"", "/etc"} {
		for _, f := range []string{"/ld.so.cache", "/ld.so.conf", "/ld.so.conf.d/00-gpuready.conf", "/ld.so.conf.d/00-compat-gpuready.conf", "/" + path.Base(muslPath), strings.TrimPrefix(profilePath, "/etc")} {
			files[etc+f] = []byte("the host's\n")
		}
	}
	for _, f := range []string{loader, musl, libs + "/libcuda.so.570.1", "/usr/local/cuda/compat/libcuda.so.999.1"} {
		files[f] = elf
	}
	return dir, errors.Join(writeFiles(dir, files), links(dir, map[string]string{"/l": "/", "/up": "../..", "/own": "/own"}))
}

// run creates the container with runc, which fails after the hook. The hook waits until the
// watched files were recorded, since runc itself creates mount points in volumes. If runc did
// not reach the hook, run returns nil and runc's output.
func (p *pod) run() (*outcome, string, error) {
	bundle := p.dir + "/bundle"
	if p.overlay {
		err := os.Rename(p.image, p.dir+"/lower")
		for _, d := range []string{"/upper", "/work", "/bundle/rootfs"} {
			err = errors.Join(err, os.Mkdir(p.dir+d, 0o755))
		}
		if err != nil {
			return nil, "", err
		}
		options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", p.dir)
		if err := unix.Mount("overlay", bundle+"/rootfs", "overlay", 0, options); err != nil {
			return nil, "", fmt.Errorf("mount an overlay: %w", err)
		}
	}
	here, err := fifo(p.dir + "/here")
	if err != nil {
		return nil, "", err
	}
	defer here.Close()
	on, err := fifo(p.dir + "/on")
	if err != nil {
		return nil, "", err
	}
	defer on.Close()
	args, env := p.hook, []string{"PATH=/usr/bin:/bin"}
	if p.blind {
		self, err := os.Executable()
		if err != nil {
			return nil, "", err
		}
		args, env = append([]string{self}, args...), append(env, blindVariable+"=1")
	}
	script := fmt.Sprintf(`cd %q; cat >state; echo >here; read x <on; for i in $(seq %d); do "$@" <state 2>>message || echo >failed; done; echo >here; exit 1`, p.dir, p.runs)
	// Each container has a new name: its control group may outlive it for a moment.
	id := fmt.Sprintf("hook-%d-%d", os.Getpid(), pods.Add(1))
	config, err := json.Marshal(oci.Spec{
		Version: "1.0.2",
		Root:    &oci.Root{Path: "rootfs"},
		Process: &oci.Process{Args: []string{"/none"}, Cwd: "/", User: oci.User{UID: 1000, GID: 1000}, NoNewPrivileges: true},
		Mounts:  p.mounts,
		Hooks:   &oci.Hooks{CreateContainer: []oci.Hook{{Path: "/bin/sh", Args: append([]string{"sh", "-c", script, "sh"}, args...), Env: env}}},
		Linux: &oci.Linux{CgroupsPath: "/" + id, Devices: []oci.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}},
			Namespaces: []oci.LinuxNamespace{{Type: oci.PIDNamespace}, {Type: oci.MountNamespace}}},
	})
	if err == nil {
		err = os.WriteFile(bundle+"/config.json", config, 0o600)
	}
	if err != nil {
		return nil, "", err
	}
	var message bytes.Buffer
	cmd := exec.Command("runc", "--root", p.dir+"/runc", "run", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = &message, &message
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it fails on purpose
		_ = here.SetReadDeadline(time.Now())
	}()
	if _, err := here.Read(make([]byte, 1)); err != nil {
		<-ended
		return nil, message.String(), nil
	}
	before, err := readTree(p.watched, len(p.flip) == 0)
	if err != nil {
		return nil, "", err
	}
	if _, err := on.WriteString("\n"); err != nil {
		return nil, "", err
	}
	var done atomic.Bool
	go func() {
		_, _ = here.Read(make([]byte, 1)) // the hook is done, or runc has ended
		done.Store(true)
	}()
	var o outcome
	for ; len(p.flip) > 0 && (!done.Load() || o.flips%2 == 1); o.flips++ {
		for _, f := range p.flip {
			_ = unix.Renameat2(unix.AT_FDCWD, p.outside+f[0], unix.AT_FDCWD, p.outside+f[1], unix.RENAME_EXCHANGE)
		}
		slices.Reverse(p.flip) // so that every second exchange undoes the first
	}
	<-ended
	after, err := readTree(p.watched, len(p.flip) == 0)
	if err != nil {
		return nil, "", err
	}
	o.changed = differences(before, after)
	_, err = os.Stat(p.dir + "/failed")
	o.failed = err == nil
	data, err := os.ReadFile(p.dir + "/message")
	o.message = string(data)
	return &o, message.String(), err
}

// fifo creates a named pipe and opens both its ends.
func fifo(name string) (*os.File, error) {
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, err
	}
	return os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// differences compares two snapshots.
func differences(before, after map[string]string) []string {
	var changed []string
	for name, was := range before {
		if now := after[name]; now != was {
			changed = append(changed, fmt.Sprintf("%s: was %q, is %q", name, was, now))
		}
	}
	for name, now := range after {
		if _, ok := before[name]; !ok {
			changed = append(changed, fmt.Sprintf("%s: is new, %q", name, now))
		}
	}
	slices.Sort(changed)
	return changed
}

var pods atomic.Int64

// close removes everything.
func (p *pod) close() { _ = unix.Unmount(p.dir, unix.MNT_DETACH) }

// cache reads the container's own cache, in its path below any mounts.
func (p *pod) cache() (library.Cache, error) {
	data, err := os.ReadFile(p.dir + "/bundle/rootfs/etc/ld.so.cache")
	if err != nil {
		return library.Cache{}, err
	}
	return library.ParseCache(data)
}

func bindMount(source, destination string, options ...string) oci.Mount {
	return oci.Mount{Destination: destination, Type: "bind", Source: source, Options: append([]string{"rbind"}, options...)}
}

// Each case is a pod that tries to make a hook write to a directory of the host.
func TestVolumesAreNotWrittenTo(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	for name, c := range map[string]struct {
		make    func(t *testing.T, p *pod, v, w string)
		own     bool   // the container's cache has the driver's library in the end
		message string // why not
	}{
		"no volume": {make: func(*testing.T, *pod, string, string) {}, own: true},
		"volumes beside the work": {make: func(_ *testing.T, p *pod, v, w string) {
			p.mounts = append(p.mounts, bindMount(v, "/data"), bindMount(w, "/cache"))
		}, own: true},
		"a mount hides the link by which another was placed": {make: func(t *testing.T, p *pod, v, w string) {
			require.NoError(t, links(p.image, map[string]string{"/d/l": "/", "/a/b/c": "/d", "/usr/local/cuda/compat": "/c"}))
			require.NoError(t, os.Mkdir(w+"/empty", 0o755))
			p.mounts = append(p.mounts, bindMount(v+"/etc", "/d/l/etc"), bindMount(w+"/empty", "/a/b/c"), bindMount(v, "/c"))
		}, message: "mount from the host"},
		"a volume on the whole root": {make: func(t *testing.T, p *pod, v, _ string) {
			require.NoError(t, links(p.image, map[string]string{"/l": "/"}))
			p.mounts = append(p.mounts, bindMount(v, "/l"))
		}, message: "a volume covers the container's whole root"},
		"the same, twice": {make: func(t *testing.T, p *pod, v, _ string) {
			require.NoError(t, links(p.image, map[string]string{"/l": "/"}))
			p.mounts = append(p.mounts, bindMount(v, "/l"), bindMount(v, "/l"))
		}, message: "a volume covers the container's whole root"},
		"a volume on /": {make: func(_ *testing.T, p *pod, v, _ string) {
			p.mounts = append(p.mounts, bindMount(v, "/"))
		}, message: "a volume covers the container's whole root"},
		"a tmpfs on /": {make: func(_ *testing.T, p *pod, _, _ string) {
			p.mounts = append(p.mounts, oci.Mount{Destination: "/", Type: "tmpfs", Source: "tmpfs"})
		}, message: "a volume covers the container's whole root"},
		"the cache alone": {make: func(_ *testing.T, p *pod, v, _ string) {
			p.mounts = append(p.mounts, bindMount(v+"/etc/ld.so.cache", "/etc/ld.so.cache"))
		}, message: "mount from the host"},
		"an emptyDir in memory": {make: func(t *testing.T, p *pod, _, _ string) {
			m, err := p.volume("memory", true)
			require.NoError(t, err)
			p.mounts = append(p.mounts, bindMount(m+"/etc", "/etc"), bindMount(m, "/dev/dri"))
		}, message: "mount from the host"},
		"a whole emptyDir in memory": {make: func(t *testing.T, p *pod, _, _ string) {
			m, err := p.volume("memory", true)
			require.NoError(t, err)
			p.mounts = append(p.mounts, bindMount(m, "/etc"), bindMount(m, "/usr/local/cuda/compat"))
		}, message: "mount from the host"},
		"a tmpfs of the container's own": {make: func(_ *testing.T, p *pod, _, _ string) {
			p.mounts = append(p.mounts, oci.Mount{Destination: "/etc", Type: "tmpfs", Source: "tmpfs"})
		}},
		"a link of the image into a volume": {make: func(t *testing.T, p *pod, v, _ string) {
			require.NoError(t, links(p.image, map[string]string{"/etc": "/v/etc", "/usr/local/cuda": "/v/usr/local/cuda"}))
			p.mounts = append(p.mounts, bindMount(v, "/v"))
		}, message: "mount from the host"},
		"a link of a volume back into the image": {make: func(t *testing.T, p *pod, v, _ string) {
			require.NoError(t, errors.Join(links(p.image, map[string]string{"/etc": "/v/own"}), os.Mkdir(p.image+"/own", 0o755)))
			p.mounts = append(p.mounts, bindMount(v, "/v"))
		}, message: "mount from the host"},
		"the image's folder, from below the overlay": {make: func(_ *testing.T, p *pod, _, _ string) {
			p.watched = p.dir + "/lower"
			p.mounts = append(p.mounts, bindMount(p.dir+"/lower/etc", "/etc"))
		}, message: "mount from the host"},
	} {
		for _, kind := range []string{"overlay", "folder", "overlay, before Linux 5.6"} {
			if kind == "folder" && strings.Contains(name, "overlay") {
				continue
			}
			t.Run(name+", "+kind, func(t *testing.T) {
				dir := scratch(t)
				p, err := newPod(dir, hook)
				require.NoError(t, err)
				defer p.close()
				p.overlay, p.blind = kind != "folder", strings.Contains(kind, "before")
				v, err := p.volume("v", false)
				require.NoError(t, err)
				w, err := p.volume("w", false)
				require.NoError(t, err)
				c.make(t, p, v, w)
				o, message, err := p.run()
				require.NoError(t, err)
				require.NotNil(t, o, message)
				require.Empty(t, o.changed, o.message)
				cache, err := p.cache()
				if c.message != "" {
					require.Contains(t, o.message, c.message)
				} else {
					require.False(t, o.failed, o.message)
				}
				if c.own {
					require.NoError(t, err)
					require.True(t, slices.ContainsFunc(cache.Entries, func(e library.Entry) bool { return e.Name == "libcuda.so.1" }), "%v", cache)
					require.Empty(t, o.message)
					profile, err := os.ReadFile(p.dir + "/bundle/rootfs" + profilePath)
					require.NoError(t, err)
					require.Equal(t, wantProfile("0x1"), string(profile), "runc makes the nodes before it runs the hook")
				}
			})
		}
	}
}

// Another container of the pod flips a link in a volume while the hook runs, from a path in
// the container to another volume.
func TestLinksThatAPodMateFlips(t *testing.T) {
	hook, runs := built.Path(t, "gpu-cdi-hook"), 30
	if long {
		runs = 1_000
	}
	dir := scratch(t)
	p, err := newPod(dir, hook)
	require.NoError(t, err)
	defer p.close()
	v, err := p.volume("v", false)
	require.NoError(t, err)
	w, err := p.volume("w", false)
	require.NoError(t, err)
	require.NoError(t, errors.Join(links(p.image, map[string]string{"/etc": "/v/flip"}), os.Mkdir(p.image+"/own", 0o755),
		os.Symlink("/own", v+"/flip"), os.Symlink("/w/etc", v+"/flop")))
	p.mounts = append(p.mounts, bindMount(v, "/v"), bindMount(w, "/w"))
	p.flip, p.runs = [][2]string{{"/v/flip", "/v/flop"}}, runs
	began := time.Now()
	o, message, err := p.run()
	require.NoError(t, err)
	require.NotNil(t, o, message)
	require.Empty(t, o.changed)
	require.NotZero(t, o.flips)
	t.Logf("%d runs, %d flips, %v", runs, o.flips, time.Since(began))
}
