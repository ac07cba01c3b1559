package sign

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
)

// newKey writes a new key and its certificate to files.
func newKey(t testing.TB) (key, certificate string) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(42), Subject: pkix.Name{CommonName: "signs modules"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	key, certificate = filepath.Join(dir, "key.pem"), filepath.Join(dir, "certificate.der")
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	require.NoError(t, os.WriteFile(certificate, der, 0o644))
	return key, certificate
}

func TestSignatureReplacesTheOldOne(t *testing.T) {
	k, err := LoadKey(newKey(t))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "nvidia.ko")
	require.NoError(t, os.WriteFile(path, []byte("a module"), 0o640))
	require.NoError(t, k.Sign(path, crypto.SHA256))
	once, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, k.Sign(path, crypto.SHA512))
	require.NoError(t, k.Sign(path, crypto.SHA256))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, once, again)
	plain, _, err := splitSignature(again)
	require.NoError(t, err)
	require.Equal(t, "a module", string(plain))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestUnusableKeysAreReported(t *testing.T) {
	key, certificate := newKey(t)
	otherKey, _ := newKey(t)
	encrypted := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(encrypted, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), 0o600))
	for _, c := range []struct{ key, certificate, want string }{
		{otherKey, certificate, "it is not the certificate of the key in " + otherKey},
		{encrypted, certificate, "it has a passphrase"},
		{certificate, certificate, "it is not a PEM file"},
		{"/none", certificate, "no such file"},
		{key, key, certificateError(t, key)},
	} {
		_, err := LoadKey(c.key, c.certificate)
		e, ok := errors.AsType[*kernel.Error](err)
		require.True(t, ok)
		require.Equal(t, output.ReasonBuildFailed, e.Reason)
		require.ErrorContains(t, err, c.want)
	}
	k, err := LoadKey(key, certificate)
	require.NoError(t, err)
	require.ErrorContains(t, k.Sign("/none", crypto.SHA256), "no such file")
	path := filepath.Join(t.TempDir(), "a.ko")
	require.NoError(t, os.WriteFile(path, []byte(magic), 0o644))
	require.ErrorContains(t, k.Sign(path, crypto.SHA256), "its signature cannot be read")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.ErrorContains(t, k.Sign(path, crypto.MD5), "is not SHA-256")
}

func certificateError(t testing.TB, path string) string {
	t.Helper()
	_, err := loadCertificate(path)
	require.Error(t, err)
	return err.Error()
}

// Signature returns the bytes that Sign appends, also valid for a copy of the module. Verify
// accepts only them.
func TestVerify(t *testing.T) {
	keyFile, certificateFile := newKey(t)
	k, err := LoadKey(keyFile, certificateFile)
	require.NoError(t, err)
	by, err := LoadCertificate(certificateFile)
	require.NoError(t, err)
	other, err := LoadKey(newKey(t))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "nvidia.ko")
	write := func(data []byte) { require.NoError(t, os.WriteFile(path, data, 0o644)) }
	read := func() []byte {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return data
	}
	module := []byte("a module")
	write(module)
	require.ErrorContains(t, Verify(path, by), "it is not signed")
	for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		write(module)
		require.NoError(t, k.Sign(path, hash))
		require.NoError(t, Verify(path, by))
		signed := read()
		end, err := k.Signature(path, hash)
		require.NoError(t, err)
		require.Equal(t, signed, append(bytes.Clone(module), end...))
		for at := range signed[:len(signed)-len(magic)] {
			changed := bytes.Clone(signed)
			changed[at] ^= 1
			write(changed)
			_ = Verify(path, by) // most of the message is not signed itself, but it ends
			if at < len(module) {
				require.Error(t, Verify(path, by))
			}
		}
	}
	write(module)
	require.NoError(t, other.Sign(path, crypto.SHA256))
	require.ErrorIs(t, Verify(path, by), rsa.ErrVerification, "it has the same name and serial number")
}

func FuzzVerify(f *testing.F) {
	k, err := LoadKey(newKey(f))
	require.NoError(f, err)
	end, err := k.signatureAndTrailer([]byte("module"), crypto.SHA256)
	require.NoError(f, err)
	f.Add(append([]byte("module"), end...))
	f.Add([]byte(magic))
	path := filepath.Join(f.TempDir(), "nvidia.ko")
	f.Fuzz(func(t *testing.T, signed []byte) {
		module, _, err := splitSignature(signed)
		if err == nil {
			require.Equal(t, module, signed[:len(module)])
		}
		require.NoError(t, os.WriteFile(path, signed, 0o644))
		if Verify(path, k.Certificate) == nil {
			require.Equal(t, "module", string(module))
		}
	})
}
