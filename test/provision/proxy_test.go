package provision

import (
	"context"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

// proxy is a proxy between a client and the API server that can be cut. The API server is then
// unreachable for the client, but not for the cluster.
type proxy struct {
	Kubeconfig string

	listener net.Listener
	server   string
	mu       sync.Mutex
	cut      bool
	open     map[net.Conn]bool
	running  sync.WaitGroup
}

func (s *suite) proxy(t *testing.T) *proxy {
	t.Helper()
	config, err := clientcmd.LoadFromFile(s.Kubeconfig)
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, open: map[net.Conn]bool{}, Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	for _, c := range config.Clusters {
		at, err := url.Parse(c.Server)
		require.NoError(t, err)
		p.server, c.TLSServerName = at.Host, at.Hostname()
		c.Server = "https://" + listener.Addr().String()
	}
	require.NoError(t, clientcmd.WriteToFile(*config, p.Kubeconfig))
	p.running.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.setCut(true)
		p.running.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.server)
		if err != nil || !p.add(client, server) {
			_ = client.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
			p.running.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
				_ = pair[1].Close()
			})
		}
	}
}

// add records a connection; it returns false if the proxy is cut.
func (p *proxy) add(client, server net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		_ = server.Close()
		return false
	}
	p.open[client], p.open[server] = true, true
	return true
}

// setCut closes all connections and refuses new ones, or accepts them again.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if cut {
		for c := range p.open {
			_ = c.Close()
		}
		p.open = map[net.Conn]bool{}
	}
}
