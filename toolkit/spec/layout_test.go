package spec

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/internal/library/librarytest"
)

// mountedLibraries returns the names of the driver's libraries among mounts, with the path on the
// host of each.
func mountedLibraries(mounts []Mount) map[string]string {
	found := map[string]string{}
	for _, m := range mounts {
		if base := path.Base(m.Host); strings.Contains(base, ".so") {
			found[base] = m.Host
		}
	}
	return found
}

// TestEveryLibraryOfEveryLayoutIsMounted compares the libraries that a layout lists, those that are
// mounted, and those that nvcdi mounts.
func TestEveryLibraryOfEveryLayoutIsMounted(t *testing.T) {
	for _, l := range librarytest.Layouts(t) {
		t.Run(l.Name, func(t *testing.T) {
			dir := t.TempDir()
			l.Make(t, dir)
			root, err := host.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			files, err := Find(root, "/", l.Version)
			require.NoError(t, err)
			require.Empty(t, files.Warnings)
			mounted := mountedLibraries(files.Mounts)

			want := map[string]string{}
			for at, kind := range l.Files {
				if _, other := l.Files[path.Dir(at)+"/libglxserver_nvidia.so.535.309.01"]; other && l.Name == "two-drivers" {
					continue // the X server's driver of the other one has no version in its name
				}
				if real, err := root.Resolve(at); kind == "" && isOfDriver(at, l.Version) {
					require.NoError(t, err)
					want[path.Base(at)] = real
				}
			}
			require.Equal(t, want, mounted)
			for base, at := range mounted {
				if version := library.Version(base); version != "" {
					require.Equal(t, l.Version, version, "a library of another driver: %s", at)
				}
			}
			checkLinks(t, l, root, files)
			compareLibraries(t, dir, l.Version, mounted)
		})
	}
}

// isOfDriver reports whether a file of a layout is a library of the driver of a version.
func isOfDriver(at, version string) bool {
	if v := library.Version(at); v != "" {
		return v == version
	}
	// Libraries with versions of their own, and folders that have only the driver's.
	return regexp.MustCompile(`/(libnvidia-(nvvm70|egl-\w+)\.so\.|nvidia_drv\.so$)|^/usr/lib/(wsl/lib|aarch64-linux-gnu/nvidia)/lib`).MatchString(at)
}

// checkLinks checks that the container gets each numbered name under which programs load a mounted library.
func checkLinks(t *testing.T, l librarytest.Layout, root *host.Root, files Files) {
	t.Helper()
	names := map[string]bool{}
	for _, link := range files.Links {
		_, at, ok := strings.Cut(link, "::")
		require.True(t, ok, link)
		names[path.Base(at)] = true
	}
	for _, m := range files.Mounts {
		names[path.Base(m.Container)] = true
		if base := path.Base(m.Container); strings.HasPrefix(base, "lib") && !strings.HasPrefix(base, "libglxserver") {
			require.Contains(t, files.Folders, path.Dir(m.Container), "the container's loader does not find %s", base)
		}
	}
	for at := range l.Files {
		if !regexp.MustCompile(`\.so\.\d$`).MatchString(at) || strings.Contains(at, "/etc/") {
			continue
		}
		real, err := root.Resolve(at)
		require.NoError(t, err)
		if isOfDriver(real, l.Version) && l.Files[real] == "" {
			require.True(t, names[path.Base(at)], "no %s", at)
		}
	}
}

const unsearched = "it does not search the folder, unless the loader's cache names it"

// notOfNvcdi explains, by layout, which libraries nvcdi does not mount; "" is for all layouts.
var notOfNvcdi = []struct{ layout, libraries, why string }{
	{"bottlerocket-470", `.*`, unsearched}, {"bottlerocket-tesla", `.*`, unsearched}, {"container-optimized-os", `.*`, unsearched},
	{"debian-12-tesla", `.*`, unsearched}, {"two-drivers", `.*`, unsearched}, {"nixos", `.*`, unsearched}, {"opt-current", `.*`, unsearched},
	{"talos-1.12", `.*`, unsearched}, {"talos-1.13", `.*`, unsearched},
	{"tegra-r36", `.*`, "it has a mode of its own for it"}, {"wsl", `.*`, "it has a mode of its own for it"},
	{"", `libnvidia-egl-.*|nvidia_drv\.so|libglxserver_nvidia\.so.*`, "it gives agents no graphics, whose libraries the other tests compare"},
}

// compareLibraries compares the mounted libraries with those that nvcdi mounts for the driver below dir.
func compareLibraries(t *testing.T, dir, driver string, mounted map[string]string) {
	t.Helper()
	theirs := nvcdiMounts(t, dir, driver)
	for base, at := range theirs {
		require.Equal(t, at, mounted[base], "nvcdi mounts it")
	}
	layout := path.Base(t.Name())
	unexplained := map[string]string{}
	explains := map[string]bool{}
	for base, at := range mounted {
		if _, ok := theirs[base]; ok {
			continue
		}
		unexplained[base] = at
		for _, e := range notOfNvcdi {
			if (e.layout == "" || e.layout == layout) && regexp.MustCompile("^("+e.libraries+")$").MatchString(base) {
				delete(unexplained, base)
				explains[e.layout] = true
			}
		}
	}
	require.Empty(t, unexplained, "nvcdi does not mount these, and nobody explained it; it mounts %d of %d", len(theirs), len(mounted))
	for _, e := range notOfNvcdi {
		require.True(t, e.layout != layout || explains[layout], "nvcdi mounts %s: take the explanation away", e.libraries)
	}
}

// nvcdiMounts returns the libraries that nvcdi mounts in its mode for agents, which needs no GPU.
func nvcdiMounts(t *testing.T, dir, driver string) map[string]string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), oracle+"="+dir, oracleLibraries+"="+driver, "PATH=/usr/sbin:/usr/bin", "XDG_DATA_DIRS=")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var edits specs.ContainerEdits
	require.NoError(t, json.Unmarshal(out, &edits))
	var mounts []Mount
	for _, m := range edits.Mounts {
		mounts = append(mounts, Mount{Host: strings.TrimPrefix(m.HostPath, dir)})
	}
	return mountedLibraries(mounts)
}

// A driver root's ld.so.cache may be damaged; libraries elsewhere are found all the same.
func TestDamagedCacheIsOnlyNoted(t *testing.T) {
	dir := t.TempDir()
	librarytest.Named(t, "fedora-rhel").Make(t, dir)
	require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
	require.NoError(t, os.WriteFile(dir+library.CachePath, []byte("glibc-ld.so.cache1.1\xff\xff\xff\xff"), 0o644))
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	files, err := Find(root, "/", version)
	require.NoError(t, err)
	require.Len(t, files.Warnings, 1)
	require.Contains(t, files.Warnings[0], "ld.so.cache is not used")
	require.Contains(t, mountedLibraries(files.Mounts), "libcuda.so."+version)
}

// TestOptionalFileInAWorldWritableFolderIsLeftOut changes the mode of one folder. Only libcuda and
// libnvidia-ml are worth a node's specifications.
func TestOptionalFileInAWorldWritableFolderIsLeftOut(t *testing.T) {
	const cuda, ml, rest = "/usr/lib64", "/opt/nvidia/current/lib64", "/usr/local/nvidia/lib64"
	for _, c := range []struct {
		name, folder string
		absent       []string
		warning      string
		fails        string
	}{
		{
			name: "OptiX's data", folder: "/usr/share/nvidia", absent: []string{"nvoptix.bin"},
			warning: "/usr/share/nvidia/nvoptix.bin cannot be mounted into containers",
		},
		{
			name: "a folder of libraries", folder: rest, absent: []string{"libnvidia-glcore.so." + version, "libnvcuvid.so." + version},
			warning: "and 1 more cannot be mounted into containers: ",
		},
		{name: "libcuda's", folder: cuda, fails: "libcuda.so." + version + " cannot be mounted into containers"},
		{name: "libnvidia-ml's", folder: ml, fails: "libnvidia-ml.so." + version + " cannot be mounted into containers"},
		{name: "a folder that is not used", folder: "/opt/nvidia/lib64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, at := range []string{
				cuda + "/libcuda.so", ml + "/libnvidia-ml.so", rest + "/libnvidia-glcore.so", rest + "/libnvcuvid.so", "/opt/nvidia/lib64/libcuda.so",
			} {
				require.NoError(t, os.MkdirAll(filepath.Dir(dir+at), 0o755))
				require.NoError(t, os.WriteFile(dir+at+"."+version, librarytest.Library(path.Base(at)+".1"), 0o755))
			}
			require.NoError(t, os.Rename(dir+"/opt/nvidia/lib64/libcuda.so."+version, dir+"/opt/nvidia/lib64/libcuda.so.570.1"))
			require.NoError(t, os.MkdirAll(dir+"/usr/share/nvidia", 0o755))
			require.NoError(t, os.WriteFile(dir+"/usr/share/nvidia/nvoptix.bin", []byte("x"), 0o644))
			require.NoError(t, os.Chmod(dir+c.folder, 0o777|os.ModeSticky))
			root, err := host.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			files, err := Find(root, "/", version)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.warning != "", len(files.Warnings) == 1, "%v", files.Warnings)
			require.Contains(t, strings.Join(files.Warnings, ""), c.warning)
			mounted := map[string]bool{}
			for _, m := range files.Mounts {
				mounted[path.Base(m.Host)] = true
			}
			for _, name := range c.absent {
				require.False(t, mounted[name], name)
			}
			require.True(t, mounted["libcuda.so."+version])
		})
	}
}

// packages names a folder with the packages of one driver, as apt-get download gets them:
// libcuda1, libnvidia-ml1, libnvidia-eglcore and so on, or those of a tesla variant. They are under NVIDIA's licence.
const packages = "GPUREADY_TEST_DRIVER_PACKAGES"

// TestEveryLibraryOfRealPackagesIsMounted compares library by library.
func TestEveryLibraryOfRealPackagesIsMounted(t *testing.T) {
	debs, err := filepath.Glob(filepath.Join(os.Getenv(packages), "*.deb"))
	require.NoError(t, err)
	if os.Getenv(packages) == "" || len(debs) == 0 {
		t.Skip(packages + " names no folder with Debian's packages of a driver")
	}
	dir := t.TempDir()
	for _, deb := range debs {
		out, err := exec.Command("dpkg-deb", "-x", deb, dir).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, os.Chmod(dir, 0o755))
	want := map[string]string{}
	driver := ""
	require.NoError(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && library.Version(p) != "" {
			want[d.Name()] = strings.TrimPrefix(p, dir)
			if strings.HasPrefix(d.Name(), "libcuda.so.") {
				driver = library.Version(p)
			}
		}
		return err
	}))
	require.NotEmpty(t, driver, "no libcuda in the packages")
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	files, err := Find(root, "/", driver)
	require.NoError(t, err)
	require.Empty(t, files.Warnings)
	mounted := mountedLibraries(files.Mounts)
	delete(mounted, "nvidia_drv.so")
	require.Equal(t, want, mounted)
	t.Logf("%d libraries of %s in %v", len(mounted), driver, files.Folders)
	theirs := nvcdiMounts(t, dir, driver)
	t.Logf("nvcdi: %d libraries", len(theirs))
	for base, at := range theirs {
		require.Equal(t, at, mounted[base], "nvcdi mounts it")
	}
}
