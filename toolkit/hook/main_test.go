package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/toolkit/hook/ldso"
)

// bundled creates a bundle and returns its root file system and its state.
func bundled(t *testing.T) (rootfs, state string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/rootfs", 0o755))
	require.NoError(t, os.WriteFile(dir+"/config.json", []byte(`{"root":{"path":"rootfs"}}`), 0o644))
	return dir + "/rootfs", fmt.Sprintf(`{"ociVersion":"1.0.2","id":"c","bundle":%q}`, dir)
}

func call(state string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = run(args, strings.NewReader(state), &out, &errs)
	return out.String(), errs.String(), err
}

func TestCreateSymlinks(t *testing.T) {
	rootfs, state := bundled(t)
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, rootfs+"/absolute"))
	require.NoError(t, os.Symlink("../../../../../.."+outside, rootfs+"/dots"))
	require.NoError(t, os.MkdirAll(rootfs+"/lib", 0o755))
	require.NoError(t, os.WriteFile(rootfs+"/lib/libcuda.so", []byte("old"), 0o644))
	_, stderr, err := call(state, "create-symlinks",
		"--link", "libcuda.so.1::/lib/libcuda.so",
		"--link=libcuda.so.580::/new/dir/libcuda.so.1",
		"--link", "x::/absolute/a/link", "--link", "x::/dots/b/link", "--link", "x::../../up")
	require.NoError(t, err)
	require.Empty(t, stderr)
	for link, want := range map[string]string{"lib/libcuda.so": "libcuda.so.1", "new/dir/libcuda.so.1": "libcuda.so.580", "up": "x"} {
		got, err := os.Readlink(rootfs + "/" + link)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is made outside of the container")
}

func TestUnknownHooksAreSkipped(t *testing.T) {
	stdout, stderr, err := call("", "enable-something-new", "--whatever", "x")
	require.NoError(t, err)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "enable-something-new")
}

func TestHooksOfOneCallRunInOrder(t *testing.T) {
	rootfs, state := bundled(t)
	_, stderr, err := call(state, "all", "--", "create-symlinks", "--link", "a::/dir/link", "--", "of-a-later-version", "--x",
		"--", "noop", "--", "chmod", "--mode", "700", "--path", "/dir")
	require.NoError(t, err)
	require.Equal(t, "gpu-cdi-hook: \"of-a-later-version\" is not a hook that this version has; nothing done\n", stderr)
	got, err := os.Readlink(rootfs + "/dir/link")
	require.NoError(t, err)
	require.Equal(t, "a", got)
	info, err := os.Stat(rootfs + "/dir")
	require.NoError(t, err)
	require.Equal(t, 0o700|os.ModeDir, info.Mode())

	_, _, err = call(state, "all", "--", "create-symlinks", "--link", "a::/before", "--", "chmod", "--mode", "x", "--path", "/dir", "--", "create-symlinks", "--link", "a::/behind")
	require.ErrorContains(t, err, "chmod: --mode")
	_, err = os.Lstat(rootfs + "/before")
	require.NoError(t, err)
	_, err = os.Lstat(rootfs + "/behind")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWrongUseSaysWhatIsRight(t *testing.T) {
	_, state := bundled(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"create-symlinks", "--link"}, "wants a value"},
		{[]string{"create-symlinks", "--folder", "x"}, "it takes --link"},
		{[]string{"create-symlinks", "--link", "nonsense"}, "target::path"},
		{[]string{"create-symlinks", "--link", "a::/"}, "target::path"},
		{[]string{"update-ldcache", "x"}, "it takes --folder"},
		{[]string{"chmod", "--mode", "u+x", "--path", "/x"}, "octal"},
		{[]string{"chmod", "--mode", "755", "--path="}, "empty"},
		{[]string{"enable-cuda-compat", "--host-driver-version", "new"}, "570.86.15"},
		{[]string{"disable-device-node-modification", "--all"}, "it takes none"},
		{[]string{"all"}, "-- before each"},
		{[]string{"all", "noop"}, "-- before each"},
		{[]string{"all", "--", "noop", "--"}, "-- before each"},
	} {
		_, _, err := call(state, c.args...)
		require.ErrorContains(t, err, c.want)
	}
	_, _, err := call("", "update-ldcache")
	require.ErrorContains(t, err, "standard input")
}

func TestHelpNamesEveryHookAndFlag(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}, {"help"}, {"hook", "--help"}} {
		stdout, stderr, err := call("", args...)
		require.NoError(t, err)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "Exit codes")
		for _, h := range hooks() {
			if h.about == "" {
				continue
			}
			require.Contains(t, stdout, "\n  "+h.name+"\n")
			help, _, err := call("", h.name, "--help")
			require.NoError(t, err)
			for _, f := range h.flags {
				require.Contains(t, stdout, f.name+" "+f.value)
				require.Contains(t, help, f.name+" "+f.value)
			}
		}
	}
}

// The arguments are those of the reference's specifications.
func TestArgumentsAreParsedAsByTheReference(t *testing.T) {
	_, state := bundled(t)
	file := t.TempDir() + "/state.json"
	require.NoError(t, os.WriteFile(file, []byte(state), 0o644))
	for _, args := range [][]string{
		{"noop"},
		{"update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", "/x"},
		{"hook", "update-ldcache", "--folder", "/x"},
		{"--debug", "--quiet=true", "update-ldcache", "-folder=/x,/y"},
		{"update-ldcache", "--folder", "/x", "--container-spec", "-"},
		{"enable-cuda-compat", "--host-driver-version=570.86.15"},
		{"enable-cuda-compat"},
		{"chmod", "--mode", "755", "--path", "/not/there"},
		{"update-application-profile"},
		{"hook", "update-application-profile", "--container-spec", "-"},
	} {
		_, stderr, err := call(state, args...)
		require.NoError(t, err, args)
		require.Empty(t, stderr, args)
	}
	_, _, err := call("", "update-ldcache", "--container-spec", file)
	require.NoError(t, err)
	v, _, err := parseFlags([]string{"--link", "a::/b,c::/d", "--link=e::/f"}, hooks()[0])
	require.NoError(t, err)
	require.Equal(t, []string{"a::/b", "c::/d", "e::/f"}, v["--link"])
}

func TestChmodChangesFoldersAndFilesOfTheContainerOnly(t *testing.T) {
	rootfs, state := bundled(t)
	outside := t.TempDir()
	require.NoError(t, os.Chmod(outside, 0o700))
	require.NoError(t, os.MkdirAll(rootfs+"/dev/dri", 0o700))
	require.NoError(t, os.WriteFile(rootfs+"/file", nil, 0o600))
	require.NoError(t, os.Symlink(outside, rootfs+"/out"))
	require.NoError(t, os.Symlink("/dev/dri", rootfs+"/in"))
	_, stderr, err := call(state, "chmod", "--mode", "1755", "--path", "/in", "--path", "/file", "--path", "/out", "--path", "/not/there")
	require.NoError(t, err)
	require.Empty(t, stderr)
	for name, want := range map[string]os.FileMode{"/dev/dri": 0o755 | os.ModeDir | os.ModeSticky, "/file": 0o755 | os.ModeSticky} {
		info, err := os.Stat(rootfs + name)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode())
	}
	info, err := os.Stat(outside)
	require.NoError(t, err)
	require.Equal(t, 0o700|os.ModeDir, info.Mode())
}

// bind mounts source on at until the end of the test.
func bind(t *testing.T, source, at string) {
	t.Helper()
	if err := unix.Mount(source, at, "", unix.MS_BIND, ""); errors.Is(err, unix.EPERM) {
		t.Skip("mounting needs root")
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// A directory of the host that is mounted into the container belongs to the host, whatever
// the configuration says.
func TestMountsFromTheHostAreNotWrittenTo(t *testing.T) {
	rootfs, state := bundled(t)
	volume := t.TempDir() // on the same file system
	for _, dir := range []string{"/etc/ld.so.conf.d", "/proc/x", "/real", "/usr"} {
		require.NoError(t, os.MkdirAll(rootfs+dir, 0o755))
		require.NoError(t, os.MkdirAll(volume+dir, 0o755))
	}
	require.NoError(t, os.WriteFile(rootfs+"/usr/file", nil, 0o644))
	require.NoError(t, os.Symlink("real", rootfs+"/link"))
	require.NoError(t, os.Symlink("/usr", volume+"/real/back"))
	for _, dir := range []string{"/etc", "/proc", "/real"} {
		bind(t, volume+dir, rootfs+dir)
	}
	bind(t, volume+"/etc", rootfs+"/usr")
	bind(t, rootfs+"/usr", rootfs+"/usr") // nor if it is mounted twice
	_, stderr, err := call(state, "create-symlinks", "--link", "a::/etc/a", "--link", "b::/link/sub/b", "--link", "c::/own/c",
		"--link", "d::/usr/new/d", "--link", "e::/link/back/e")
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(stderr, "mount from the host"), stderr)
	target, err := os.Readlink(rootfs + "/own/c")
	require.NoError(t, err)
	require.Equal(t, "c", target)
	_, stderr, err = call(state, "chmod", "--mode", "700", "--path", "/proc/x", "--path", "/etc", "--path", "/own")
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(stderr, "mount from the host"), stderr)
	_, stderr, err = call(state, "enable-cuda-compat", "--host-driver-version=550.54.15")
	require.NoError(t, err)
	require.Empty(t, stderr, "there is nothing to take back")
	require.Equal(t, []string{volume, volume + "/etc", volume + "/etc/ld.so.conf.d", volume + "/proc", volume + "/proc/x",
		volume + "/real", volume + "/real/back", volume + "/usr"}, names(t, volume))
	for name, want := range map[string]os.FileMode{volume + "/proc/x": 0o755, volume + "/etc": 0o755, rootfs + "/own": 0o700} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, want|os.ModeDir, info.Mode(), name)
	}
}

// An image whose user is not root must not read root's file in a volume through a link.
func TestWhatOnlyRootMayReadIsNotCopied(t *testing.T) {
	rootfs, state := bundled(t)
	volume := t.TempDir()
	elf, err := soleLibrary()
	require.NoError(t, err)
	cache := library.Cache{Entries: []library.Entry{{Name: "libsecret.so", Path: "/secret/libsecret.so", Flags: 0x303}}}.Bytes()
	for file, data := range map[string][]byte{rootfs + loader: elf, rootfs + musl: elf, rootfs + "/x/libcuda.so.1": elf, rootfs + "/v/none": nil, rootfs + "/etc/none": nil,
		volume + "/path": []byte("secret\n"), volume + "/cache": cache} {
		require.NoError(t, os.MkdirAll(path.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, data, 0o400))
	}
	require.NoError(t, errors.Join(os.Symlink("/v/path", rootfs+muslPath), os.Symlink("/v/cache", rootfs+"/etc/ld.so.cache")))
	bind(t, volume, rootfs+"/v")
	_, stderr, err := call(state, "update-ldcache", "--folder", "/x")
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(stderr, "mount from the host"), stderr)
	data, err := os.ReadFile(rootfs + "/etc/ld.so.cache")
	require.NoError(t, err)
	made, err := library.ParseCache(data)
	require.NoError(t, err)
	require.Len(t, made.Entries, 1)
	require.Equal(t, "libcuda.so.1", made.Entries[0].Name)
	target, err := os.Readlink(rootfs + muslPath)
	require.NoError(t, err)
	require.Equal(t, "/v/path", target, "it is left as it is")
}

func TestCompatConfIsWrittenOrRemoved(t *testing.T) {
	rootfs, state := bundled(t)
	conf := rootfs + ldso.CompatConf
	require.NoError(t, os.MkdirAll(rootfs+"/usr/local/cuda-12.8/compat", 0o755))
	require.NoError(t, os.Symlink("cuda-12.8", rootfs+"/usr/local/cuda"))
	data, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rootfs+"/usr/local/cuda-12.8/compat/libcuda.so.570.86.15", data, 0o755))
	for _, c := range []struct {
		driver string
		wanted bool
	}{{"550.54.15", true}, {"570.1", false}, {"550.54.15", true}, {"580.1", false}, {"580.1", false}} {
		_, stderr, err := call(state, "enable-cuda-compat", "--host-driver-version="+c.driver)
		require.NoError(t, err)
		require.Empty(t, stderr)
		if !c.wanted {
			require.NoFileExists(t, conf)
			continue
		}
		text, err := os.ReadFile(conf)
		require.NoError(t, err)
		require.Equal(t, "/usr/local/cuda-12.8/compat\n", string(text))
	}
}

func FuzzLink(f *testing.F) {
	f.Add("libcuda.so.1::/usr/lib/libcuda.so")
	f.Add("a::b::c")
	f.Add("::")
	f.Fuzz(func(t *testing.T, s string) {
		target, link, err := parseLink(s)
		if err == nil && (target == "" || !strings.HasPrefix(link, "/") || link == "/" || strings.Contains(link, "/../")) {
			t.Fatalf("%q: %q %q", s, target, link)
		}
	})
}
