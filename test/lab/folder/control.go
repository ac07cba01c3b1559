package folder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Commands lists the functions that the process which holds a cluster calls for other processes. Serve calls one of
// the first three at a time.
type Commands interface {
	RebootNode(ctx context.Context, name string) error
	AddNode(ctx context.Context, name string) (added string, err error) // "": the holder chooses a name
	RemoveNode(ctx context.Context, name string) error
	// EndedNodes returns the nodes whose first process has ended by itself.
	EndedNodes() []string
}

// controlSocket is the socket in a cluster's folder at which its holder takes commands, in HTTP.
const controlSocket = "control.sock"

// answer is the holder's response.
type answer struct {
	Node  string   `json:"node,omitempty"`  // that was added
	Ended []string `json:"ended,omitempty"` // nodes
}

// Serve takes commands from other processes until ctx is done, and returns when none is being carried out.
func (f *Folder) Serve(ctx context.Context, c Commands) error {
	listener, err := listenIn(f.Path)
	if err != nil {
		return fmt.Errorf("take commands for the cluster %s: %w", f.Cluster, err)
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: controlHandler(running, c), ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	return errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
}

// controlHandler returns the handler of commands. A command does not end with the request, only with ctx: half
// a reboot is of no use.
func controlHandler(ctx context.Context, c Commands) http.Handler {
	var one sync.Mutex
	handle := http.NewServeMux()
	command := func(pattern string, run func(ctx context.Context, name string) (string, error)) {
		handle.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			limit, err := time.ParseDuration(r.URL.Query().Get("timeout"))
			if err != nil {
				http.Error(w, "timeout: "+err.Error(), http.StatusBadRequest)
				return
			}
			one.Lock()
			defer one.Unlock()
			limited, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			node, err := run(limited, r.PathValue("name"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(w).Encode(answer{Node: node}) // the other may be gone
		})
	}
	command("POST /nodes/{name}/reboot", func(ctx context.Context, name string) (string, error) { return name, c.RebootNode(ctx, name) })
	command("POST /nodes/{name}", c.AddNode)
	command("POST /nodes/{$}", func(ctx context.Context, _ string) (string, error) { return c.AddNode(ctx, "") })
	command("DELETE /nodes/{name}", func(ctx context.Context, name string) (string, error) { return name, c.RemoveNode(ctx, name) })
	handle.HandleFunc("GET /ended", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(answer{Ended: c.EndedNodes()})
	})
	return handle
}

// RebootNode asks the holder to reboot a node, and returns when it is Ready.
func (r *Record) RebootNode(ctx context.Context, name string, timeout time.Duration) error {
	_, err := r.command(ctx, http.MethodPost, "/nodes/"+name+"/reboot", timeout)
	return err
}

// AddNode asks the holder to add a node, and returns its name when it is Ready. If name is "", the holder
// chooses one.
func (r *Record) AddNode(ctx context.Context, name string, timeout time.Duration) (string, error) {
	a, err := r.command(ctx, http.MethodPost, "/nodes/"+name, timeout)
	return a.Node, err
}

// RemoveNode asks the holder to end a node and to delete its Node object.
func (r *Record) RemoveNode(ctx context.Context, name string, timeout time.Duration) error {
	_, err := r.command(ctx, http.MethodDelete, "/nodes/"+name, timeout)
	return err
}

// command sends a command to the process that holds the cluster.
func (r *Record) command(ctx context.Context, method, path string, timeout time.Duration) (a answer, err error) {
	if r.Process == 0 {
		return a, fmt.Errorf("%s still comes up; try again when it is up", r.Name)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dialIn(ctx, r.Dir) },
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://cluster"+path+"?timeout="+timeout.String(), nil)
	if err != nil {
		return a, err
	}
	response, err := client.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
		return a, fmt.Errorf("process %d, which holds the cluster %s, takes no commands: %w", r.Process, r.Name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK {
		return a, errors.New(strings.TrimSpace(string(body)))
	}
	return a, json.Unmarshal(body, &a)
}

// listenIn listens at the control socket in a folder. An address of a socket has at most 107 bytes, and a path
// may be longer: the socket is named by a descriptor of its folder.
func listenIn(path string) (net.Listener, error) {
	_ = os.Remove(filepath.Join(path, controlSocket))
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: descriptorPath(dir), Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // it goes with the folder
	return listener, nil
}

func dialIn(ctx context.Context, path string) (net.Conn, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return (&net.Dialer{}).DialContext(ctx, "unix", descriptorPath(dir))
}

func descriptorPath(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), controlSocket)
}
