package runtime

// This file queries a running runtime over its own socket, by CRI. The answer describes the
// daemon's configuration, which may differ from its file.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// Sockets are the sockets of runtimes. Containerd's default comes last: if there is another
// one too, it belongs to Docker's containerd, which no kubelet uses.
var Sockets = []string{
	"/run/k3s/containerd/containerd.sock", // k3s, RKE2
	"/run/k0s/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/run/crio/crio.sock",
	"/run/containerd/containerd.sock",
}

// QueryTimeout limits the time that Query waits for a response.
const QueryTimeout = 2 * time.Second

// Limits on a runtime's response. A verbose status of containerd has about 10 KiB.
const (
	maxResponse = 1 << 20
	maxNames    = 64
	maxName     = 256
	maxPath     = 4096
)

// Info is a running runtime's description of itself.
type Info struct {
	nodestate.Runtime
	Default string // the handler of pods that name none; "" if unknown
	// Programs are the host paths of the handlers' programs, by name, as in effect. Containerd and
	// Docker report some of them.
	Programs map[string]string
}

// FindSocket returns the first of the paths at which there is a socket, "" if there is none.
func FindSocket(root *host.Root, paths []string) string {
	for _, p := range paths {
		if info, err := root.Stat(p); err == nil && info.Mode()&fs.ModeSocket != 0 {
			return p
		}
	}
	return ""
}

// Query queries the runtime that listens on a socket of the host. With an error, the result
// only has the socket, and a message with the reason and a remedy.
func Query(ctx context.Context, root *host.Root, at string) (Info, error) {
	return QueryWithin(ctx, root, at, QueryTimeout)
}

// QueryWithin is like Query with another limit than QueryTimeout.
func QueryWithin(ctx context.Context, root *host.Root, at string, limit time.Duration) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := queryCRI(ctx, root, at)
	a.Socket = at
	if err != nil {
		a = Info{Runtime: nodestate.Runtime{Socket: at, Message: describeSilence(at, limit, err)}}
	}
	return a, err
}

// Dial returns a connection to the runtime that listens on a socket of the host. Responses
// are limited to limit bytes. It connects at its first use. Each call needs a deadline.
func Dial(root *host.Root, at string, limit int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path.Base(at),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return watch.Dial(ctx, root, at) }))
}

func queryCRI(ctx context.Context, root *host.Root, at string) (a Info, err error) {
	conn, err := Dial(root, at, maxResponse)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	version, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return a, err
	}
	verbose, err := client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return a, err
	}
	return parseCRI(version, verbose)
}

// permit is the next action where the connection is not permitted.
const permit = "run as root of the host, and let SELinux and AppArmor allow it"

// describeSilence describes why a runtime does not respond, with a remedy.
func describeSilence(at string, limit time.Duration, err error) string {
	why := record.Clean(status.Convert(err).Message(), 1024)
	if strings.Contains(why, syscall.EACCES.Error()) { // gRPC keeps only the text
		return "no permission to connect to the container runtime at " + at + " (" + why + "); " + permit
	}
	switch status.Code(err) {
	case codes.Unimplemented:
		return "the container runtime at " + at + " does not serve CRI (" + why + `); take "cri" out of disabled_plugins in its configuration and restart it, or say with --runtime-socket which runtime the kubelet uses`
	case codes.Unavailable:
		return "the container runtime at " + at + " is not reached (" + why + "); check that it runs, or say with --runtime-socket which runtime the kubelet uses"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the container runtime at %s does not answer within %v; see its log", at, limit)
	}
	return "the container runtime at " + at + " gives no usable answer: " + why
}

// reportedConfig is the part of a runtime's reported configuration that is used: containerd reports
// that of its CRI plugin, CRI-O its own below "crio".
type reportedConfig struct {
	EnableCDI   *bool    `json:"enableCDI"`
	CDISpecDirs []string `json:"cdiSpecDirs"`
	Containerd  struct {
		Default  string                     `json:"defaultRuntimeName"`
		Runtimes map[string]json.RawMessage `json:"runtimes"`
	} `json:"containerd"`
	CRIO struct {
		CDISpecDirs []string
		Default     string `json:"DefaultRuntime"`
	} `json:"crio"`
}

func parseCRI(version *runtimeapi.VersionResponse, verbose *runtimeapi.StatusResponse) (Info, error) {
	a := Info{Runtime: nodestate.Runtime{
		Name:    record.Clean(version.GetRuntimeName(), maxName),
		Version: record.Clean(version.GetRuntimeVersion(), maxName),
	}}
	if a.Name == "" {
		return a, errors.New("it does not report its name")
	}
	var c reportedConfig
	if text := verbose.GetInfo()["config"]; text != "" {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return a, fmt.Errorf("its reported configuration: %w", err)
		}
	}
	a.CDI = resolves(a.Name, a.Version, c.EnableCDI)
	for _, d := range slices.Concat(c.CDISpecDirs, c.CRIO.CDISpecDirs) {
		if path.IsAbs(d) && isPlain(d, maxPath) && len(a.CDIDirs) < maxNames {
			a.CDIDirs = append(a.CDIDirs, d)
		}
	}
	names := slices.Collect(maps.Keys(c.Containerd.Runtimes))
	for _, h := range verbose.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) { // the one without a name stands for the default
		if n != "" && isPlain(n, maxName) && len(a.Handlers) < maxNames {
			a.Handlers = append(a.Handlers, n)
		}
	}
	if a.Default = c.Containerd.Default + c.CRIO.Default; !isPlain(a.Default, maxName) {
		a.Default = ""
	}
	a.DefaultHandler = a.Default
	for _, name := range a.Handlers {
		var r struct {
			Path    string `json:"runtimePath"`
			Options struct {
				Program string `json:"BinaryName"`
			} `json:"options"`
		}
		if json.Unmarshal(c.Containerd.Runtimes[name], &r) == nil {
			a.setProgram(name, cmp.Or(r.Options.Program, r.Path))
		}
	}
	a.GPUHandlers = gpuHandlers(a.Handlers, a.Programs)
	return a, nil
}

func (a *Info) setProgram(handler, program string) {
	if program == "" || !isPlain(program, maxPath) {
		return
	}
	if a.Programs == nil {
		a.Programs = map[string]string{}
	}
	a.Programs[handler] = program
}

// gpuHandlers returns the handlers that give containers the GPUs that they request by variables
// or mounts, nil if no handler is known. NVIDIA's programs and usual handlers have "nvidia" in their
// names.
func gpuHandlers(handlers []string, programs map[string]string) []string {
	if len(handlers) == 0 {
		return nil
	}
	found := []string{}
	for _, name := range handlers {
		program := path.Base(programs[name])
		if program == "gpu-oci-runtime" || strings.Contains(program, "nvidia") || strings.Contains(name, "nvidia") {
			found = append(found, name)
		}
	}
	return found
}

// isPlain reports whether a text of a runtime is printable and at most limit bytes long.
func isPlain(s string, limit int) bool { return s == record.Clean(s, limit) }

// resolves reports whether the runtime resolves CDI names, nil if unknown. Containerd has a
// switch for it from 1.7 to 2.3, and always does so since.
func resolves(name, version string, enabled *bool) *bool {
	release, known := ParseRelease(version)
	if name != containerdName || enabled != nil || !known {
		return enabled
	}
	always := release.AtLeast(2, 0)
	return &always
}
