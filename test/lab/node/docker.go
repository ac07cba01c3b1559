package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
)

// DockerSocket is the socket on which dockerd serves its API.
const DockerSocket = "/var/run/docker.sock"

// docker is a client that uses dockerd over its API.
type docker struct{ client *http.Client }

func newDocker() *docker {
	return &docker{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", DockerSocket)
		},
	}}}
}

// command passes settings that would need a network as flags, as a unit file does. daemon.json
// belongs to the test.
func (d *docker) command() []string {
	return []string{bin + "/dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--userland-proxy=false"}
}

func (d *docker) close() error {
	d.client.CloseIdleConnections()
	return nil
}

// ready polls until dockerd responds: nothing signals that it listens on its socket.
func (d *docker) ready(ctx context.Context) error {
	return until(ctx, func() error { return d.call(ctx, http.MethodGet, "/_ping", nil, nil) })
}

// call sends a body, as JSON unless it is an *os.File. It decodes the response into a value unless
// that is nil; a *bytes.Buffer receives it unchanged.
func (d *docker) call(ctx context.Context, method, path string, body, into any) (err error) {
	var sent io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case *os.File:
		sent, kind = b, "application/x-tar"
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, sent)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	response, err := d.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(data))
	}
	switch v := into.(type) {
	case nil:
		return nil
	case *bytes.Buffer:
		_, err := v.Write(data)
		return err
	}
	return json.Unmarshal(data, into)
}

func (d *docker) load(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	var reply bytes.Buffer
	if err := d.call(ctx, http.MethodPost, "/images/load?quiet=1", f, &reply); err != nil {
		return err
	}
	if bytes.Contains(reply.Bytes(), []byte(`"error"`)) {
		return fmt.Errorf("load %s: %s", file, reply.Bytes())
	}
	return nil
}

func (d *docker) create(ctx context.Context, s Spec) (at string, err error) {
	var created struct{ Id string } //nolint:revive // as the API has it
	err = d.call(ctx, http.MethodPost, "/containers/create", dockerConfig(s), &created)
	return "/containers/" + created.Id, err
}

func (d *docker) begin(ctx context.Context, s Spec) error {
	at, err := d.create(ctx, s)
	if err != nil {
		return err
	}
	return d.call(ctx, http.MethodPost, at+"/start", nil, nil)
}

func (d *docker) run(ctx context.Context, s Spec) (output string, err error) {
	at, err := d.create(ctx, s)
	if err != nil {
		return "", err
	}
	defer func() {
		removed := d.call(context.WithoutCancel(ctx), http.MethodDelete, at+"?force=1", nil, nil)
		if err == nil {
			err = removed
		}
	}()
	// On a busy machine dockerd loses the whole output of a container that ends before dockerd has
	// begun to read it ("copy stream failed"). Programs of the image always print something.
	const attempts = 3
	for range attempts {
		output, err = d.startAndWait(ctx, at)
		if err != nil || output != "" {
			break
		}
	}
	return output, err
}

// startAndWait starts a container, waits until it ends, and returns what it printed.
func (d *docker) startAndWait(ctx context.Context, at string) (output string, err error) {
	if err := d.call(ctx, http.MethodPost, at+"/start", nil, nil); err != nil {
		return "", err
	}
	var waited struct{ StatusCode int }
	if err := d.call(ctx, http.MethodPost, at+"/wait", nil, &waited); err != nil {
		return "", err
	}
	var log bytes.Buffer
	if err := d.call(ctx, http.MethodGet, at+"/logs?stdout=1&stderr=1", nil, &log); err != nil {
		return "", err
	}
	return containerEnded(frames(log.Bytes()), waited.StatusCode)
}

func dockerConfig(s Spec) map[string]any {
	host := map[string]any{"NetworkMode": "host", "CgroupParent": "/" + Name(), "Runtime": s.Handler}
	if len(s.CDI) > 0 {
		host["DeviceRequests"] = []any{map[string]any{"Driver": "cdi", "DeviceIDs": s.CDI}}
	}
	return map[string]any{"Image": TestImage, "Entrypoint": s.Args, "Env": s.Env, "HostConfig": host}
}

// frames returns the text of a log of frames: a stream's number, three zeros, a length and text.
func frames(log []byte) string {
	const header = 8
	var out bytes.Buffer
	for len(log) >= header {
		end := header + int(binary.BigEndian.Uint32(log[4:header]))
		end = min(end, len(log))
		out.Write(log[header:end])
		log = log[end:]
	}
	return out.String()
}

func (d *docker) status(ctx context.Context) (RuntimeStatus, error) {
	var info struct {
		ServerVersion  string
		DefaultRuntime string
		Runtimes       map[string]json.RawMessage
		CDISpecDirs    []string
	}
	if err := d.call(ctx, http.MethodGet, "/info", nil, &info); err != nil {
		return RuntimeStatus{}, err
	}
	return RuntimeStatus{
		Version: info.ServerVersion, Default: info.DefaultRuntime, CDI: len(info.CDISpecDirs) > 0,
		Handlers: slices.Sorted(maps.Keys(info.Runtimes)),
	}, nil
}
