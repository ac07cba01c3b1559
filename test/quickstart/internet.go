package quickstart

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// internet stands in for the hosts that the commands of docs/install.md name. Programs reach them through
// a proxy (HTTPS_PROXY) that ends TLS itself, with certificates of an authority that they trust
// (SSL_CERT_FILE).
type internet struct {
	Env []string // variables for programs that are to use it

	hosts     map[string]http.Handler
	authority *folder.Authority
	accepted  *connections

	mu    sync.Mutex
	certs map[string]*tls.Certificate
}

// startInternet serves each handler under its host's name. direct is the value of NO_PROXY: the hosts that
// programs reach without the proxy.
func startInternet(t *testing.T, hosts map[string]http.Handler, direct string) *internet {
	t.Helper()
	n := &internet{hosts: hosts, certs: map[string]*tls.Certificate{}, accepted: newConnections()}
	var err error
	n.authority, err = folder.NewAuthority("the internet of a test")
	require.NoError(t, err)
	trusted := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(trusted, n.authority.PEM, 0o644))
	proxy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n.Env = []string{"HTTPS_PROXY=http://" + proxy.Addr().String(), "NO_PROXY=" + direct, "SSL_CERT_FILE=" + trusted}

	var served sync.WaitGroup
	servers := []*http.Server{{Handler: http.HandlerFunc(n.connect)}, {Handler: http.HandlerFunc(n.serve)}}
	for i, l := range []net.Listener{proxy, n.accepted} {
		served.Go(func() { _ = servers[i].Serve(l) })
	}
	t.Cleanup(func() {
		for _, s := range servers {
			_ = s.Close()
		}
		served.Wait()
	})
	return n
}

// connect takes over a connection of a program that wants to reach a host by the proxy.
func (n *internet) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || n.hosts[r.URL.Hostname()] == nil {
		http.Error(w, r.Method+" "+r.URL.Host+": the page names no such host", http.StatusBadGateway)
		return
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		_ = conn.Close()
		return
	}
	n.accepted.hand(tls.Server(conn, &tls.Config{GetCertificate: n.certificate, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}))
}

// serve answers a request to a host.
func (n *internet) serve(w http.ResponseWriter, r *http.Request) { n.hosts[r.Host].ServeHTTP(w, r) }

// certificate returns the certificate of the host that a client has named.
func (n *internet) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.certs[hello.ServerName] == nil {
		pair, err := n.authority.Issue(folder.Subject{Name: hello.ServerName, Hosts: []string{hello.ServerName}})
		if err != nil {
			return nil, err
		}
		c, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			return nil, err
		}
		n.certs[hello.ServerName] = &c
	}
	return n.certs[hello.ServerName], nil
}

// connections is a listener that accepts what is handed to it.
type connections struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func newConnections() *connections {
	c := &connections{conns: make(chan net.Conn), done: make(chan struct{})}
	c.close = sync.OnceFunc(func() { close(c.done) })
	return c
}

// hand makes Accept return a connection.
func (c *connections) hand(conn net.Conn) {
	select {
	case c.conns <- conn:
	case <-c.done:
		_ = conn.Close()
	}
}

func (c *connections) Accept() (net.Conn, error) {
	select {
	case conn := <-c.conns:
		return conn, nil
	case <-c.done:
		return nil, net.ErrClosed
	}
}

func (c *connections) Close() error   { c.close(); return nil }
func (c *connections) Addr() net.Addr { return &net.TCPAddr{} }
