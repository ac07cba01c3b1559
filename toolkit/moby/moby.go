// Package moby asks a Docker daemon over its own socket what it can do with GPUs.
package moby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/socket"
)

// Name is what the daemon is called in an answer.
const Name = "docker"

// What a daemon may say; anything beyond is not believed.
const (
	maxAnswer = 1 << 20
	maxNames  = 64
	maxName   = 256
)

// info is what is used of GET /info (Docker Engine API 1.44 and later; CDISpecDirs
// are there, and not null, where CDI is on).
type info struct {
	ServerVersion  string
	DefaultRuntime string
	Runtimes       map[string]json.RawMessage
	CDISpecDirs    []string
}

// Ask asks the daemon that listens on a socket of the host, within cri.Timeout. With
// an error the answer has the socket alone, and a message that says why and what to do.
func Ask(ctx context.Context, root *host.Root, at string) (cri.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, cri.Timeout)
	defer cancel()
	said, err := ask(ctx, root, at)
	if err != nil {
		message := fmt.Sprintf("the Docker daemon at %s gives no usable answer (%s); see that it runs, or say with --runtime-socket where it listens", at, record.Clean(err.Error(), 1024))
		return cri.Answer{Runtime: nodestate.Runtime{Socket: at, Message: message}}, err
	}
	a := answer(said)
	a.Socket = at
	return a, nil
}

func ask(ctx context.Context, root *host.Root, at string) (said info, err error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, root, at) }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
	if err != nil {
		return said, err
	}
	start := time.Now()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", time.Since(start).Round(time.Millisecond), context.DeadlineExceeded)
		}
		return said, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return said, fmt.Errorf("GET /info: %s", response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return said, err
	}
	if len(data) > maxAnswer {
		return said, fmt.Errorf("GET /info: more than %d bytes", maxAnswer)
	}
	return said, json.Unmarshal(data, &said)
}

func answer(said info) cri.Answer {
	on := len(said.CDISpecDirs) > 0
	a := cri.Answer{
		Runtime: nodestate.Runtime{Name: Name, Version: record.Clean(said.ServerVersion, maxName), CDI: &on},
		Default: said.DefaultRuntime,
	}
	for _, d := range said.CDISpecDirs {
		if path.IsAbs(d) && plain(d) && len(a.CDIDirs) < maxNames {
			a.CDIDirs = append(a.CDIDirs, d)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(said.Runtimes)) {
		if plain(n) && len(a.Handlers) < maxNames {
			a.Handlers = append(a.Handlers, n)
		}
	}
	if !plain(a.Default) {
		a.Default = ""
	}
	return a
}

func plain(s string) bool { return s == record.Clean(s, maxName) }
