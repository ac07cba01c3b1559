package folder

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime is the validity of certificates.
const lifetime = 30 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// PEM is the authority's certificate, for peers that trust it.
	PEM []byte
}

// KeyPair is a certificate and its key, both PEM.
type KeyPair struct{ Cert, Key []byte }

// Subject is the owner of a certificate. A client has Name and Groups; a server is valid for
// Hosts, which are names and addresses.
type Subject struct {
	Name   string
	Groups []string
	Hosts  []string
}

// NewAuthority makes an authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(Subject{Name: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key, PEM: encode("CERTIFICATE", der)}, nil
}

// Issue creates a key and signs a certificate for it.
func (a *Authority) Issue(s Subject) (KeyPair, error) {
	key, pemKey, err := NewKey()
	if err != nil {
		return KeyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate(s), a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign a certificate for %s: %w", s.Name, err)
	}
	return KeyPair{Cert: encode("CERTIFICATE", der), Key: pemKey}, nil
}

// NewKey creates a key, and returns it as PEM too.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func certificate(s Subject) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	c := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:    time.Now().Add(-time.Hour), // a node's clock is this machine's, but it may be set
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range s.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	if len(s.Hosts) > 0 {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return c
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// kubeconfig holds the parts of a client's configuration that this package writes.
type kubeconfig struct {
	APIVersion     string        `json:"apiVersion"`
	Kind           string        `json:"kind"`
	CurrentContext string        `json:"current-context"`
	Clusters       []kubeCluster `json:"clusters"`
	Users          []kubeUser    `json:"users"`
	Contexts       []kubeContext `json:"contexts"`
}

type kubeCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server    string `json:"server"`
		Authority []byte `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type kubeUser struct {
	Name string `json:"name"`
	User struct {
		Cert []byte `json:"client-certificate-data"`
		Key  []byte `json:"client-key-data"`
	} `json:"user"`
}

type kubeContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

// EncodeKubeconfig returns a self-contained client configuration. It is JSON, which is YAML.
func EncodeKubeconfig(server, name string, authority []byte, client KeyPair) ([]byte, error) {
	c, u, b := kubeCluster{Name: name}, kubeUser{Name: name}, kubeContext{Name: name}
	c.Cluster.Server, c.Cluster.Authority = server, authority
	u.User.Cert, u.User.Key = client.Cert, client.Key
	b.Context.Cluster, b.Context.User = name, name
	return json.MarshalIndent(kubeconfig{
		APIVersion: "v1", Kind: "Config", CurrentContext: name,
		Clusters: []kubeCluster{c}, Users: []kubeUser{u}, Contexts: []kubeContext{b},
	}, "", "  ")
}

// parseKubeconfig reads what EncodeKubeconfig wrote.
func parseKubeconfig(data []byte) (server string, authority []byte, client KeyPair, err error) {
	var k kubeconfig
	if err := json.Unmarshal(data, &k); err != nil {
		return "", nil, KeyPair{}, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 {
		return "", nil, KeyPair{}, fmt.Errorf("kubeconfig: %d clusters and %d users instead of one each", len(k.Clusters), len(k.Users))
	}
	c, u := k.Clusters[0].Cluster, k.Users[0].User
	return c.Server, c.Authority, KeyPair{Cert: u.Cert, Key: u.Key}, nil
}
