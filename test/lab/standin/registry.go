package main

import (
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const address = "127.0.0.1:5000"

// serveRegistry serves a container registry in memory, for a machine without a network. It has one
// image, "driver:base".
func serveRegistry() error {
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
