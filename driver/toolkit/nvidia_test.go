package toolkit

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/kernel"
)

// Stand-ins for NVIDIA's containers: shells that poll and touch files, as theirs do.

// standInSideCar is a shell script for the Driver Toolkit's container: $1 is the shared folder,
// and $2 the folder with compiled modules.
const standInSideCar = `set -eu
cd "$1"
until [ -f dir_prepared ]; do sleep 0.02; done
touch driver_build_started
if [ -f driver_built ]; then
	while [ -f driver_built ]; do sleep 0.02; done
fi
set -a
. ./env
set +a
[ -n "$DRIVER_VERSION" ] && [ -n "$KERNEL_VERSION" ]
mkdir -p modules/kernel/drivers/video
cp "$2"/*.ko modules/kernel/drivers/video/
echo "insmod /lib/modules/$KERNEL_VERSION/kernel/drivers/video/nvidia.ko" > modules/insmod_nvidia
touch driver_built
while [ -f driver_built ]; do sleep 0.02; done
`

// standInMain is the driver container: $1 is the shared folder, $2 has the image's files,
// and $3 becomes the container's /lib/modules/<release>.
const standInMain = `set -eu
if [ ! -f "$1/dir_prepared" ]; then
	cp -r "$2"/* "$1/"
	env | sed 's/=/="/' | sed 's/$/"/' > "$1/env"
	touch "$1/dir_prepared"
fi
while [ ! -f "$1/driver_build_started" ]; do
	if [ -f "$1/driver_toolkit_broken" ]; then
		echo "it is broken"
		exit 3
	fi
	sleep 0.02
done
while [ ! -f "$1/driver_built" ]; do sleep 0.02; done
mkdir -p "$3"
cp -r "$1"/modules/* "$3"
`

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
func nvidiaSideCar(t *testing.T, dir, built string) *atomic.Int32 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, starts := make(chan struct{}), new(atomic.Int32)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			starts.Add(1)
			cmd := exec.CommandContext(ctx, "sh", "-c", standInSideCar, "sh", dir, built)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
			if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
				t.Logf("%v: %s", err, out)
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
func (m *nvidiaMain) run(t *testing.T) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", standInMain, "sh", m.dir, m.image, m.modules)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	return string(out), err
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
	out, err := m.run(t)
	require.NoError(t, err, out)
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
	out, err = m.run(t)
	require.NoError(t, err, out)
	sideCar(t, s)
	out, err = m.run(t)
	require.NoError(t, err, out)
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
			m.env = append(m.env, "DRIVER_VERSION=../../x")
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
			out, err := m.run(t)
			require.ErrorContains(t, err, "exit status 3", out)
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
