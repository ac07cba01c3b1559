package registry

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/driver"
)

func TestFlawNamesConfigMapAndKeyAndKeepsTheOthers(t *testing.T) {
	host, ca := serve(t, newQuietRegistry(t))
	unlike := bytes.Replace(ca, []byte("\n"), []byte("\nAAAA"), 1)
	for name, c := range map[string]struct {
		files   map[string][]byte
		flaw    string
		trusted bool
	}{
		"good":                   {map[string][]byte{"a.crt": fmt.Appendf(nil, "# Our own CA\n%s# the end\n%s", ca, ca)}, "", true},
		"no keys":                {nil, "ConfigMap ns/certs: it has no keys", false},
		"no certificate":         {map[string][]byte{"README": []byte("see the wiki"), "a.crt": ca}, "ConfigMap ns/certs: key README: no certificate in PEM form", true},
		"another kind":           {map[string][]byte{"key.pem": []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")}, "key key.pem: no certificate in PEM form", false},
		"not what it says":       {map[string][]byte{"a.crt": append(bytes.Clone(ca), unlike...)}, "key a.crt: certificate 2: x509", true},
		"cut off":                {map[string][]byte{"a.crt": append(bytes.Clone(ca), ca[:len(ca)/2]...)}, "key a.crt: 1 of 2 certificates are not PEM", true},
		"several keys, one line": {map[string][]byte{"a": []byte("x"), "b": []byte("y")}, "key a: no certificate in PEM form, key b: no certificate in PEM form", false},
	} {
		got := client(t, Options{}).Lookup(t.Context(), host+"/"+tag, Access{Bundle: Bundle{Name: "ns/certs", Files: c.files}})
		if c.flaw == "" {
			require.Empty(t, got.AccessProblem, name)
		}
		require.Contains(t, got.AccessProblem, c.flaw, name)
		require.LessOrEqual(t, len(got.AccessProblem), maxWhy)
		require.Equal(t, c.trusted, got.State == driver.Present, "%s: %+v", name, got)
	}
	require.Empty(t, client(t, Options{}).Lookup(t.Context(), "No Image", Access{}).AccessProblem)
}

func FuzzBundlesNeverPanic(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		roots := x509.NewCertPool()
		flaw := Bundle{Name: "ns/certs", Files: map[string][]byte{"a": file}}.addTo(roots)
		if flaw == "" && roots.Equal(x509.NewCertPool()) {
			t.Fatal("a bundle without a certificate has no flaw")
		}
	})
}
