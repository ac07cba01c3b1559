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
	"github.com/gpuready/gpuready/toolkit/watch"
)

// errGone means that Docker no longer has a container: it has ended since it was listed.
var errGone = errors.New("the container has ended")

// dockerAPI is a client of a Docker daemon's API.
type dockerAPI struct {
	root   *host.Root
	at     string        // the socket's path on the host
	limit  time.Duration // of each request
	client *http.Client
	info   dockerInfo
}

// dockerInfo is the part of the response to GET /info that is used.
type dockerInfo struct {
	DefaultRuntime string
	Runtimes       map[string]struct {
		Path string `json:"path"`
	}
}

// inspection is the part of the response to GET /containers/{id}/json that is used.
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

// collectDocker returns the running containers of the Docker daemon at a socket, and the ways in
// which each may get GPUs. With an error, it returns those that it could inspect. limit is the
// timeout of each request.
func collectDocker(ctx context.Context, root *host.Root, at string, limit time.Duration) ([]Container, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return watch.Dial(ctx, root, at) }}
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
		return nil, fmt.Errorf("docker at %s lists %d containers, but no more than %d are supported", at, len(listed), maxContainers)
	}
	var all []Container
	var failed []error
	for _, l := range listed {
		var i inspection
		err := d.get(ctx, "/containers/"+url.PathEscape(l.ID)+"/json", &i)
		switch {
		case errors.Is(err, errGone):
		case ctx.Err() != nil:
			return all, errors.Join(append(failed, fmt.Errorf("%d of %d containers were inspected: %w", len(all), len(listed), ctx.Err()))...)
		case err != nil:
			failed = append(failed, fmt.Errorf("container %s: %w", record.Clean(l.ID, maxText), err))
		default:
			c := i.container(l.ID, d.info)
			c.inspectDevices(d.root, d.configPaths(l.ID), i.State.Pid)
			all = append(all, c)
		}
	}
	return all, errors.Join(failed...)
}

// container converts the daemon's response.
func (i inspection) container(id string, daemon dockerInfo) Container {
	h := i.HostConfig
	c := Container{
		Name: record.Clean(strings.TrimPrefix(i.Name, "/"), maxText), ID: record.Clean(id, maxText), Image: record.Clean(i.Config.Image, maxText),
		Handler: record.Clean(h.Runtime, maxText), Default: h.Runtime != "" && h.Runtime == daemon.DefaultRuntime,
		Privileged: h.Privileged || slices.ContainsFunc(h.CapAdd, func(name string) bool {
			return slices.Contains([]string{"ALL", "SYS_ADMIN"}, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
		}),
	}
	// The name of the handler or of its program shows whether it reads NVIDIA_VISIBLE_DEVICES.
	c.Reads = readsVariable(h.Runtime) || isReader(daemon.Runtimes[h.Runtime].Path)
	var s oci // Docker's response has no OCI configuration, but its environment
	s.Process.Env = i.Config.Env
	c.addSpec(s)
	for _, m := range i.Mounts {
		c.addMount(m.Destination)
	}
	for _, device := range h.Devices {
		c.addDevice(device.PathInContainer)
	}
	for _, r := range h.DeviceRequests {
		switch {
		case r.Driver == "cdi":
			for _, name := range r.DeviceIDs {
				c.addCDI(name)
			}
		case r.Driver == "nvidia" || r.Driver == "" && slices.ContainsFunc(r.Capabilities, func(allOf []string) bool { return slices.Contains(allOf, "gpu") }):
			c.Flag = "--gpus"
		}
	}
	return c
}

// configPaths returns the possible paths of a Docker container's OCI configuration: below the
// state directory of the system's containerd, and of one that dockerd started.
func (d *dockerAPI) configPaths(id string) []string {
	if !isIdentifier(id) {
		return nil
	}
	var all []string
	for _, state := range []string{"/run/containerd", "/run/docker/containerd/daemon"} {
		all = append(all, path.Join(state, "io.containerd.runtime.v2.task/moby", id, "config.json"))
	}
	return all
}

// get sends one GET request and decodes the response into a value. It limits the time and the size
// of the response. If the daemon does not know the path, the error is errGone.
func (d *dockerAPI) get(ctx context.Context, uri string, into any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+uri, nil)
	if err != nil {
		return err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return fmt.Errorf("docker at %s cannot be reached; check that it runs, or set DOCKER_SOCKET to its socket: %w", d.at, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("docker at %s: GET %s: %w", d.at, uri, err)
	case len(data) > maxResponse:
		return fmt.Errorf("docker at %s: GET %s: the response has more than %d bytes", d.at, uri, maxResponse)
	case response.StatusCode == http.StatusNotFound:
		return errGone
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("docker at %s: GET %s: %s: %s", d.at, uri, response.Status, record.Clean(string(data), maxText))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("docker at %s: GET %s: %w", d.at, uri, err)
	}
	return nil
}
