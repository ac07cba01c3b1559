package publish

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// NewTransport returns a transport with deadlines for what a registry does. It refuses plain HTTP to
// other hosts than this one, unless insecure is set.
func NewTransport(insecure bool) http.RoundTripper {
	return &plainGuard{next: newTransport(), insecure: insecure}
}

// newTransport returns a transport with deadlines for what a registry does.
func newTransport() http.RoundTripper {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 15 * time.Second
	t.ResponseHeaderTimeout = 5 * time.Minute // a registry hashes a blob before it answers
	return t
}

// plainGuard refuses plain HTTP to other hosts than this one, unless insecure is set.
type plainGuard struct {
	next     http.RoundTripper
	insecure bool
}

func (g *plainGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" && !g.insecure && !isLoopback(r.URL.Hostname()) {
		return nil, fmt.Errorf("%s would be reached without TLS: use a registry with TLS, or --insecure", r.URL.Host)
	}
	return g.next.RoundTrip(r)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
