// Package registry provides the HTTP transport for container registries. It bounds what a registry makes its
// client hold in memory.
package registry

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// MaxDocument bounds a document of a registry, in bytes: a manifest, a configuration, a token, an error. Registries
// should accept manifests of 4 MiB (OCI distribution specification).
const MaxDocument = 4 << 20

// ErrTooLarge is returned, wrapped, for a document above MaxDocument.
var ErrTooLarge = errors.New("the registry sends more than it may")

// NewTransport returns a transport. It does not uncompress responses: those of registries are not compressed, and
// a small one might become a large one.
func NewTransport(config *tls.Config, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	config.MinVersion = tls.VersionTLS12
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		IdleConnTimeout:        time.Minute,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// RoundTripper is a function as an http.RoundTripper.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// LimitDocuments bounds the documents that come through a transport. Blobs are not bounded, as layers are large:
// whoever reads one bounds it by its size in the manifest.
func LimitDocuments(next http.RoundTripper) http.RoundTripper {
	return RoundTripper(func(q *http.Request) (*http.Response, error) {
		r, err := next.RoundTrip(q)
		if err != nil || isBlob(q) && r.StatusCode == http.StatusOK {
			return r, err
		}
		r.Body = &limited{ReadCloser: r.Body, left: MaxDocument}
		return r, nil
	})
}

// isBlob reports whether a request, or the one that was redirected to it, is for a blob.
func isBlob(q *http.Request) bool {
	for q.Response != nil && q.Response.Request != nil {
		q = q.Response.Request
	}
	return q.Method == http.MethodGet && strings.HasPrefix(q.URL.Path, "/v2/") && strings.Contains(q.URL.Path, "/blobs/sha")
}

// limited is a body that fails after a number of bytes.
type limited struct {
	io.ReadCloser
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if len(p) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.ReadCloser.Read(p)
	if n > l.left {
		return l.left, fmt.Errorf("%w: %d bytes", ErrTooLarge, MaxDocument)
	}
	l.left -= n
	return n, err
}
