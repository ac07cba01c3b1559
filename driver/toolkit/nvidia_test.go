package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/kernel"
)

// Stand-ins for NVIDIA's containers. They do to the shared folder what those do: each makes or
// removes one of these files and waits for the other's.
const (
	nvidiaPrepared = "dir_prepared"
	nvidiaStarted  = "driver_build_started"
	nvidiaBroken   = "driver_toolkit_broken"
	nvidiaBuilt    = "driver_built"
)

// errBroken is the stand-in's exit when the side-car says that it cannot build.
var errBroken = errors.New("the driver container builds by itself")

// sharedFolder is the folder that the two containers share.
type sharedFolder string

func (s sharedFolder) path(name string) string { return filepath.Join(string(s), name) }

func (s sharedFolder) has(name string) bool {
	_, err := os.Lstat(s.path(name))
	return err == nil
}

func (s sharedFolder) mark(name string) error { return os.WriteFile(s.path(name), nil, 0o644) }

// until polls, as NVIDIA's containers do.
func until(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// buildOnce is one run of the Driver Toolkit's container, which "compiles" by copying the
// modules in the folder compiled.
func (s sharedFolder) buildOnce(ctx context.Context, compiled string) error {
	unbuilt := func() bool { return !s.has(nvidiaBuilt) }
	if err := until(ctx, func() bool { return s.has(nvidiaPrepared) }); err != nil {
		return err
	}
	// An earlier build stays valid until the driver container removes its mark.
	if err := errors.Join(s.mark(nvidiaStarted), until(ctx, unbuilt)); err != nil {
		return err
	}
	// The environment must be readable by a shell.
	const kernelVersion = `. "$1"; : "${DRIVER_VERSION:?}"; echo "${KERNEL_VERSION:?}"`
	out, err := exec.CommandContext(ctx, "sh", "-euc", kernelVersion, "sh", s.path("env")).Output()
	if err != nil {
		return err
	}
	video := "kernel/drivers/video"
	load := fmt.Sprintf("insmod /lib/modules/%s/%s/nvidia.ko\n", strings.TrimSpace(string(out)), video)
	err = errors.Join(
		os.RemoveAll(s.path("modules")),
		os.CopyFS(s.path("modules/"+video), os.DirFS(compiled)),
		os.WriteFile(s.path("modules/insmod_nvidia"), []byte(load), 0o644))
	if err != nil {
		return err
	}
	return errors.Join(s.mark(nvidiaBuilt), until(ctx, unbuilt))
}

// install is one run of the driver container: it offers its image's files and its environment,
// and copies the modules that it gets to the folder installed.
func (s sharedFolder) install(ctx context.Context, image, installed string, env []string) error {
	if !s.has(nvidiaPrepared) {
		err := errors.Join(
			os.CopyFS(string(s), os.DirFS(image)),
			os.WriteFile(s.path("env"), quoteLines(env), 0o644),
			s.mark(nvidiaPrepared))
		if err != nil {
			return err
		}
	}
	started := func() bool { return s.has(nvidiaStarted) }
	if err := until(ctx, func() bool { return started() || s.has(nvidiaBroken) }); err != nil {
		return err
	}
	if !started() {
		return errBroken
	}
	if err := until(ctx, func() bool { return s.has(nvidiaBuilt) }); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(installed), os.CopyFS(installed, os.DirFS(s.path("modules"))))
}

// quoteLines formats an environment as NVIDIA's container does: line by line, without regard
// to quotes in a value or to values of several lines.
func quoteLines(env []string) []byte {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.Join(env, "\n"), "\n") {
		b.WriteString(strings.Replace(line, "=", "=\"", 1) + "\"\n")
	}
	return []byte(b.String())
}

// standInDriver is an archive of a driver that unpacks itself.
const standInDriver = `#!/bin/sh
[ "$1 $2" = "--extract-only --target" ] || exit 1
mkdir "$3"
for kind in kernel kernel-open; do
	mkdir -p "$3/$kind/nvidia"
	echo "int x;" > "$3/$kind/nvidia/nv.c"
done
echo unpacked
`

// nvidiaSideCar runs the stand-in and restarts it whenever it ends, as the kubelet does. It
// returns the number of starts.
func nvidiaSideCar(t *testing.T, dir, compiled string) *atomic.Int32 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, starts := make(chan struct{}), new(atomic.Int32)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			starts.Add(1)
			if err := sharedFolder(dir).buildOnce(ctx, compiled); err != nil && ctx.Err() == nil {
				t.Log(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return starts
}

// modulesOf returns a folder with the modules of a driver.
func modulesOf(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".ko"), module(t, name, version, release), 0o644))
	}
	return dir
}

func TestSideCarOfNVIDIABuilds(t *testing.T) {
	m := newMain(t)
	built := modulesOf(t, version)
	starts := nvidiaSideCar(t, m.Dir, built)
	require.NoError(t, m.Prepare(t.Context()))
	dir, err := m.Wait(t.Context())
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "those that were asked for alone")
	data, err := os.ReadFile(filepath.Join(dir, "nvidia.ko"))
	require.NoError(t, err)
	require.Equal(t, module(t, "nvidia", version, release), data)

	// The side-car cannot reach the copies any more.
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, "modules/kernel/drivers/video/nvidia.ko"), []byte("other"), 0o644))
	require.NoError(t, kernel.CheckBuilt(dir, m.Request.Modules, release, version))
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, "modules/kernel/drivers/video/nvidia.ko"), data, 0o644))

	// A restarted driver container uses the existing modules.
	again := *m
	require.NoError(t, again.Prepare(t.Context()))
	_, err = again.Wait(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, starts.Load())

	// Another driver: the side-car's container ends, and builds it after the restart.
	for _, name := range []string{"nvidia", "nvidia-uvm"} {
		require.NoError(t, os.WriteFile(filepath.Join(built, name+".ko"), module(t, name, "590.10", release), 0o644))
	}
	again.Request.Version = "590.10"
	require.NoError(t, again.Prepare(t.Context()))
	dir, err = again.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, kernel.CheckBuilt(dir, m.Request.Modules, release, "590.10"))
}

// NVIDIA's side-car may deliver modules of an earlier request: they are rejected, and built
// again.
func TestModulesOfAnEarlierRequestAreBuiltAgain(t *testing.T) {
	m := newMain(t)
	built := modulesOf(t, "570.1")
	nvidiaSideCar(t, m.Dir, built)
	require.NoError(t, m.Prepare(t.Context()))
	_, err := m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, `nvidia.ko has version "570.1", not `+version)
	empty(t, m.Work)
	for _, name := range m.Request.Modules {
		require.NoError(t, os.WriteFile(filepath.Join(built, name+".ko"), module(t, name, version, release), 0o644))
	}
	require.Eventually(t, func() bool {
		require.NoError(t, m.Prepare(t.Context()))
		_, err = m.Wait(t.Context())
		return err == nil
	}, 10*time.Second, 50*time.Millisecond)
}

func TestSideCarOfNVIDIAThatDoesNotEnd(t *testing.T) {
	m := newMain(t)
	m.Silence, m.Build = time.Millisecond, 300*time.Millisecond
	require.NoError(t, m.Prepare(t.Context()))
	started := filepath.Join(m.Dir, startedName)
	require.NoError(t, os.WriteFile(started, nil, 0o644))
	_, err := m.Wait(t.Context())
	refused(t, err, ReasonToolkitBroken, "has not built the modules within 300ms")

	// Its build fails each time.
	m.Build = time.Minute
	ended := make(chan error, 1)
	go func() {
		_, err := m.Wait(t.Context())
		ended <- err
	}()
	for n := time.Duration(1); ; n++ {
		at := time.Now().Add(n * time.Minute)
		require.NoError(t, os.Chtimes(started, at, at))
		select {
		case err = <-ended:
		case <-time.After(20 * time.Millisecond):
			continue
		}
		break
	}
	refused(t, err, ReasonToolkitBroken, "has begun to build 4 times and has not ended once")
}

// toolkitRoot returns the root of a Driver Toolkit image with modules of the kernel.
func toolkitRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	files := map[string][]byte{
		"modules.dep":     []byte("kernel/drivers/gpu/drm/drm.ko: kernel/drivers/gpu/drm/agp.ko\nkernel/drivers/gpu/drm/agp.ko:\nkernel/net/other.ko:\nkernel/drivers/char/ipmi/ipmi_msghandler.ko:\n"),
		"modules.builtin": []byte("kernel/drivers/i2c/i2c-core.ko\n"), "modules.order": []byte("kernel/net/other.ko\n"),
		"kernel/drivers/gpu/drm/drm.ko": module(t, "drm", "", release), "kernel/drivers/gpu/drm/agp.ko": module(t, "agp", "", release),
		"kernel/net/other.ko": module(t, "other", "", release), "kernel/drivers/char/ipmi/ipmi_msghandler.ko": module(t, "ipmi_msghandler", "", release),
	}
	for name, data := range files {
		at := filepath.Join(root, "lib/modules", release, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, data, 0o644))
	}
	return root
}

// running is a kernel with a fixed release.
type running struct{ kernel.Running }

func (running) Uname(u *unix.Utsname) error {
	copy(u.Release[:], release)
	return nil
}

// nvidiaMain is NVIDIA's driver container with an image.
type nvidiaMain struct {
	dir, image, modules string
	env                 []string
}

func newNVIDIAMain(t *testing.T) *nvidiaMain {
	t.Helper()
	m := &nvidiaMain{
		dir: t.TempDir(), image: t.TempDir(), modules: filepath.Join(t.TempDir(), "lib/modules", release),
		env: []string{"PATH=" + os.Getenv("PATH"), "DRIVER_VERSION=" + version, "KERNEL_MODULE_TYPE=auto", "DRIVER_TYPE=passthrough", "TEXT=two\nlines", "PS1=\\$(id) \"'"},
	}
	at := filepath.Join(m.image, "drivers/NVIDIA-Linux-"+machine(t)+"-"+version+".run")
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte(standInDriver), 0o755))
	return m
}

func machine(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "uname", "-m").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// run runs the container until it has copied the modules, or falls back.
func (m *nvidiaMain) run(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return sharedFolder(m.dir).install(ctx, m.image, m.modules, m.env)
}

// newSideCar returns our side for it.
func (m *nvidiaMain) newSideCar(t *testing.T, times *atomic.Int32) *Builder {
	t.Helper()
	return &Builder{Dir: m.dir, Root: toolkitRoot(t), Work: t.TempDir(), System: kernel.System{Sys: t.TempDir(), Calls: running{}},
		Build: func(ctx context.Context, r Request, source string) (string, error) {
			if filepath.Base(source) != "kernel-open" || r.Kind != "open" {
				return "", errors.New("of the wrong kind: " + source)
			}
			dir, err := builds(t, times)(ctx, r, source)
			return dir, errors.Join(err, os.WriteFile(filepath.Join(dir, "nvidia-modeset.ko"), module(t, "nvidia-modeset", r.Version, r.Release, "depends=nvidia,drm"), 0o644))
		}}
}

func TestDriverContainerOfNVIDIAGetsModules(t *testing.T) {
	if _, err := exec.LookPath("depmod"); err != nil {
		t.Skip("there is no depmod")
	}
	m := newNVIDIAMain(t)
	m.env = append(m.env, "GPU_DIRECT_RDMA_ENABLED=true")
	var times atomic.Int32
	s := m.newSideCar(t, &times)
	stop := sideCar(t, s)
	require.NoError(t, m.run(t))
	var files []string
	require.NoError(t, filepath.WalkDir(m.modules, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			files = append(files, strings.TrimPrefix(path, m.modules+"/"))
		}
		return err
	}))
	require.Equal(t, []string{
		"kernel/drivers/char/ipmi/ipmi_msghandler.ko", "kernel/drivers/gpu/drm/agp.ko", "kernel/drivers/gpu/drm/drm.ko",
		"kernel/drivers/video/nvidia-modeset.ko", "kernel/drivers/video/nvidia-peermem.ko", "kernel/drivers/video/nvidia-uvm.ko", "kernel/drivers/video/nvidia.ko",
	}, files)
	base := strings.TrimSuffix(m.modules, "/lib/modules/"+release)
	shown, err := exec.CommandContext(t.Context(), "modprobe", "-d", base, "-S", release, "--show-depends", "-a", "nvidia", "nvidia-uvm", "nvidia-modeset", "ipmi_msghandler").CombinedOutput()
	require.NoError(t, err, string(shown))
	require.Contains(t, string(shown), "kernel/drivers/video/nvidia-uvm.ko")
	require.Eventually(t, func() bool { // it answers, and then removes what it worked with
		entries, err := os.ReadDir(s.Work)
		return err == nil && len(entries) == 0
	}, 10*time.Second, 10*time.Millisecond)

	// Each of the containers may be restarted.
	stop()
	require.NoError(t, os.RemoveAll(m.modules))
	require.NoError(t, m.run(t))
	sideCar(t, s)
	require.NoError(t, m.run(t))
	require.EqualValues(t, 1, times.Load())
}

func TestDriverContainerOfNVIDIAFallsBack(t *testing.T) {
	archive := "drivers/NVIDIA-Linux-" + machine(t) + "-" + version + ".run"
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *nvidiaMain, s *Builder)
		want  string
	}{
		"NoDriver": {func(t *testing.T, m *nvidiaMain, _ *Builder) {
			require.NoError(t, os.Remove(filepath.Join(m.image, archive)))
		}, "has put no " + archive},
		"Link": {func(t *testing.T, m *nvidiaMain, _ *Builder) {
			at := filepath.Join(m.image, archive)
			require.NoError(t, errors.Join(os.Remove(at), os.Symlink("/bin/true", at)))
		}, "is not a regular file"},
		"NoUnpacking": {func(t *testing.T, m *nvidiaMain, _ *Builder) {
			require.NoError(t, os.WriteFile(filepath.Join(m.image, archive), []byte("echo no room; exit 1\n"), 0o755))
		}, "its last line: no room"},
		"NoSources": {func(t *testing.T, m *nvidiaMain, _ *Builder) {
			require.NoError(t, os.WriteFile(filepath.Join(m.image, archive), []byte("mkdir \"$3\"\n"), 0o755))
		}, "has no kernel modules"},
		"NoVersion": {func(_ *testing.T, m *nvidiaMain, _ *Builder) { m.env = m.env[:1] }, "lacks the kernel, the driver version"},
		"Hostile": {func(_ *testing.T, m *nvidiaMain, _ *Builder) {
			m.env[1] = "DRIVER_VERSION=../../x"
		}, "DRIVER_VERSION has the invalid value"},
		"VGPU": {func(_ *testing.T, m *nvidiaMain, _ *Builder) { m.env[3] = "DRIVER_TYPE=vgpu" }, "vGPU driver"},
		"BuildFails": {func(_ *testing.T, _ *nvidiaMain, s *Builder) {
			s.Build = func(context.Context, Request, string) (string, error) {
				return "", &kernel.Error{Reason: build.ReasonBuildFailed, Message: "nvidia/nv.c:3: too few arguments"}
			}
		}, "nvidia/nv.c:3: too few arguments"},
		"NoHeaders": {func(_ *testing.T, _ *nvidiaMain, s *Builder) { s.Build = nil }, "no headers of kernel " + release},
	} {
		t.Run(name, func(t *testing.T) {
			m := newNVIDIAMain(t)
			s := m.newSideCar(t, new(atomic.Int32))
			c.spoil(t, m, s)
			sideCar(t, s)
			require.ErrorIs(t, m.run(t), errBroken)
			text, err := os.ReadFile(filepath.Join(m.dir, brokenName))
			require.NoError(t, err)
			require.Contains(t, string(text), c.want)
			text, err = os.ReadFile(filepath.Join(m.dir, failedName))
			require.NoError(t, err)
			require.Contains(t, string(text), c.want)
			require.NoFileExists(t, filepath.Join(m.dir, startedName))
			require.NoFileExists(t, filepath.Join(m.dir, builtName))
			empty(t, s.Work)
		})
	}
}
