package bundle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadFindsTheRootAndTheMounts(t *testing.T) {
	dir := t.TempDir()
	config := `{"ociVersion":"1.0.2","root":{"path":"rootfs","readonly":true},
		"mounts":[{"destination":"/usr/lib/libcuda.so.1","source":"/x"},{"destination":"dev/../tmp"}],"hooks":{}}`
	require.NoError(t, os.WriteFile(dir+"/config.json", []byte(config), 0o644))
	for _, key := range []string{"bundle", "bundlePath"} {
		b, err := Read(strings.NewReader(fmt.Sprintf(`{"id":"x","pid":1,%q:%q}`, key, dir)))
		require.NoError(t, err)
		require.Equal(t, Bundle{Root: filepath.Join(dir, "rootfs"), Mounts: []string{"/usr/lib/libcuda.so.1", "/tmp"}}, b)
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
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
		{"endless state", `{"bundle":"/` + strings.Repeat("x", maxState) + `"}`, `{}`, "more than"},
	} {
		config(c.config)
		_, err := Read(strings.NewReader(c.state))
		require.ErrorContains(t, err, c.want, c.name)
	}
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
