package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/registry"
)

// maxCA bounds what is read of a file of certificates, in bytes.
const maxCA = 1 << 20

// transport returns the transport of one lookup and a function that closes its connections. They
// are not reused, as lookups are rare.
func (c *Client) transport(roots *x509.CertPool) (http.RoundTripper, func()) {
	proxy := func(r *http.Request) (*url.URL, error) { return c.proxy(r.URL) }
	verified := registry.NewTransport(&tls.Config{RootCAs: roots}, proxy)
	lax := registry.NewTransport(&tls.Config{InsecureSkipVerify: true}, proxy)
	trip := registry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if c.mayBeInsecure(r.URL.Host) {
			return lax.RoundTrip(r)
		}
		if r.URL.Scheme != "https" {
			return nil, fmt.Errorf("%s is used by HTTPS only; list it as insecure to allow HTTP", r.URL.Host)
		}
		return verified.RoundTrip(r)
	})
	return registry.LimitDocuments(trip), func() { verified.CloseIdleConnections(); lax.CloseIdleConnections() }
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
