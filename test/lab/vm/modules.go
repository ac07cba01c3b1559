package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/built"
)

// Modules maps file names, such as "nvidia-uvm.ko", to kernel modules.
type Modules map[string][]byte

// BuildStubs returns the stub modules of simulator/kernel, built for a kernel with a
// version of the driver: nvidia.ko, nvidia-uvm.ko, nvidia-modeset.ko, nvidia-drm.ko,
// nvidia-peermem.ko. They have no symbols for debuggers, and no signature.
func BuildStubs(t testing.TB, k *Kernel, version string) Modules {
	t.Helper()
	cache, err := binaries.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	m, err := buildStubs(t.Context(), cache, filepath.Join(built.Root(), "simulator/kernel"), k, version)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// buildStubs builds modules, or returns them from the cache where the same sources have
// been built for the same kernel and version.
func buildStubs(ctx context.Context, cache, source string, k *Kernel, version string) (Modules, error) {
	digest, err := digestFolder(source)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(cache, "modules", strings.Join([]string{k.Release, version, digest}, "_"))
	if m, err := readModules(at); err == nil {
		return m, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return nil, fmt.Errorf("cache of modules: %w; set GPUREADY_CACHE to a folder that can be written", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(at), ".building-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	src, out := filepath.Join(work, "src"), filepath.Join(work, "out")
	if err := os.CopyFS(src, os.DirFS(source)); err != nil {
		return nil, err
	}
	if err := k.Make(ctx, src, "modules", "DRIVER_VERSION="+version); err != nil {
		return nil, err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}
	objects, err := filepath.Glob(filepath.Join(src, "*.ko"))
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if _, err := program(ctx, work, "strip", "--strip-debug", "-o", filepath.Join(out, filepath.Base(object)), object); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(out, at); err != nil && !errors.Is(err, fs.ErrExist) { // or another process was first
		return nil, err
	}
	return readModules(at)
}

// digestFolder returns a digest of the files of a folder.
func digestFolder(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", e.Name(), len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func readModules(dir string) (Modules, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	m := Modules{}
	for _, e := range entries {
		if m[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Below returns the modules as files of a machine, below a folder.
func (m Modules) Below(at string) Files {
	files := Files{}
	for name, data := range m {
		files[filepath.Join(at, name)] = File{Data: data}
	}
	return files
}

// Key is a key that signs modules, with its certificate, both as PEM files.
type Key struct {
	Private     string
	Certificate string
	Passphrase  string
}

// Snakeoil is the key that machines with Secure Boot trust. Debian's package ovmf publishes it
// for tests.
var Snakeoil = Key{
	Private:     "/usr/share/ovmf/PkKek-1-snakeoil.key",
	Certificate: "/usr/share/ovmf/PkKek-1-snakeoil.pem",
	Passphrase:  "snakeoil",
}

// NewKey makes a key that no machine trusts.
func NewKey(t testing.TB) Key {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "a key that nobody trusts"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		SubjectKeyId: []byte{1, 2, 3, 4},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return Key{Private: write("key.pem", "PRIVATE KEY", encoded), Certificate: write("certificate.pem", "CERTIFICATE", certificate)}
}

// Sign returns the modules with signatures, made by the kernel's own program.
func (k *Kernel) Sign(t testing.TB, m Modules, key Key) Modules {
	t.Helper()
	own, _, err := k.Headers()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	signed := maps.Clone(m)
	for name, data := range m {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		// sign-file reads the passphrase from its environment.
		_, err := program(t.Context(), dir, "env", "KBUILD_SIGN_PIN="+key.Passphrase,
			filepath.Join(own, "scripts/sign-file"), "sha256", key.Private, key.Certificate, path)
		if err != nil {
			t.Fatal(err)
		}
		if signed[name], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(signed[name], data) {
			t.Fatalf("sign-file left %s as it was", name)
		}
	}
	return signed
}
