package driver

import (
	"crypto"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// snakeoilFile returns the key file that machines with Secure Boot trust, without its passphrase.
func snakeoilFile(t testing.TB) string {
	t.Helper()
	plain := filepath.Join(t.TempDir(), "key.pem")
	out, err := exec.CommandContext(t.Context(), "openssl", "rsa", "-in", vm.Snakeoil.Private,
		"-passin", "pass:"+vm.Snakeoil.Passphrase, "-out", plain).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return plain
}

// snakeoilKey returns that key.
func snakeoilKey(t testing.TB) sign.Key {
	t.Helper()
	key, err := sign.LoadKey(snakeoilFile(t), vm.Snakeoil.Certificate)
	require.NoError(t, err)
	return key
}

// TestSecureBootTrustsOurSignatures checks that a machine with Secure Boot loads modules that we signed.
// The signatures equal, byte for byte, those of the kernel's own program.
func TestSecureBootTrustsOurSignatures(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	stubs := vm.BuildStubs(t, k, version)
	key := snakeoilKey(t)
	dir := t.TempDir()
	for name, data := range stubs {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, data, 0o644))
		require.NoError(t, key.Sign(path, crypto.SHA256))
	}
	signed := read(t, dir)
	require.Equal(t, k.Sign(t, stubs, vm.Snakeoil), signed)

	n := boot(t, vm.Config{Kernel: k, SecureBoot: true, Files: vm.Merge(k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, signed))})
	require.Contains(t, n.driver("check", withoutGPU()...).Stdout, "Secure Boot is on")
	n.loads()
	require.Len(t, n.modules(), 3)
	n.unloads()
}
