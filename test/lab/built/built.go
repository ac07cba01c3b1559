// Package built provides tests with the programs and libraries that the Makefile builds, and runs
// them.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var (
	mu   sync.Mutex
	made = map[string]error{} // the error of building it, or nil
)

// Path returns the absolute path of a file that `make build` creates, by its name below bin:
// "gpusim", "lib/libcuda.so". If GPUREADY_BIN names a folder, as in `make test`, the file there is
// used unchanged. Otherwise it is built in bin or, if the test has the race detector, in bin/race with it.
func Path(t testing.TB, name string) string {
	t.Helper()
	if given := os.Getenv("GPUREADY_BIN"); given != "" {
		path := filepath.Join(given, name)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("built: %v; GPUREADY_BIN must name a folder that `make build` filled", err)
		}
		return path
	}
	mu.Lock()
	defer mu.Unlock()
	path := filepath.Join(Root(), dir, name)
	err, tried := made[name]
	if !tried {
		err = build(path)
		made[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Root is the top of the source tree.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath: tests run in their package's folder
		dir, err := os.Getwd()
		for err == nil && dir != "/" {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return dir
			}
			dir = filepath.Dir(dir)
		}
	}
	return filepath.Join(filepath.Dir(file), "../../..")
}

// build runs make under a lock shared by the test processes of several packages.
func build(path string) error {
	if err := os.MkdirAll(filepath.Join(Root(), "bin"), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(Root(), "bin/.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	target, err := filepath.Rel(Root(), path)
	if err != nil {
		return err
	}
	cmd := exec.Command("make", append([]string{"-s", "--no-print-directory", "BIN=" + dir, target}, mode...)...)
	cmd.Dir = Root()
	cmd.Env = environ("MAKEFLAGS", "MAKELEVEL", "BIN")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", target, err, out)
	}
	return nil
}

// Environ returns this process's environment, changed so that programs with the race detector end
// at once instead of after a second.
func Environ() []string {
	if os.Getenv("GORACE") != "" {
		return os.Environ()
	}
	return append(os.Environ(), "GORACE=atexit_sleep_ms=0")
}

// environ returns the environment without the named variables.
func environ(without ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(without, name)
	})
}

// DriverRoot creates a simulated driver root with `gpusim up` in a temporary folder and removes it
// at the end of the test.
func DriverRoot(t testing.TB, profile string, args ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "driver")
	Gpusim(t, append([]string{"up", "--root", root, "--profile", profile}, args...)...)
	t.Cleanup(func() { Gpusim(t, "down", "--root", root) })
	return root
}

// Gpusim runs gpusim, which must succeed, and returns its output.
func Gpusim(t testing.TB, args ...string) string {
	t.Helper()
	path := Path(t, "gpusim")
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so", "nvidia-smi", "nvidia-cuda-mps-control"} {
		Path(t, "lib/"+lib)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = Environ()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gpusim %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// libraryFolders returns the folders in which programs find a driver's libraries by themselves.
func libraryFolders() []string {
	return append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), "/usr/lib", "/usr/lib/*", "/usr/lib/*/nvidia/current", "/usr/lib64",
		"/usr/local/lib", "/usr/local/lib64", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib")
}

// SkipWithDriver skips a test in which a program must find no driver: below its driver root there is none, and
// then it looks for libnvidia-ml where a container runtime may have put it.
func SkipWithDriver(t testing.TB) {
	t.Helper()
	skipWith(t, "libnvidia-ml.so.1", libraryFolders())
}

// SkipWithCUDA skips a test in which the loader must not find a libcuda.
func SkipWithCUDA(t testing.TB) {
	t.Helper()
	skipWith(t, "libcuda.so.1", append(libraryFolders(), "/usr/local/cuda/compat"))
}

func skipWith(t testing.TB, library string, folders []string) {
	t.Helper()
	for _, folder := range folders {
		if found, _ := filepath.Glob(filepath.Join(folder, library)); len(found) > 0 && filepath.IsAbs(found[0]) {
			t.Skipf("this machine has a driver of its own: %s", found[0])
		}
	}
}
