// Command registry is a container registry in memory, for a machine without a network. It has one
// image, "driver:base".
package main

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const address = "127.0.0.1:5000"

func main() {
	if err := serve(); err != nil {
		slog.Error("the registry ends", "err", err)
		os.Exit(1)
	}
}

func serve() error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	server := &http.Server{Handler: registry.New(), ReadHeaderTimeout: time.Minute}
	go func() { ended <- server.Serve(l) }()
	ref, err := name.ParseReference(address + "/driver:base")
	if err == nil {
		err = remote.Write(ref, empty.Image)
	}
	if err != nil {
		return err
	}
	slog.Info("serving")
	return <-ended
}
