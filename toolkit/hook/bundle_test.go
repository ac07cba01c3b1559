package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadFindsTheRootAndTheMounts(t *testing.T) {
	dir := t.TempDir()
	config := `{"ociVersion":"1.0.2","root":{"path":"rootfs","readonly":true},
		"mounts":[{"destination":"/usr/lib/libcuda.so.1","source":"/x","options":["ro","rbind"]},{"destination":"dev/../tmp","type":"tmpfs"},{"destination":"/v/","type":"bind"}],"hooks":{}}`
	require.NoError(t, os.WriteFile(dir+"/config.json", []byte(config), 0o644))
	for _, key := range []string{"bundle", "bundlePath"} {
		b, err := readBundle(strings.NewReader(fmt.Sprintf(`{"id":"x","pid":1,%q:%q}`, key, dir)))
		require.NoError(t, err)
		require.Equal(t, bundle{Root: filepath.Join(dir, "rootfs"), Mounts: []string{"/usr/lib/libcuda.so.1", "/tmp", "/v"}}, b)
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	state := fmt.Sprintf(`{"bundle":%q}`, dir)
	config := func(s string) { require.NoError(t, os.WriteFile(dir+"/config.json", []byte(s), 0o644)) }
	for _, c := range []struct{ name, state, config, want string }{
		{"nothing", "", `{}`, "run by a container runtime"},
		{"relative bundle", `{"bundle":"x"}`, `{}`, "absolute"},
		{"no root", state, `{}`, "root.path is missing"},
		{"host's root", state, `{"root":{"path":"/"}}`, "cannot be a container's"},
		{"host's root by dots", state, `{"root":{"path":"/a/.."}}`, "cannot be a container's"},
		{"truncated", state, `{"root":{"pa`, "config.json"},
		{"truncated state", `{"ociVersion":"1.0.2","bundle":"/x`, `{}`, "unexpected EOF"},
		{"state of another type", `[1,2]`, `{}`, "cannot unmarshal"},
		{"deep state", strings.Repeat(`{"a":`, 100_000), `{}`, "exceeded max depth"},
		{"bundle with a zero byte", `{"bundle":"/a\u0000b"}`, `{}`, "absolute"},
		{"more than one value", state, `{"root":{"path":"a"}} {}`, "after top-level value"},
		{"endless state", `{"bundle":"/` + strings.Repeat("x", maxState) + `"}`, `{}`, "more than"},
	} {
		config(c.config)
		_, err := readBundle(strings.NewReader(c.state))
		require.ErrorContains(t, err, c.want, c.name)
	}
}

// A runtime that keeps the pipe open, and a config.json that is one, are not waited for.
func TestReadWaitsForNothing(t *testing.T) {
	dir := t.TempDir()
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = fmt.Fprintf(w, `{"bundle":%q}`, dir) }()
	require.NoError(t, syscall.Mkfifo(dir+"/config.json", 0o644))
	_, err := readBundle(r)
	require.ErrorContains(t, err, dir+"/config.json: not a regular file")
	require.NoError(t, os.Remove(dir+"/config.json"))
	require.NoError(t, os.Symlink("/dev/zero", dir+"/config.json"))
	_, err = readBundle(strings.NewReader(fmt.Sprintf(`{"bundle":%q}`, dir)))
	require.ErrorContains(t, err, "not a regular file")
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.0.2","id":"c","pid":1,"bundle":"/run/c"}`))
	f.Add([]byte(`{"bundle":"../.."}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, err := parseState(strings.NewReader(string(data)))
		if err == nil && (!filepath.IsAbs(dir) || filepath.Clean(dir) != dir) {
			t.Fatalf("bundle %q", dir)
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"root":{"path":"rootfs"},"mounts":[{"destination":"/a"}]}`))
	f.Add([]byte(`{"root":{"path":"/.."}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseConfig(strings.NewReader(string(data)), "/run/c")
		if err != nil {
			return
		}
		if b.Root == "/" || !filepath.IsAbs(b.Root) || filepath.Clean(b.Root) != b.Root {
			t.Fatalf("root %q", b.Root)
		}
		for _, m := range b.Mounts {
			if !filepath.IsAbs(m) || filepath.Clean(m) != m {
				t.Fatalf("mount %q", m)
			}
		}
	})
}
