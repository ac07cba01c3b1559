// Package registry runs a container registry, the program of the project distribution, as a child
// process. A release that is made and verified on one machine goes through it.
package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config describes a registry.
type Config struct {
	Program string // the path of distribution's program
	Storage string // the folder in which it stores everything; it is created
	Listen  string // "localhost:5000"; port 0 selects a free one
}

// Registry is a running registry.
type Registry struct {
	Host string // "localhost:5000", as in the names of images

	cmd    *exec.Cmd
	config string // its configuration file
	output tail
	ended  chan struct{} // closed at the end of the process
	err    error         // of the process; valid after ended
}

const (
	// startTimeout limits how long the program may take until it answers.
	startTimeout = time.Minute
	// stopTimeout limits how long the program may take to end.
	stopTimeout = 10 * time.Second
	// pollInterval is the interval at which a starting registry is asked: it tells nobody that it listens.
	pollInterval = 20 * time.Millisecond
)

// Start starts a registry and returns when it answers. The caller stops it; it also ends with this process.
func Start(ctx context.Context, c Config) (*Registry, error) {
	host, err := reserve(c.Listen)
	if err != nil {
		return nil, err
	}
	storage, err := filepath.Abs(c.Storage)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(storage, 0o755); err != nil {
		return nil, fmt.Errorf("the registry's storage: %w", err)
	}
	r := &Registry{Host: host, ended: make(chan struct{})}
	if r.config, err = writeConfig(storage, host); err != nil {
		return nil, fmt.Errorf("the registry's configuration: %w", err)
	}
	r.cmd = exec.Command(c.Program, "serve", r.config) //nolint:noctx // Stop ends it in order
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	r.cmd.Env = environment()
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C is for this process, which ends it
	started := make(chan error, 1)
	go r.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start the registry: %w; build it with make bin/tools/registry", err), os.Remove(r.config))
	}
	if err := r.wait(ctx); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// reserve returns the address with its port. It fails if another process listens there.
func reserve(address string) (string, error) {
	var any net.ListenConfig
	l, err := any.Listen(context.Background(), "tcp", address)
	if err != nil {
		return "", fmt.Errorf("the registry cannot listen at %s: %w; end what does, or choose another port", address, err)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", errors.Join(err, l.Close())
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort(host, port), errors.Join(err, l.Close())
}

// writeConfig writes the configuration to a temporary file, and returns its path.
func writeConfig(storage, host string) (string, error) {
	f, err := os.CreateTemp("", "registry-*.yaml")
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, `version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
http: {addr: %q}
`, storage, host)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// environment returns this process's environment, without variables that would change the registry's
// configuration or make it report to others.
func environment() []string {
	env := []string{"OTEL_TRACES_EXPORTER=none"}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "REGISTRY_") && !strings.HasPrefix(kv, "OTEL_") {
			env = append(env, kv)
		}
	}
	return env
}

// run runs the process. The kernel ends it with the thread that started it, so this goroutine keeps
// the thread.
func (r *Registry) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.ended)
	err := r.cmd.Start()
	started <- err
	if err == nil {
		r.err = r.cmd.Wait()
	}
}

// wait waits until the registry answers.
func (r *Registry) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if r.isServing(ctx) {
			return nil
		}
		select {
		case <-tick.C:
		case <-r.ended:
			return fmt.Errorf("the registry ended at once: %w: %s", r.err, r.output.String())
		case <-ctx.Done():
			return fmt.Errorf("the registry does not answer at %s: %w: %s", r.Host, context.Cause(ctx), r.output.String())
		}
	}
}

func (r *Registry) isServing(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Host+"/v2/", nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close()) == nil && response.StatusCode == http.StatusOK
}

// Stop ends the registry. It may be called twice.
func (r *Registry) Stop() error {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(stopTimeout):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	if err := os.Remove(r.config); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// tail is a writer that keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const limit = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-limit):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
