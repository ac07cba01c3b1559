package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerdSocket is the socket on which containerd serves CRI.
const ContainerdSocket = "/run/containerd/containerd.sock"

// containerd is a client that uses containerd over CRI, as a kubelet does.
type containerd struct {
	conn *grpc.ClientConn
	cri  runtimeapi.RuntimeServiceClient
	pods int
}

func newContainerd() (*containerd, error) {
	often := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient("unix://"+ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: often, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	return &containerd{conn: conn, cri: runtimeapi.NewRuntimeServiceClient(conn)}, nil
}

func (c *containerd) command() []string { return []string{bin + "/containerd"} }

func (c *containerd) close() error { return c.conn.Close() }

func (c *containerd) ready(ctx context.Context) error {
	c.conn.ResetConnectBackoff()
	return until(ctx, func() error {
		// It listens before its CRI plugin answers: "server is not initialized yet".
		_, err := c.cri.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		return err
	})
}

func (c *containerd) load(ctx context.Context, file string) error {
	return runCommand(ctx, bin+"/ctr", "--namespace", "k8s.io", "images", "import", file)
}

// runCommand runs a program of the host.
func runCommand(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, out)
	}
	return nil
}

func (c *containerd) run(ctx context.Context, s Spec) (output string, err error) {
	p, err := c.launch(ctx, s)
	if err != nil {
		return "", err
	}
	defer func() {
		if removed := c.remove(context.WithoutCancel(ctx), p); err == nil {
			err = removed
		}
	}()
	exit, err := c.wait(ctx, p.container)
	if err != nil {
		return "", err
	}
	log, err := os.ReadFile(filepath.Join(p.logs, "log"))
	if err != nil {
		return "", err
	}
	return containerEnded(readLog(string(log)), exit)
}

func (c *containerd) begin(ctx context.Context, s Spec) error {
	_, err := c.launch(ctx, s)
	return err
}

// pod is a pod with a started container.
type pod struct{ sandbox, container, logs string }

// launch starts a pod with a container. If it fails, nothing is left.
func (c *containerd) launch(ctx context.Context, s Spec) (p pod, err error) {
	c.pods++
	config := podConfig(c.pods)
	if s.Namespace != "" {
		config.Metadata.Namespace = s.Namespace
	}
	config.Annotations = s.Annotations
	p.logs = config.GetLogDirectory()
	if err := os.MkdirAll(p.logs, 0o755); err != nil {
		return p, err
	}
	sandbox, err := c.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: s.Handler})
	if err != nil {
		return p, fmt.Errorf("pod: %w", err)
	}
	p.sandbox = sandbox.GetPodSandboxId()
	defer func() {
		if err != nil {
			_ = c.remove(context.WithoutCancel(ctx), p) // the first error is returned
		}
	}()
	created, err := c.cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: config, Config: containerConfig(s),
	})
	if err != nil {
		return p, fmt.Errorf("create the container: %w", err)
	}
	p.container = created.GetContainerId()
	if _, err := c.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container}); err != nil {
		return p, fmt.Errorf("start the container: %w", err)
	}
	return p, nil
}

// remove removes a pod and its container, which may run.
func (c *containerd) remove(ctx context.Context, p pod) error {
	if _, err := c.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return fmt.Errorf("stop the pod: %w", err)
	}
	if _, err := c.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return fmt.Errorf("remove the pod: %w", err)
	}
	return nil
}

// containerEnded returns Run's results for a container that ended.
func containerEnded(output string, exit int) (string, error) {
	if exit != 0 {
		return output, fmt.Errorf("the container ended with %d; it printed:\n%s", exit, output)
	}
	return output, nil
}

func podConfig(number int) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: strconv.Itoa(number)},
		LogDirectory: filepath.Join(work, "pods", strconv.Itoa(number)),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    "/" + Name(),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: hostNetwork()},
		},
	}
}

// hostNetwork saves a pod its own network, and the node CNI.
func hostNetwork() *runtimeapi.NamespaceOption {
	return &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
}

func containerConfig(s Spec) *runtimeapi.ContainerConfig {
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "container"},
		Image:    &runtimeapi.ImageSpec{Image: TestImage},
		Command:  s.Args,
		LogPath:  "log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: hostNetwork(), NoNewPrivs: true,
		}},
	}
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: name, Value: []byte(value)})
	}
	for _, name := range s.CDI {
		c.CDIDevices = append(c.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	return c
}

// wait waits until a container has ended. It polls, because containerd 1.6 does not report it.
func (c *containerd) wait(ctx context.Context, id string) (exit int, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		reply, err := c.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return 0, fmt.Errorf("status of the container: %w", err)
		}
		if s := reply.GetStatus(); s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return int(s.GetExitCode()), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("the container runs: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// readLog returns a container's output from its log: lines of time, stream, F and text.
func readLog(log string) string {
	var out strings.Builder
	for line := range strings.Lines(log) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			out.WriteString(parts[3])
		}
	}
	return out.String()
}

func (c *containerd) status(ctx context.Context) (RuntimeStatus, error) {
	version, err := c.cri.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return RuntimeStatus{}, err
	}
	reply, err := c.cri.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return RuntimeStatus{}, err
	}
	var config struct {
		EnableCDI  *bool `json:"enableCDI"` // exists from 1.7 to 2.3
		Containerd struct {
			DefaultRuntimeName string                     `json:"defaultRuntimeName"`
			Runtimes           map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(reply.GetInfo()["config"]), &config); err != nil {
		return RuntimeStatus{}, fmt.Errorf("the configuration that containerd says it has: %w", err)
	}
	cdi := strings.HasPrefix(strings.TrimPrefix(version.GetRuntimeVersion(), "v"), "2.") // and always on since
	if config.EnableCDI != nil {
		cdi = *config.EnableCDI
	}
	return RuntimeStatus{
		Version: version.GetRuntimeVersion(), Default: config.Containerd.DefaultRuntimeName, CDI: cdi,
		Handlers: slices.Sorted(maps.Keys(config.Containerd.Runtimes)),
	}, nil
}
