package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/socket"
)

// errGone means that a container has ended since it was listed.
var errGone = errors.New("it is gone")

// dockerAPI is a daemon that is asked over its own API.
type dockerAPI struct {
	root   *host.Root
	at     string
	limit  time.Duration
	client *http.Client
	info   dockerInfo
}

// dockerInfo is what is used of GET /info.
type dockerInfo struct {
	DefaultRuntime string
	Runtimes       map[string]struct {
		Path string `json:"path"`
	}
}

// inspection is what is used of GET /containers/{id}/json.
type inspection struct {
	Name   string
	Config struct {
		Image string
		Env   []string
	}
	HostConfig struct {
		Runtime        string
		Privileged     bool
		CapAdd         []string
		DeviceRequests []struct {
			Driver       string
			DeviceIDs    []string
			Capabilities [][]string
		}
		Devices []struct {
			PathInContainer string
		}
	}
	Mounts []struct {
		Destination string
	}
	State struct {
		Pid int
	}
}

func overDocker(ctx context.Context, root *host.Root, at string, limit time.Duration) ([]Container, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, root, at) }}
	defer transport.CloseIdleConnections()
	d := &dockerAPI{root: root, at: at, limit: limit, client: &http.Client{Transport: transport}}
	if err := d.get(ctx, "/info", &d.info); err != nil {
		return nil, err
	}
	var listed []struct {
		ID string `json:"Id"`
	}
	if err := d.get(ctx, "/containers/json", &listed); err != nil {
		return nil, err
	}
	if len(listed) > maxContainers {
		return nil, fmt.Errorf("docker at %s lists %d containers, no more than %d are looked at", at, len(listed), maxContainers)
	}
	var all []Container
	var failed []error
	for _, l := range listed {
		var i inspection
		err := d.get(ctx, "/containers/"+url.PathEscape(l.ID)+"/json", &i)
		switch {
		case errors.Is(err, errGone):
		case ctx.Err() != nil:
			return all, errors.Join(append(failed, fmt.Errorf("%d of %d containers were looked at: %w", len(all), len(listed), ctx.Err()))...)
		case err != nil:
			failed = append(failed, fmt.Errorf("container %s: %w", record.Clean(l.ID, maxText), err))
		default:
			c := i.container(l.ID, d.info)
			c.look(d.root, d.bundles(l.ID), i.State.Pid)
			all = append(all, c)
		}
	}
	return all, errors.Join(failed...)
}

// container is what the daemon tells of one.
func (i inspection) container(id string, daemon dockerInfo) Container {
	h := i.HostConfig
	c := Container{
		Name: record.Clean(strings.TrimPrefix(i.Name, "/"), maxText), ID: record.Clean(id, maxText), Image: record.Clean(i.Config.Image, maxText),
		Handler: record.Clean(h.Runtime, maxText), Default: h.Runtime != "" && h.Runtime == daemon.DefaultRuntime,
		Privileged: h.Privileged || slices.ContainsFunc(h.CapAdd, func(name string) bool {
			return slices.Contains([]string{"ALL", "SYS_ADMIN"}, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
		}),
	}
	c.Reads = known(h.Runtime) || reads(daemon.Runtimes[h.Runtime].Path)
	var s oci
	s.Process.Env = i.Config.Env
	c.spec(s)
	for _, m := range i.Mounts {
		c.mount(m.Destination)
	}
	for _, device := range h.Devices {
		c.device(device.PathInContainer)
	}
	for _, r := range h.DeviceRequests {
		switch {
		case r.Driver == "cdi":
			for _, name := range r.DeviceIDs {
				c.cdi(name)
			}
		case r.Driver == "nvidia" || r.Driver == "" && slices.ContainsFunc(r.Capabilities, func(and []string) bool { return slices.Contains(and, "gpu") }):
			c.Flag = "--gpus"
		}
	}
	return c
}

// bundles are where containerd has the OCI bundle of a container of Docker: the
// system's containerd, or one that dockerd started.
func (d *dockerAPI) bundles(id string) []string {
	if !identifier.Matches(id) {
		return nil
	}
	var all []string
	for _, state := range []string{"/run/containerd", "/run/docker/containerd/daemon"} {
		all = append(all, path.Join(state, "io.containerd.runtime.v2.task/moby", id, "config.json"))
	}
	return all
}

// get asks for one thing, within the limits of time and size.
func (d *dockerAPI) get(ctx context.Context, what string, into any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+what, nil)
	if err != nil {
		return err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return fmt.Errorf("docker at %s is not reached; see that it runs, or say with DOCKER_SOCKET where it is: %w", d.at, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("docker at %s: GET %s: %w", d.at, what, err)
	case len(data) > maxAnswer:
		return fmt.Errorf("docker at %s: GET %s: the answer has more than %d bytes", d.at, what, maxAnswer)
	case response.StatusCode == http.StatusNotFound:
		return errGone
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("docker at %s: GET %s: %s: %s", d.at, what, response.Status, record.Clean(string(data), maxText))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("docker at %s: GET %s: %w", d.at, what, err)
	}
	return nil
}
