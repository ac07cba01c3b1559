package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// counting is a proxy of the API server that counts requests, except those for leader election
// leases.
type counting struct {
	kubeconfig  string // with which clients reach it
	all, writes atomic.Int64
	abandoned   atomic.Int64 // of all: the client ended them, at a timeout of its own or as it stopped
	server      *http.Server
	served      sync.WaitGroup
}

func startCounting(ctx context.Context, config *restclient.Config, dir string) (*counting, error) {
	transport, err := restclient.TransportFor(config)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &counting{kubeconfig: filepath.Join(dir, "counting.kubeconfig")}
	to := clientcmdapi.NewConfig()
	to.Clusters["c"] = &clientcmdapi.Cluster{Server: "http://" + l.Addr().String()}
	to.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	to.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*to, c.kubeconfig); err != nil {
		_ = l.Close()
		return nil, err
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				c.abandoned.Add(1)
			} else {
				fmt.Fprintln(os.Stderr, "proxy of the API server:", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	c.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/leases") {
			c.all.Add(1)
			if r.Method != http.MethodGet {
				c.writes.Add(1)
			}
		}
		proxy.ServeHTTP(w, r)
	})}
	c.served.Go(func() { _ = c.server.Serve(l) })
	return c, nil
}

func (c *counting) end() {
	_ = c.server.Close()
	c.served.Wait()
}
