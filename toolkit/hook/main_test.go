package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// container makes a bundle and returns its root file system and its state.
func container(t *testing.T) (rootfs, state string) {
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
	rootfs, state := container(t)
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

func TestUnknownHooksStopNoContainer(t *testing.T) {
	stdout, stderr, err := call("", "enable-something-new", "--whatever", "x")
	require.NoError(t, err)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "enable-something-new")
}

func TestWrongUseSaysWhatIsRight(t *testing.T) {
	_, state := container(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"create-symlinks", "--link"}, "wants a value"},
		{[]string{"create-symlinks", "--folder", "x"}, "it takes --link"},
		{[]string{"create-symlinks", "--link", "nonsense"}, "target::path"},
		{[]string{"create-symlinks", "--link", "a::/"}, "target::path"},
		{[]string{"update-ldcache", "x"}, "it takes --folder"},
	} {
		_, _, err := call(state, c.args...)
		require.ErrorContains(t, err, c.want)
	}
	_, _, err := call("", "update-ldcache")
	require.ErrorContains(t, err, "standard input")
	stdout, _, err := call("", "--help")
	require.NoError(t, err)
	require.Contains(t, stdout, "Exit codes")
	_, _, err = call(state, "update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", "/x")
	require.NoError(t, err)
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
