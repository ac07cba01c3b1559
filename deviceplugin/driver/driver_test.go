package driver_test

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/test/lab/node"
)

func TestMain(m *testing.M) { leak.Main(m) }

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var libraries = map[string]string{"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

// installLibrary installs a library of the given version below a driver root, by rename
// as an installer does, and links its soname to it.
func installLibrary(t *testing.T, root, version string) string {
	t.Helper()
	dir := filepath.Join(root, libraries)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	head := make([]byte, 64)
	copy(head, elf.ELFMAG)
	head[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	head[18], head[19] = byte(machine), byte(machine>>8)
	path := filepath.Join(dir, "libnvidia-ml.so."+version)
	require.NoError(t, os.WriteFile(path+"~", head, 0o755))
	require.NoError(t, os.Rename(path+"~", path))
	link := filepath.Join(dir, "libnvidia-ml.so.1")
	require.NoError(t, os.Symlink(filepath.Base(path), link+"~"))
	require.NoError(t, os.Rename(link+"~", link))
	return path
}

func TestContainerisedDriverIsPreferred(t *testing.T) {
	dir := t.TempDir()
	place := driver.Place{HostRoot: dir}
	_, _, err := place.Find()
	require.ErrorIs(t, err, gpu.ErrNoDriver)

	own := installLibrary(t, dir, "1.0")
	root, library, err := place.Find()
	require.NoError(t, err)
	require.Equal(t, "/", root)
	require.Equal(t, own, library)

	contained := installLibrary(t, filepath.Join(dir, driver.Containerised), "2.0")
	root, library, err = place.Find()
	require.NoError(t, err)
	require.Equal(t, driver.Containerised, root)
	require.Equal(t, contained, library)

	place.Root = "/"
	root, _, err = place.Find()
	require.NoError(t, err)
	require.Equal(t, "/", root, "a root that is given is the only one")
}

func TestWaitOpensAfterAChange(t *testing.T) {
	dir := t.TempDir()
	place := driver.Place{HostRoot: dir, Root: "/opt/driver"}
	waiting := make(chan error, 16)
	type result struct {
		library string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		library, err := driver.WaitOpen(soon(t), place, func() (string, error) {
			_, library, err := place.Find()
			return library, err
		}, func(err error) bool { return errors.Is(err, gpu.ErrNoDriver) }, func(err error) { waiting <- err })
		done <- result{library, err}
	}()
	require.ErrorIs(t, <-waiting, gpu.ErrNoDriver)
	library := installLibrary(t, filepath.Join(dir, "opt/driver"), "1.0")
	r := <-done
	require.NoError(t, r.err)
	require.Equal(t, library, r.library)
}

func TestWaitChecksWhenTheKernelLoadsAModule(t *testing.T) {
	events := make(chan struct{})
	place := driver.Place{HostRoot: t.TempDir(), WatchDevices: func(ctx context.Context, changed func(host.DeviceEvent)) error {
		for {
			select {
			case <-events:
				changed(host.DeviceEvent{})
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
	checks := make(chan struct{}, 16)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := driver.WaitOpen(ctx, place, func() (int, error) { return 0, gpu.ErrNoDriver }, func(error) bool { return true },
			func(error) { checks <- struct{}{} })
		ended <- err
	}()
	for range 2 { // at once, and as soon as files are watched
		<-checks
	}
	events <- struct{}{}
	for range 2 { // at once, and once the module has initialised; without the event it would take ten seconds
		select {
		case <-checks:
		case <-time.After(8 * time.Second):
			t.Fatal("the event is not followed by a check")
		}
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestWaitReturnsPermanentErrors(t *testing.T) {
	_, err := driver.WaitOpen(soon(t), driver.Place{HostRoot: t.TempDir()}, func() (int, error) { return 0, gpu.ErrNoPermission },
		func(error) bool { return false }, func(error) { t.Error("there is nothing to wait for") })
	require.ErrorIs(t, err, gpu.ErrNoPermission)
	require.EqualValues(t, "NoPermission", driver.Reason(err))
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := driver.WaitOpen(ctx, driver.Place{HostRoot: t.TempDir()}, func() (int, error) { return 0, gpu.ErrNoDriver },
		func(error) bool { return true }, func(error) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestReplaced(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, root string){
		"another version":                  func(t *testing.T, root string) { installLibrary(t, root, "2.0") },
		"another file under the same name": func(t *testing.T, root string) { installLibrary(t, root, "1.0") },
		"taken away, then another": func(t *testing.T, root string) {
			require.NoError(t, os.RemoveAll(root))
			installLibrary(t, root, "2.0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root := filepath.Join(dir, "driver")
			loaded := driver.StatLibrary(installLibrary(t, root, "1.0"))
			done := make(chan error, 1)
			go func() { done <- driver.WaitReplaced(soon(t), driver.Place{HostRoot: dir, Root: "/driver"}, loaded) }()
			replace(t, root)
			require.NoError(t, <-done)
		})
	}
}

func TestMissingDriverIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "driver")
	loaded := driver.StatLibrary(installLibrary(t, root, "1.0"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.NoError(t, os.RemoveAll(root))
	require.ErrorIs(t, driver.WaitReplaced(ctx, driver.Place{HostRoot: dir, Root: "/driver"}, loaded), context.DeadlineExceeded)
}

func TestMountedDriverRootIsNoticed(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	place := driver.Place{}
	waits, found := make(chan struct{}, 100), make(chan string, 1)
	go func() {
		library, _ := driver.WaitOpen(t.Context(), place, func() (string, error) {
			_, library, err := place.Find()
			return library, err
		}, func(error) bool { return true }, func(error) { waits <- struct{}{} })
		found <- library
	}()
	<-waits
	source := t.TempDir()
	want := installLibrary(t, source, "1.0")
	require.NoError(t, unix.Mount(source, driver.Containerised, "", unix.MS_BIND, ""))
	select {
	case got := <-found:
		require.Equal(t, filepath.Base(want), filepath.Base(got))
		require.True(t, strings.HasPrefix(got, driver.Containerised), got)
	case <-time.After(time.Minute):
		t.Fatal("a driver root that was mounted is not seen")
	}
}

func TestLoaded(t *testing.T) {
	dir := t.TempDir()
	require.False(t, driver.IsModuleLoaded(dir))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/driver/nvidia"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "proc/driver/nvidia/version"), nil, 0o644))
	require.True(t, driver.IsModuleLoaded(dir))
}
