package serve

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
)

// signer returns a new key and the file of its certificate.
func signer(t *testing.T) (sign.Key, string) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "signs modules"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "certificate.der")
	require.NoError(t, os.WriteFile(file, der, 0o644))
	return sign.Key{Private: private, Certificate: certificate}, file
}

// Only the wanted modules of a registry or a folder of the node are used, after they were
// verified, whatever other files lie beside them.
func TestPulledModulesAreVerified(t *testing.T) {
	key, certificate := signer(t)
	good := map[string][]byte{"nvidia.ko": module(t, "nvidia"), "nvidia-uvm.ko": module(t, "nvidia-uvm", "nvidia")}
	changed := func(name, from, to string) map[string][]byte {
		files := maps.Clone(good)
		files[name] = bytes.Replace(files[name], []byte(from), []byte(to), 1)
		return files
	}
	with := func(name string, data []byte) map[string][]byte {
		files := changed("nvidia.ko", "", "")
		files[name] = data
		return files
	}
	for _, c := range []struct {
		name   string
		files  map[string][]byte
		signed bool // by the key, those at the top
		wants  bool // the key's signature
		err    string
		reason string
	}{
		{name: "as they should be", files: good},
		{name: "signed", files: good, signed: true, wants: true},
		{name: "unsigned", files: good, wants: true, err: "is not signed", reason: "SignatureRejected"},
		{name: "another one in a folder beside", files: with("a/nvidia.ko", module(t, "nvidia")), signed: true, wants: true},
		{name: "compressed ones beside", files: with("nvidia.ko.xz", []byte("xz")), signed: true, wants: true},
		{name: "in a folder alone", files: map[string][]byte{"a/nvidia.ko": good["nvidia.ko"]}, wants: true, err: "it has no nvidia.ko"},
		{name: "one too few", files: map[string][]byte{"nvidia.ko": good["nvidia.ko"]}, err: "it has no nvidia-uvm.ko"},
		{name: "another kernel", files: changed("nvidia-uvm.ko", "el9", "el8"), err: "is built for kernel"},
		{name: "another driver", files: changed("nvidia.ko", "580.95.05", "580.95.06"), err: "has version"},
		{name: "another kind", files: changed("nvidia.ko", "Dual MIT/GPL", "NVIDIA      "), err: "nvidia.ko is not of the open kind"},
		{name: "another processor", files: changed("nvidia.ko", "\x01\x00\x3e\x00", "\x01\x00\xb7\x00"), err: "is compiled for EM_AARCH64"},
		{name: "halves where a key has to sign", files: with("halves/open/halves.json", []byte("{}")), signed: true, wants: true, err: "before their signature can be checked", reason: "SignatureRejected"},
		{name: "halves that run a program", files: with("halves/open/halves.json", []byte(`{"release":"`+release+`","modules":[{"name":"nvidia","linker":"/evil","objects":[{"path":"a.o"}]}]}`)), err: `"/evil" is not a linker`, reason: "BuildFailed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := buildRequest{destination: filepath.Join(t.TempDir(), "modules"), Modules: image.Modules{Kernel: release, Version: "580.95.05", Kind: "open", Names: []string{"nvidia", "nvidia-uvm"}}}
			for name, data := range c.files {
				at := filepath.Join(o.destination, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
				require.NoError(t, os.WriteFile(at, data, 0o644))
			}
			if c.signed {
				require.NoError(t, key.SignAll(o.destination))
			}
			d := &Driver{}
			if c.wants {
				d.Sources.SignCertificate = certificate
			}
			err := d.acceptPulled(t.Context(), o)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				e, is := errors.AsType[*kernel.Error](err)
				require.Equal(t, c.reason != "", is)
				if is {
					require.EqualValues(t, c.reason, e.Reason)
				}
				return
			}
			require.NoError(t, err)
			left, err := os.ReadDir(o.destination)
			require.NoError(t, err)
			require.Len(t, left, 2)
		})
	}
}
