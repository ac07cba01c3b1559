package runtime

// This file queries a Docker daemon over its own API.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// dockerInfo is the part of the response to GET /info that is used (Docker Engine API 1.44 and
// later). CDISpecDirs is not empty if CDI is on.
type dockerInfo struct {
	ServerVersion  string
	DefaultRuntime string
	Runtimes       map[string]json.RawMessage
	CDISpecDirs    []string
}

// QueryDocker queries the daemon that listens on a socket of the host, within QueryTimeout. With an
// error, the result only has the socket, and a message with the reason and a remedy.
func QueryDocker(ctx context.Context, root *host.Root, at string) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	response, err := queryDocker(ctx, root, at)
	if err != nil {
		next := "check that it runs, or set --runtime-socket to its socket"
		if errors.Is(err, fs.ErrPermission) {
			next = permit
		}
		message := fmt.Sprintf("the Docker daemon at %s gives no usable answer (%s); %s", at, record.Clean(err.Error(), 1024), next)
		return Info{Runtime: nodestate.Runtime{Socket: at, Message: message}}, err
	}
	a := convertDocker(response)
	a.Socket = at
	return a, nil
}

func queryDocker(ctx context.Context, root *host.Root, at string) (found dockerInfo, err error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return watch.Dial(ctx, root, at) }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
	if err != nil {
		return found, err
	}
	start := time.Now()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", time.Since(start).Round(time.Millisecond), context.DeadlineExceeded)
		}
		return found, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return found, fmt.Errorf("GET /info: %s", response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return found, err
	}
	if len(data) > maxResponse {
		return found, fmt.Errorf("GET /info: more than %d bytes", maxResponse)
	}
	return found, json.Unmarshal(data, &found)
}

// convertDocker converts the daemon's response.
func convertDocker(response dockerInfo) Info {
	on := len(response.CDISpecDirs) > 0
	a := Info{
		Runtime: nodestate.Runtime{Name: dockerName, Version: record.Clean(response.ServerVersion, maxName), CDI: &on},
		Default: response.DefaultRuntime,
	}
	for _, d := range response.CDISpecDirs {
		if path.IsAbs(d) && isPlain(d, maxName) && len(a.CDIDirs) < maxNames {
			a.CDIDirs = append(a.CDIDirs, d)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(response.Runtimes)) {
		if isPlain(n, maxName) && len(a.Handlers) < maxNames {
			a.Handlers = append(a.Handlers, n)
			var r struct{ Path string }
			if json.Unmarshal(response.Runtimes[n], &r) == nil {
				a.setProgram(n, r.Path)
			}
		}
	}
	if !isPlain(a.Default, maxName) {
		a.Default = ""
	}
	a.DefaultHandler = a.Default
	a.GPUHandlers = gpuHandlers(a.Handlers, a.Programs)
	return a
}
