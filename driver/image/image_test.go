package image

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// modules returns a folder with files.
func modules(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// serve returns a registry with an image "base:1" and its address.
func serve(t *testing.T) (Registry, string) {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	base, err := random.Image(1000, 2)
	require.NoError(t, err)
	ref, err := name.ParseReference(host + "/base:1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, base))
	return Registry{Insecure: []string{host}}, host
}

func pulled(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			files[strings.TrimPrefix(path, dir+"/")] = string(text)
		}
		return err
	}))
	return files
}

// Modules that one node pushes are pulled by another, for several kernels and kinds. A second
// push gives the same image.
func TestPushAndPull(t *testing.T) {
	r, host := serve(t)
	files := map[string]string{"nvidia.ko": "a module", "sub/nvidia-uvm.ko": "another"}
	m := Modules{Kernel: "6.1.0-50-amd64", Kind: "open", Version: "580.1", Sources: "s1"}
	to := host + "/gpu/driver:580.1-6.1.0-50-amd64-debian12"
	push := func(files map[string]string, m Modules) string {
		layer, err := NewLayer(modules(t, files), ModulesDir(m.Kernel))
		require.NoError(t, err)
		ref, err := r.Push(t.Context(), host+"/base:1", to, layer, m)
		require.NoError(t, err)
		return ref
	}
	pull := func(m Modules) (map[string]string, error) {
		dir := filepath.Join(t.TempDir(), "new")
		err := r.Pull(t.Context(), to, m, dir)
		if err != nil {
			require.NoDirExists(t, dir)
			return nil, err
		}
		return pulled(t, dir), nil
	}
	_, err := pull(m)
	require.ErrorIs(t, err, ErrAbsent)

	first := push(files, m)
	require.Equal(t, first, push(files, m))
	got, err := pull(m)
	require.NoError(t, err)
	require.Equal(t, files, got)

	other := m
	other.Kind, other.Sources = "proprietary", ""
	_, err = pull(other)
	require.ErrorIs(t, err, ErrAbsent)
	push(map[string]string{"nvidia.ko": "proprietary"}, other)
	for _, m := range []Modules{m, other} {
		_, err = pull(m)
		require.NoError(t, err)
	}

	patched := m
	patched.Sources = "s2"
	_, err = pull(patched)
	require.ErrorIs(t, err, ErrAbsent, "it was compiled of other sources")
	push(map[string]string{"nvidia.ko": "patched"}, patched)
	got, err = pull(patched)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"nvidia.ko": "patched"}, got)
}

// Nodes of two architectures may run kernels of one release: neither takes the other's
// modules, or pushes over them.
func TestArchitecturesDoNotMix(t *testing.T) {
	r, host := serve(t)
	m := Modules{Kernel: "6.8.0-1-generic", Kind: "open", Version: "580.1"}
	to := host + "/gpu/driver:580.1-6.8.0-1-generic-ubuntu24.04"
	layer, err := NewLayer(modules(t, map[string]string{"nvidia.ko": "a module"}), ModulesDir(m.Kernel))
	require.NoError(t, err)
	write := func(name string, change func(*v1.ConfigFile)) {
		base, err := random.Image(10, 1)
		require.NoError(t, err)
		i, err := AddLayer(base, layer, m)
		require.NoError(t, err)
		config, err := i.ConfigFile()
		require.NoError(t, err)
		changed := config.DeepCopy()
		change(changed)
		i, err = mutate.ConfigFile(i, changed)
		require.NoError(t, err)
		require.NoError(t, r.Write(t.Context(), name, i))
	}
	write(to, func(c *v1.ConfigFile) { c.Architecture = "riscv64" })
	require.ErrorIs(t, r.Pull(t.Context(), to, m, filepath.Join(t.TempDir(), "new")), ErrAbsent)
	_, err = r.Push(t.Context(), host+"/base:1", to, layer, m)
	require.ErrorContains(t, err, "push to another repository")
	write(to, func(c *v1.ConfigFile) { c.Architecture = runtime.GOARCH })
	require.NoError(t, r.Pull(t.Context(), to, m, filepath.Join(t.TempDir(), "new")))

	other, err := random.Image(10, 1)
	require.NoError(t, err)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "riscv64"}}})
	ref, err := name.ParseReference(to)
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(ref, index))
	require.ErrorIs(t, r.Pull(t.Context(), to, m, filepath.Join(t.TempDir(), "new")), ErrAbsent)
	there, err := r.HasModules(t.Context(), to, m)
	require.NoError(t, err)
	require.False(t, there)
	_, err = r.Push(t.Context(), host+"/base:1", to, layer, m)
	require.ErrorContains(t, err, "push to another repository")
}

// Signed modules replace unsigned ones.
func TestSignedModulesReplaceUnsignedOnes(t *testing.T) {
	r, host := serve(t)
	m := Modules{Kernel: "6.1", Kind: "open", Version: "580.1"}
	to := host + "/gpu/driver:580.1-6.1-debian12"
	push := func(text string, m Modules) {
		layer, err := NewLayer(modules(t, map[string]string{"nvidia.ko": text}), ModulesDir(m.Kernel))
		require.NoError(t, err)
		_, err = r.Push(t.Context(), host+"/base:1", to, layer, m)
		require.NoError(t, err)
	}
	has := func(signer string, want bool) {
		t.Helper()
		m := m
		m.Signer = signer
		there, err := r.HasModules(t.Context(), to, m)
		require.NoError(t, err)
		require.Equal(t, want, there)
	}
	push("unsigned", m)
	has("", true)
	has("key 1", false)
	signed := m
	signed.Signer = "key 1"
	push("signed", signed)
	has("key 1", true)
	has("key 2", false)
	has("", true)
	signed.Signer = "key 2"
	require.ErrorIs(t, r.Pull(t.Context(), to, signed, filepath.Join(t.TempDir(), "new")), ErrAbsent)
}

// Plain HTTP is used only for the named registries, even on this machine.
func TestPlainHTTPHasToBeAllowed(t *testing.T) {
	_, host := serve(t)
	_, err := Registry{}.Read(t.Context(), host+"/base:1")
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "plain HTTP is not allowed")
}

// A layer is the same for the same files, whoever wrote them and when.
func TestLayersAreReproducible(t *testing.T) {
	digest := func() v1.Hash {
		layer, err := NewLayer(modules(t, map[string]string{"b.ko": "b", "a/a.ko": "a", "a.ko": "a"}), "driver/lib/modules/6.1")
		require.NoError(t, err)
		d, err := layer.Digest()
		require.NoError(t, err)
		return d
	}
	require.Equal(t, digest(), digest())
}

// An image from a registry cannot make a node write elsewhere, or without end.
func TestHostileLayers(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"a link":           {{Typeflag: tar.TypeSymlink, Name: "driver/lib/modules/6.1/nvidia.ko", Linkname: "/etc/shadow"}},
		"a hard link":      {{Typeflag: tar.TypeLink, Name: "driver/lib/modules/6.1/nvidia.ko", Linkname: "/etc/shadow"}},
		"a device":         {{Typeflag: tar.TypeChar, Name: "driver/lib/modules/6.1/nvidia.ko"}},
		"the same twice":   {{Typeflag: tar.TypeReg, Name: "driver/lib/modules/6.1/a.ko"}, {Typeflag: tar.TypeReg, Name: "driver/lib/modules/6.1/a.ko"}},
		"a file as folder": {{Typeflag: tar.TypeReg, Name: "driver/lib/modules/6.1/a"}, {Typeflag: tar.TypeReg, Name: "driver/lib/modules/6.1/a/b.ko"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range headers {
				require.NoError(t, w.WriteHeader(&h))
			}
			require.NoError(t, w.Close())
			require.Error(t, unpackFiles(&b, "driver/lib/modules/6.1", filepath.Join(t.TempDir(), "new"), layerBounds))
		})
	}
	t.Run("names that lead out", func(t *testing.T) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range []string{"../../x", "/etc/x", "driver/lib/modules/6.1/../x", "driver/lib/modules/6.1/../6.1/y"} {
			require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name}))
		}
		require.NoError(t, w.Close())
		dir := filepath.Join(t.TempDir(), "new")
		require.NoError(t, unpackFiles(&b, "driver/lib/modules/6.1", dir, layerBounds))
		require.Equal(t, map[string]string{"y": ""}, pulled(t, dir))
	})
	t.Run("without end", func(t *testing.T) {
		for want, limit := range map[string]bounds{"more than 1 files": {1, 100}, "more than 3 bytes": {10, 3}} {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, name := range []string{"a.ko", "b.ko"} {
				require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "driver/lib/modules/6.1/" + name, Size: 2}))
				_, err := w.Write([]byte("ko"))
				require.NoError(t, err)
			}
			require.NoError(t, w.Close())
			require.ErrorContains(t, unpackFiles(&b, "driver/lib/modules/6.1", filepath.Join(t.TempDir(), "new"), limit), want)
		}
	})
	t.Run("a layer that is not the one of the label", func(t *testing.T) {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil })
		require.NoError(t, err)
		base, err := random.Image(10, 1)
		require.NoError(t, err)
		i, err := AddLayer(base, layer, Modules{Kernel: "6.1", Kind: "open", Version: "1"})
		require.NoError(t, err)
		require.Error(t, unpackLayer(i, Modules{Kernel: "6.1", Layer: "sha256:" + strings.Repeat("0", 64)}, filepath.Join(t.TempDir(), "new")))
	})
}

func TestRepositoriesHaveNoTag(t *testing.T) {
	require.NoError(t, CheckRepository("registry.example.com:5000/gpu/driver"))
	for _, bad := range []string{"", "registry/gpu:1", "registry/gpu@sha256:00", "Registry/GPU"} {
		require.Error(t, CheckRepository(bad), bad)
	}
}
