package audit

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// The labels that the kubelet gives every container.
const (
	labelNamespace = "io.kubernetes.pod.namespace"
	labelPod       = "io.kubernetes.pod.name"
)

// criService is a client of a runtime's CRI socket.
type criService struct {
	root     *host.Root
	at       string        // the socket's path on the host
	limit    time.Duration // of each call
	client   runtimeapi.RuntimeServiceClient
	fallback string            // the default handler; "" if unknown
	handlers map[string]string // by the ID of a pod's sandbox
}

// collectCRI returns the running containers of the runtime at a socket, as collectDocker does for
// Docker.
func collectCRI(ctx context.Context, root *host.Root, at string, limit time.Duration) (all []Container, err error) {
	response, err := runtime.QueryWithin(ctx, root, at, limit)
	if err != nil {
		return nil, errors.New(response.Message)
	}
	conn, err := runtime.Dial(root, at, maxResponse)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	s := &criService{root: root, at: at, limit: limit, client: runtimeapi.NewRuntimeServiceClient(conn), fallback: response.Default, handlers: map[string]string{}}
	if err := s.readHandlers(ctx); err != nil {
		return nil, err
	}
	listed, err := call(ctx, limit, s.client.ListContainers, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, fmt.Errorf("the container runtime at %s does not list its containers: %w", at, err)
	}
	if n := len(listed.GetContainers()); n > maxContainers {
		return nil, fmt.Errorf("the container runtime at %s lists %d containers, but no more than %d are supported", at, n, maxContainers)
	}
	return s.inspectAll(ctx, listed.GetContainers())
}

// readHandlers reads the handler of each pod.
func (s *criService) readHandlers(ctx context.Context) error {
	pods, err := call(ctx, s.limit, s.client.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("the container runtime at %s does not list its pods: %w", s.at, err)
	}
	for _, p := range pods.GetItems() {
		s.handlers[p.GetId()] = record.Clean(p.GetRuntimeHandler(), maxText)
	}
	return nil
}

func (s *criService) inspectAll(ctx context.Context, listed []*runtimeapi.Container) ([]Container, error) {
	var all []Container
	var failed []error
	for _, l := range listed {
		c, err := s.inspect(ctx, l)
		switch {
		case status.Code(err) == codes.NotFound: // it has ended meanwhile
		case ctx.Err() != nil:
			return all, errors.Join(append(failed, fmt.Errorf("%d of %d containers were inspected: %w", len(all), len(listed), ctx.Err()))...)
		case err != nil:
			failed = append(failed, fmt.Errorf("container %s (%s): %w", c.Where(), c.ID, err))
		default:
			all = append(all, c)
		}
	}
	return all, errors.Join(failed...)
}

func (s *criService) inspect(ctx context.Context, l *runtimeapi.Container) (Container, error) {
	c := Container{
		Namespace: record.Clean(l.GetLabels()[labelNamespace], maxText), Pod: record.Clean(l.GetLabels()[labelPod], maxText),
		Name: record.Clean(l.GetMetadata().GetName(), maxText), ID: record.Clean(l.GetId(), maxText),
		Image: record.Clean(l.GetImage().GetImage(), maxText), Handler: s.handlers[l.GetPodSandboxId()],
	}
	response, err := call(ctx, s.limit, s.client.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: l.GetId(), Verbose: true})
	if err != nil {
		return c, err
	}
	if named := record.Clean(response.GetStatus().GetImage().GetUserSpecifiedImage(), maxText); named != "" {
		c.Image = named
	}
	if c.Handler == "" && s.fallback != "" {
		c.Handler, c.Default = s.fallback, true
	}
	c.Reads = readsVariable(c.Handler)
	pid, err := parseInfo(response.GetInfo()["info"], &c)
	if err != nil {
		return c, fmt.Errorf("the runtime's status of it cannot be parsed: %w", err)
	}
	c.inspectDevices(s.root, s.bundles(c.ID), pid)
	return c, nil
}

// readsVariable reports whether a handler of that name reads the variable: nvidia, or
// one that the reference installs besides (nvidia-cdi, nvidia-legacy, nvidia-experimental).
func readsVariable(handler string) bool {
	return handler == "nvidia" || strings.HasPrefix(handler, "nvidia-")
}

// bundles returns the possible paths of a container's OCI configuration. containerd has
// it below its state directory, which is next to its socket or named like it; CRI-O has
// it in the run root of its storage.
func (s *criService) bundles(id string) []string {
	if !isIdentifier(id) {
		return nil
	}
	const tasks = "io.containerd.runtime.v2.task/k8s.io"
	dir := path.Dir(s.at)
	return []string{
		path.Join(dir, tasks, id, "config.json"),
		path.Join(dir, "containerd", tasks, id, "config.json"),
		path.Join("/run/containers/storage/overlay-containers", id, "userdata/config.json"),
	}
}

// call makes one call with a deadline of its own.
func call[Q, A, O any](ctx context.Context, limit time.Duration, method func(context.Context, Q, ...O) (A, error), request Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return method(ctx, request)
}
