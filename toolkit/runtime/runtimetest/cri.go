package runtimetest

// This file is a fake CRI server: Version, Status, and the lists and states of containers.

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRIConfig describes the runtime.
type CRIConfig struct {
	Name, Version string
	CDI           *bool    // nil if it does not report it
	Dirs          []string // for CDI specifications
	Handlers      []string // the first is the default
	Hangs         bool     // Version never responds
	Huge          bool     // its verbose Status is larger than clients accept
	Config        string   // replaces the configuration that matches the above
	NoCRI         bool     // it serves another API, as Docker's containerd
	Containers    []CRIContainer
}

// CRIContainer is a container that it runs.
type CRIContainer struct {
	ID, Name, Namespace, Pod string
	Image                    string
	Handler                  string // "" for the default
	Info                     string // the info in its verbose status, JSON
	Gone                     bool   // it ends between the list and the request of its status
}

// CRI is a running fake runtime.
type CRI struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	conf   CRIConfig
	server *grpc.Server
	end    chan struct{}
	served chan error
	once   sync.Once
	err    error
}

// StartCRI starts a runtime that listens at path in this process's file system.
func StartCRI(path string, conf CRIConfig) (*CRI, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // as after a kill
	r := &CRI{conf: conf, server: grpc.NewServer(), end: make(chan struct{}), served: make(chan error, 1)}
	if !conf.NoCRI {
		runtimeapi.RegisterRuntimeServiceServer(r.server, r)
	}
	go func() { r.served <- r.server.Serve(ln) }()
	return r, nil
}

// Stop stops the runtime. Its socket stays, as after a kill. It may be called again.
func (r *CRI) Stop() error {
	r.once.Do(func() {
		close(r.end)
		r.server.Stop()
		r.err = <-r.served
	})
	return r.err
}

// Version returns the runtime's name and version.
func (r *CRI) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if r.conf.Hangs {
		select {
		case <-ctx.Done():
		case <-r.end:
		}
		return nil, ctx.Err()
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: r.conf.Name, RuntimeVersion: r.conf.Version, RuntimeApiVersion: "v1"}, nil
}

// Status returns the runtime's abilities.
func (r *CRI) Status(_ context.Context, in *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	out := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{}}
	for i, h := range r.conf.Handlers {
		if i == 0 {
			out.RuntimeHandlers = append(out.RuntimeHandlers, &runtimeapi.RuntimeHandler{})
		}
		out.RuntimeHandlers = append(out.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: h})
	}
	if !in.GetVerbose() {
		return out, nil
	}
	config := r.conf.Config
	if config == "" {
		data, err := json.Marshal(r.config())
		if err != nil {
			return nil, err
		}
		config = string(data)
	}
	if r.conf.Huge {
		config += strings.Repeat(" ", 2<<20)
	}
	out.Info = map[string]string{"config": config, "golang": `"go1.26"`}
	return out, nil
}

// config returns the configuration as containerd and CRI-O report it.
func (r *CRI) config() map[string]any {
	if r.conf.Name != "containerd" {
		c := map[string]any{"CDISpecDirs": r.conf.Dirs}
		if len(r.conf.Handlers) > 0 {
			c["DefaultRuntime"] = r.conf.Handlers[0]
		}
		return map[string]any{"sandboxImage": "pause", "crio": c}
	}
	runtimes := map[string]any{}
	for _, h := range r.conf.Handlers {
		runtimes[h] = map[string]any{"runtimeType": "io.containerd.runc.v2"}
	}
	c := map[string]any{"containerd": map[string]any{"runtimes": runtimes}, "cdiSpecDirs": r.conf.Dirs}
	if len(r.conf.Handlers) > 0 {
		c["containerd"] = map[string]any{"runtimes": runtimes, "defaultRuntimeName": r.conf.Handlers[0]}
	}
	if r.conf.CDI != nil {
		c["enableCDI"] = *r.conf.CDI
	}
	return c
}

// ListContainers lists the running containers.
func (r *CRI) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	out := &runtimeapi.ListContainersResponse{}
	for _, c := range r.conf.Containers {
		out.Containers = append(out.Containers, &runtimeapi.Container{
			Id: c.ID, PodSandboxId: "sandbox-" + c.ID, Metadata: &runtimeapi.ContainerMetadata{Name: c.Name},
			Image: &runtimeapi.ImageSpec{Image: c.Image}, State: runtimeapi.ContainerState_CONTAINER_RUNNING,
			Labels: map[string]string{"io.kubernetes.pod.namespace": c.Namespace, "io.kubernetes.pod.name": c.Pod},
		})
	}
	return out, nil
}

// ListPodSandbox lists their pods, one each.
func (r *CRI) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, c := range r.conf.Containers {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{
			Id: "sandbox-" + c.ID, RuntimeHandler: c.Handler, State: runtimeapi.PodSandboxState_SANDBOX_READY,
			Metadata: &runtimeapi.PodSandboxMetadata{Name: c.Pod, Namespace: c.Namespace},
		})
	}
	return out, nil
}

// ContainerStatus returns the status of a container.
func (r *CRI) ContainerStatus(_ context.Context, in *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	for _, c := range r.conf.Containers {
		if c.ID != in.GetContainerId() || c.Gone {
			continue
		}
		out := &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: c.ID, Image: &runtimeapi.ImageSpec{Image: c.Image}}}
		if in.GetVerbose() {
			out.Info = map[string]string{"info": c.Info}
		}
		return out, nil
	}
	return nil, status.Error(codes.NotFound, "no container "+in.GetContainerId())
}
