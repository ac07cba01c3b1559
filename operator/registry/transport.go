package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxBody bounds what is read of a response, in bytes. The largest is a manifest (OCI
	// distribution specification: registries should accept 4 MiB).
	maxBody = 4 << 20
	// maxCA bounds what is read of a file of certificates, in bytes.
	maxCA = 1 << 20
)

// transport returns the transport of one lookup and a function that closes its connections. They
// are not reused, as lookups are rare.
func (c *Client) transport(roots *x509.CertPool) (http.RoundTripper, func()) {
	verified, lax := c.newTransport(&tls.Config{RootCAs: roots}), c.newTransport(&tls.Config{InsecureSkipVerify: true})
	trip := roundTripper(func(r *http.Request) (*http.Response, error) {
		if c.mayBeInsecure(r.URL.Host) {
			return limitBody(lax.RoundTrip(r))
		}
		if r.URL.Scheme != "https" {
			return nil, fmt.Errorf("%s is used by HTTPS only; list it as insecure to allow HTTP", r.URL.Host)
		}
		return limitBody(verified.RoundTrip(r))
	})
	return trip, func() { verified.CloseIdleConnections(); lax.CloseIdleConnections() }
}

func (c *Client) newTransport(config *tls.Config) *http.Transport {
	config.MinVersion = tls.VersionTLS12
	return &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return c.proxy(r.URL) },
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// limitBody bounds the size of a response.
func limitBody(r *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r.Body, maxBody), r.Body}
	return r, nil
}

// loadRoots returns the system's authorities and those in files of the directories.
func loadRoots(dirs []string) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificate authorities: %w", err)
	}
	for _, dir := range dirs {
		if err := addDir(roots, dir); err != nil {
			return nil, fmt.Errorf("read certificate authorities: %w", err)
		}
	}
	return roots, nil
}

// addDir adds the certificates in the files of a directory. It skips files without a
// certificate, as exist in the system's directories. A mounted ConfigMap also has links and
// directories beside its files.
func addDir(roots *x509.CertPool, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := readFile(filepath.Join(dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		roots.AppendCertsFromPEM(data)
	}
	return nil
}

// readFile reads a regular file. It returns nothing for anything else.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxCA))
}
