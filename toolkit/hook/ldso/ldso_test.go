package ldso

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// image creates a root file system with a loader and a C library.
func image(t testing.TB) (string, *rootfs.Root) {
	t.Helper()
	dir := t.TempDir()
	loader := "/lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		loader = "/lib/ld-linux-aarch64.so.1"
	}
	copyFile(t, loader, dir+loader)
	copyFile(t, libc(t), dir+libDir+"/libc.so.6")
	root, err := rootfs.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

// libDir is the directory of the images' libraries.
var libDir = map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

func libc(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{libDir, "/lib64", "/usr/lib64"} {
		if _, err := os.Stat(dir + "/libc.so.6"); err == nil {
			return dir + "/libc.so.6"
		}
	}
	t.Fatal("this machine has no glibc")
	return ""
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, built.WriteProgram(to, data, 0o755))
}

// compile compiles a shared library whose function answer returns n.
func compile(t testing.TB, file, soname string, n int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	gcc(t, fmt.Sprintf("int answer(void) { return %d; }", n), "-shared", "-fPIC", "-Wl,-soname,"+soname, "-o", file)
}

func gcc(t testing.TB, source string, args ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

func readCache(t testing.TB, dir string) library.Cache {
	t.Helper()
	data, err := os.ReadFile(dir + cachePath)
	require.NoError(t, err)
	c, err := library.ParseCache(data)
	require.NoError(t, err)
	return c
}

func find(c library.Cache, name string) []string {
	var paths []string
	for _, e := range c.Entries {
		if e.Name == name {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

func TestUpdateMergesIntoTheImagesOwnCache(t *testing.T) {
	dir, root := image(t)
	compile(t, dir+"/opt/app/libapp.so.3.2", "libapp.so.3", 1)
	compile(t, dir+"/opt/stale/libcuda.so.1", "libcuda.so.1", 2)
	require.NoError(t, os.WriteFile(dir+"/etc-conf", []byte("/opt/app\n/opt/stale\n"), 0o644))
	ldconfig(t, "-r", dir, "-f", "/etc-conf", "-C", "/cache")
	require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
	require.NoError(t, os.Rename(dir+"/cache", dir+cachePath))
	before := readCache(t, dir)
	require.Equal(t, []string{"/opt/stale/libcuda.so.1"}, find(before, "libcuda.so.1"))

	compile(t, dir+"/driver/libcuda.so.580.95.05", "libcuda.so.1", 3)
	require.NoError(t, os.Symlink("libcuda.so.580.95.05", dir+"/driver/libcuda.so.1"))
	require.NoError(t, os.Symlink("libcuda.so.1", dir+"/driver/libcuda.so"))
	compile(t, dir+"/driver/libnvidia-ml.so.580.95.05", "libnvidia-ml.so.1", 3) // without a link
	require.NoError(t, os.WriteFile(dir+"/driver/libnvidia-gpusim.so.580.95.05", []byte("state, not ELF"), 0o644))
	mounts := []string{"/driver/libcuda.so.580.95.05", "/driver/libnvidia-ml.so.580.95.05", "/driver/libnvidia-gpusim.so.580.95.05", "/usr/bin/nvidia-smi"}
	warning, err := Update(root, []string{"/driver"}, mounts)
	require.NoError(t, err)
	require.Empty(t, warning)

	after := readCache(t, dir)
	require.Equal(t, []string{"/driver/libcuda.so.1"}, find(after, "libcuda.so.1"), "the driver's library replaces a stale one")
	require.Equal(t, []string{"/driver/libcuda.so"}, find(after, "libcuda.so"))
	require.Equal(t, []string{"/driver/libnvidia-ml.so.580.95.05"}, find(after, "libnvidia-ml.so.1"))
	require.Equal(t, find(before, "libapp.so.3"), find(after, "libapp.so.3"))
	require.Equal(t, find(before, "libc.so.6"), find(after, "libc.so.6"))
	conf, err := os.ReadFile(dir + dropInPath)
	require.NoError(t, err)
	require.Equal(t, "/driver\n", string(conf))

	first, err := os.Stat(dir + cachePath)
	require.NoError(t, err)
	_, err = Update(root, []string{"/driver"}, mounts)
	require.NoError(t, err)
	second, err := os.Stat(dir + cachePath)
	require.NoError(t, err)
	require.True(t, os.SameFile(first, second), "a second run changes nothing")
}

func ldconfig(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("/sbin/ldconfig", args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// glibc itself verifies our cache: its ldconfig lists it, and its loader, in a chroot, uses
// it to find a library in a directory that it does not search.
func TestRealLoaderUsesTheCache(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	dir, root := image(t)
	compile(t, dir+"/odd/place/libgpu.so.580.95.05", "libgpu.so.1", 42)
	for i := range 200 { // enough for a wrong order to break the binary search
		copyFile(t, dir+"/odd/place/libgpu.so.580.95.05", fmt.Sprintf("%s%s/libother%d.so.%d", dir, libDir, i%50, i))
	}
	warning, err := Update(root, []string{"/odd/place"}, []string{"/odd/place/libgpu.so.580.95.05"})
	require.NoError(t, err)
	require.Empty(t, warning)
	require.Contains(t, ldconfig(t, "-p", "-C", dir+cachePath), "libgpu.so.1 (libc6,")

	gcc(t, `#include <dlfcn.h>
		#include <stdio.h>
		int main(int n, char **names) {
			for (int i = 1; i < n; i++) {
				void *l = dlopen(names[i], RTLD_NOW);
				if (!l) { puts(dlerror()); return 1; }
				printf("%d ", ((int (*)(void))dlsym(l, "answer"))());
			}
			return 0;
		}`, "-ldl", "-o", dir+"/prog")
	run := func(names ...string) (string, error) {
		cmd := exec.Command("/prog", names...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
		cmd.Dir, cmd.Env = "/", []string{}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("libgpu.so.1")
	require.NoError(t, err, out)
	require.Equal(t, "42 ", out)
	require.NoError(t, os.Remove(dir+cachePath))
	out, err = run("libgpu.so.1")
	require.Error(t, err, "it must have been the cache: %s", out)
}

// Our parser reads every entry of ldconfig's cache in ldconfig's order, and our scan finds
// the same libraries as ldconfig.
func TestAgreesWithLdconfig(t *testing.T) {
	dir, root := image(t)
	for i, name := range []string{"libz.so.1", "libz.so.1.2", "libz.so.1.10", "libz.so.1.9", "libc++.so.1", "lib10.so.2", "lib9.so.2", "libA_b-c.so.007", "liba.so"} {
		compile(t, fmt.Sprintf("%s%s/%s", dir, libDir, name), name, i)
	}
	compile(t, dir+libDir+"/glibc-hwcaps/x86-64-v2/libz.so.1", "libz.so.1", 77)
	compile(t, dir+"/opt/more/libmore.so.1.5", "libmore.so.1", 5)
	require.NoError(t, os.WriteFile(dir+libDir+"/libtext.so.1", []byte("text"), 0o644))
	require.NoError(t, os.MkdirAll(dir+"/etc/ld.so.conf.d", 0o755))
	require.NoError(t, os.WriteFile(dir+"/etc/ld.so.conf", []byte("# comment\ninclude /etc/ld.so.conf.d/*.conf\n"), 0o644))
	require.NoError(t, os.WriteFile(dir+"/etc/ld.so.conf.d/x.conf", []byte("/opt/more # here\n"), 0o644))
	require.NoError(t, os.Symlink("/usr/lib", dir+"/lib"))
	ldconfig(t, "-r", dir, "-C", "/cache")
	require.NoError(t, os.Rename(dir+"/cache", dir+cachePath))

	theirs := readCache(t, dir)
	require.NotEmpty(t, theirs.Entries)
	again, err := library.ParseCache(theirs.Bytes())
	require.NoError(t, err)
	require.Equal(t, theirs, again, "their order is our order")
	list := func(file string) []string {
		lines := strings.Split(ldconfig(t, "-p", "-C", file), "\n")
		return lines[1 : len(lines)-2] // without the number and the writer
	}
	require.NoError(t, os.WriteFile(dir+"/ours", theirs.Bytes(), 0o644))
	require.Equal(t, list(dir+cachePath), list(dir+"/ours"))

	plain := func(c library.Cache) []string {
		var names []string
		for _, e := range c.Entries {
			// The scan omits variants for newer processors, and Debian's ldconfig does not
			// read /lib64, the loader's directory.
			if e.HWCap == 0 && !strings.HasPrefix(e.Name, "ld-") {
				names = append(names, e.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	require.Equal(t, plain(theirs), plain(scan(root, &budget{files: maxFiles, until: time.Now().Add(time.Hour)})))
}

func TestImageWithoutALoaderIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	root, err := rootfs.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	compile(t, dir+"/driver/libcuda.so.1", "libcuda.so.1", 1)
	warning, err := Update(root, []string{"/driver"}, []string{"/driver/libcuda.so.1"})
	require.NoError(t, err)
	require.Empty(t, warning)
	_, err = os.Stat(dir + "/etc")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// musl's loader reads a list of directories instead of a cache.
func TestUpdateAddsDirectoriesForMusl(t *testing.T) {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for name, c := range map[string]struct{ before, after string }{
		"none":         {"", "/lib:/usr/local/lib:/usr/lib\n/driver\n"},
		"lines":        {"/lib\n/usr/lib\n", "/lib\n/usr/lib\n/driver\n"},
		"known":        {"/lib:/driver", "/lib:/driver"},
		"known, lines": {"/lib\n/driver\n", "/lib\n/driver\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, err := rootfs.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			require.NoError(t, os.MkdirAll(dir+"/lib", 0o755))
			require.NoError(t, os.WriteFile(dir+"/lib/ld-musl-"+arch+".so.1", nil, 0o755))
			file := dir + "/etc/ld-musl-" + arch + ".path"
			if c.before != "" {
				require.NoError(t, os.Mkdir(dir+"/etc", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(c.before), 0o644))
			}
			for range 2 {
				warning, err := Update(root, []string{"/driver"}, nil)
				require.NoError(t, err)
				require.Empty(t, warning)
				data, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, c.after, string(data))
			}
			_, err = os.Stat(dir + cachePath)
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

// The real loader prefers the libraries in CompatConf to the driver's.
func TestCompatLibrariesGoFirst(t *testing.T) {
	dir, root := image(t)
	compile(t, dir+"/driver/libcuda.so.570.1", "libcuda.so.1", 570)
	compile(t, dir+"/driver/libnvidia-ml.so.570.1", "libnvidia-ml.so.1", 570)
	compile(t, dir+"/compat/libcuda.so.580.1", "libcuda.so.1", 580)
	require.NoError(t, os.MkdirAll(dir+confDir, 0o755))
	mounts := []string{"/driver/libcuda.so.570.1", "/driver/libnvidia-ml.so.570.1"}
	for conf, want := range map[string]string{
		"/compat\n":          "/compat/libcuda.so.580.1",
		"compat\n":           "/driver/libcuda.so.570.1",
		"/compat\n/driver\n": "/driver/libcuda.so.570.1", // not ours
		"/nowhere":           "/driver/libcuda.so.570.1",
	} {
		require.NoError(t, os.WriteFile(dir+CompatConf, []byte(conf), 0o644))
		_, err := Update(root, []string{"/driver"}, mounts)
		require.NoError(t, err)
		c := readCache(t, dir)
		require.Equal(t, []string{want}, find(c, "libcuda.so.1"), conf)
		require.Equal(t, []string{"/driver/libnvidia-ml.so.570.1"}, find(c, "libnvidia-ml.so.1"))
	}
}

// A cache of another byte order, damaged anywhere or cut, is never an error, and never
// excludes the driver's libraries.
func TestDamagedCacheStopsNothing(t *testing.T) {
	dir, root := image(t)
	compile(t, dir+"/driver/libcuda.so.1", "libcuda.so.1", 1)
	ldconfig(t, "-r", dir, "-C", "/cache")
	whole, err := os.ReadFile(dir + "/cache")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
	rapid.Check(t, func(t *rapid.T) {
		data := slices.Clone(whole)
		switch rapid.SampledFrom([]string{"order", "cut", "bytes", "header"}).Draw(t, "damage") {
		case "order":
			data[28] = 3 // cache_file_new_flags_endian_big
		case "cut":
			data = data[:rapid.IntRange(0, len(data)).Draw(t, "length")]
		case "bytes":
			for range rapid.IntRange(1, 20).Draw(t, "n") {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		case "header":
			for i := 20; i < 48; i++ {
				data[i] = rapid.SampledFrom([]byte{0, 1, 0x7f, 0xff}).Draw(t, "byte")
			}
		}
		require.NoError(t, os.WriteFile(dir+cachePath, data, 0o644))
		_, err := Update(root, []string{"/driver"}, []string{"/driver/libcuda.so.1"})
		require.NoError(t, err)
		written, err := os.ReadFile(dir + cachePath)
		require.NoError(t, err)
		c, err := library.ParseCache(written)
		require.NoError(t, err)
		require.Contains(t, find(c, "libcuda.so.1"), "/driver/libcuda.so.1")
	})
}

// Each image tries to make the hook read, block on or write a forbidden file.
func TestHostileImages(t *testing.T) {
	for name, hostile := range map[string]func(t *testing.T, dir, outside string){
		"etc leads out": func(t *testing.T, dir, outside string) {
			require.NoError(t, os.Symlink("../../../../../../../.."+outside, dir+"/etc"))
		},
		"etc leads out by an absolute link": func(t *testing.T, dir, outside string) {
			require.NoError(t, os.Symlink(outside, dir+"/etc"))
		},
		"the cache is a link to the host's": func(t *testing.T, dir, outside string) {
			require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
			require.NoError(t, os.Symlink(outside+"/ld.so.cache", dir+cachePath))
		},
		"the cache is a pipe": func(t *testing.T, dir, _ string) {
			require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
			require.NoError(t, syscall.Mkfifo(dir+cachePath, 0o644))
		},
		"the cache is endless": func(t *testing.T, dir, _ string) {
			require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
			require.NoError(t, os.WriteFile(dir+cachePath, []byte("glibc-ld.so.cache1.1"), 0o644))
			require.NoError(t, os.Truncate(dir+cachePath, 1<<40)) // sparse
		},
		"the cache lies": func(t *testing.T, dir, _ string) {
			require.NoError(t, os.MkdirAll(dir+"/etc", 0o755))
			data := library.Cache{Entries: []library.Entry{{Name: "a", Path: "b"}}}.Bytes()
			data[20], data[23] = 0xff, 0xff
			require.NoError(t, os.WriteFile(dir+cachePath, data, 0o644))
		},
		"the configuration includes itself and pipes": func(t *testing.T, dir, _ string) {
			require.NoError(t, os.MkdirAll(dir+"/etc/x", 0o755))
			require.NoError(t, os.WriteFile(dir+confPath, []byte("include /etc/*\ninclude ../etc/x/*\n/proc\n/dev\n"), 0o644))
			require.NoError(t, syscall.Mkfifo(dir+"/etc/x/pipe", 0o644))
			require.NoError(t, os.Symlink(".", dir+"/etc/x/self"))
		},
		"libraries are pipes, loops and bombs": func(t *testing.T, dir, outside string) {
			require.NoError(t, syscall.Mkfifo(dir+libDir+"/libpipe.so.1", 0o644))
			require.NoError(t, os.Symlink("libloop.so.1", dir+libDir+"/libloop.so.1"))
			require.NoError(t, os.Symlink(outside+"/ld.so.cache", dir+libDir+"/libout.so.1"))
			bomb := make([]byte, 64)
			copy(bomb, "\x7fELF\x02\x01\x01")
			for i := 16; i < 64; i++ {
				bomb[i] = 0xff
			}
			require.NoError(t, os.WriteFile(dir+libDir+"/libbomb.so.1", bomb, 0o644))
		},
		"the drop-in is a link to the host's": func(t *testing.T, dir, outside string) {
			require.NoError(t, os.MkdirAll(dir+confDir, 0o755))
			require.NoError(t, os.Symlink(outside+"/ld.so.conf", dir+dropInPath))
			require.NoError(t, os.Symlink(outside+"/ld.so.conf", dir+confPath))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, root := image(t)
			outside := t.TempDir()
			for _, f := range []string{"ld.so.cache", "ld.so.conf"} {
				require.NoError(t, os.WriteFile(outside+"/"+f, []byte("host's"), 0o644))
			}
			hostile(t, dir, outside)
			compile(t, dir+"/driver/libcuda.so.1", "libcuda.so.1", 1)
			_, err := Update(root, []string{"/driver"}, []string{"/driver/libcuda.so.1"})
			require.NoError(t, err)
			entries, err := os.ReadDir(outside)
			require.NoError(t, err)
			require.Len(t, entries, 2)
			for _, f := range entries {
				data, err := os.ReadFile(filepath.Join(outside, f.Name()))
				require.NoError(t, err)
				require.Equal(t, "host's", string(data))
			}
			data, err := root.ReadFile(cachePath, maxCache)
			require.NoError(t, err)
			c, err := library.ParseCache(data)
			require.NoError(t, err)
			require.Equal(t, []string{"/driver/libcuda.so.1"}, find(c, "libcuda.so.1"))
		})
	}
}

func TestReadOnlyImageFailsOnlyIfTheLoaderWouldNotFind(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir, root := image(t)
	compile(t, dir+libDir+"/libcuda.so.1", "libcuda.so.1", 1)
	compile(t, dir+"/driver/libcuda.so.1", "libcuda.so.1", 1)
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mounting is not permitted: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	require.NoError(t, root.Close())
	root, err := rootfs.Open(dir) // the new mount
	require.NoError(t, err)
	defer root.Close()

	_, err = Update(root, []string{"/driver"}, []string{"/driver/libcuda.so.1"})
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, "libcuda.so.1")
	warning, err := Update(root, []string{libDir}, []string{libDir + "/libcuda.so.1"})
	require.NoError(t, err)
	require.Contains(t, warning, "read-only")
}

func BenchmarkUpdateWithCache(b *testing.B) {
	dir, root := image(b)
	var c library.Cache
	for i := range 5000 {
		c.Entries = append(c.Entries, library.Entry{Name: fmt.Sprintf("libx%d.so.%d", i, i%7), Path: fmt.Sprintf("/usr/lib/libx%d.so.%d", i, i%7), Flags: library.Flags()})
	}
	require.NoError(b, os.MkdirAll(dir+"/etc", 0o755))
	data := c.Bytes()
	compile(b, dir+"/driver/libcuda.so.1", "libcuda.so.1", 1)
	for b.Loop() {
		require.NoError(b, os.WriteFile(dir+cachePath, data, 0o644))
		_, err := Update(root, []string{"/driver"}, []string{"/driver/libcuda.so.1"})
		require.NoError(b, err)
	}
}
