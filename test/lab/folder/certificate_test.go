package folder

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheAuthorityAuthenticatesServersAndClients(t *testing.T) {
	a, err := NewAuthority("test")
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(a.PEM))
	pair, err := a.Issue(Subject{Name: "system:node:n1", Groups: []string{"system:nodes"}, Hosts: []string{"n1", "10.88.1.1"}})
	require.NoError(t, err)
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)

	cert := loaded.Leaf
	require.Equal(t, "system:node:n1", cert.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	for _, host := range []string{"n1", "10.88.1.1"} {
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
		require.NoError(t, err)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)

	client, err := a.Issue(Subject{Name: "admin"})
	require.NoError(t, err)
	loaded, err = tls.X509KeyPair(client.Cert, client.Key)
	require.NoError(t, err)
	_, err = loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.Error(t, err, "a client serves nobody")
}

func TestAuthoritiesDoNotVouchForEachOther(t *testing.T) {
	a, err := NewAuthority("test")
	require.NoError(t, err)
	b, err := NewAuthority("test")
	require.NoError(t, err)
	pair, err := a.Issue(Subject{Name: "admin"})
	require.NoError(t, err)
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.PEM)
	_, err = loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	require.Error(t, err)
}

func TestKubeconfigIsReadBack(t *testing.T) {
	pair := KeyPair{Cert: []byte("cert"), Key: []byte("key")}
	data, err := EncodeKubeconfig("https://127.0.0.1:1", "test", []byte("authority"), pair)
	require.NoError(t, err)
	var generic map[string]any
	require.NoError(t, json.Unmarshal(data, &generic))
	require.Equal(t, "test", generic["current-context"])
	server, authority, client, err := parseKubeconfig(data)
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:1", server)
	require.Equal(t, "authority", string(authority))
	require.Equal(t, pair, client)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"clusters":[{}],"users":[{}]}`))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _, _, _ = parseKubeconfig(data) })
}
