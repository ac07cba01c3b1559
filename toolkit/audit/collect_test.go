package audit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

const (
	at       = "/run/containerd/containerd.sock"
	dockerAt = "/run/docker.sock"
)

// containerdInfo is a container's info in the format of containerd 1.7 and 2.
const containerdInfo = `{"sandboxID":"s","pid":4711,"removing":false,"snapshotKey":"k","snapshotter":"overlayfs","runtimeType":"io.containerd.runc.v2",
"runtimeOptions":{"binary_name":"/usr/local/nvidia/toolkit/nvidia-container-runtime","systemd_cgroup":true},
"config":{"metadata":{"name":"main"},"envs":[{"key":"NVIDIA_VISIBLE_DEVICES","value":"all"}],"annotations":{"io.kubernetes.container.hash":"1"},"linux":{"security_context":{"namespace_options":{"pid":1}}}},
"runtimeSpec":{"ociVersion":"1.2.0","process":{"user":{"uid":0,"gid":0},"args":["sleep"],"env":["PATH=/bin","NVIDIA_VISIBLE_DEVICES=void","NVIDIA_VISIBLE_DEVICES=all"],"capabilities":{"bounding":["CAP_CHOWN"]}},
"mounts":[{"destination":"/proc","type":"proc"}],"linux":{"devices":[{"path":"/dev/fuse"}]}}}`

// crioInfo is a container's info in CRI-O's format. A CDI device only shows by its parts.
const crioInfo = `{"sandboxID":"s","pid":4712,"runtimeSpec":{"process":{"env":["NVIDIA_VISIBLE_DEVICES=void"],"capabilities":{"bounding":["CAP_CHOWN"]}},"annotations":{"io.kubernetes.cri-o.Image":"x"},
"mounts":[{"destination":"/usr/lib64/libcuda.so.580.65.06"}],"linux":{"devices":[{"path":"/dev/nvidia0"},{"path":"/dev/nvidiactl"}]}},"privileged":false}`

func newHost(t *testing.T, files map[string]string) *host.Root {
	t.Helper()
	dir, err := os.MkdirTemp("", "a") // short, for the sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for name, content := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		require.NoError(t, os.WriteFile(dir+name, []byte(content), 0o644))
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

func serveCRI(t *testing.T, root *host.Root, conf runtimetest.CRIConfig) {
	t.Helper()
	if conf.Name == "" {
		conf.Name, conf.Version = "containerd", "v2.1.4"
	}
	runtime, err := runtimetest.StartCRI(root.Path(at), conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runtime.Stop()) })
}

// env returns the info of a container with the value in its image's environment, and,
// if asked is set, in its own.
func env(value string, asked bool) string {
	envs := ""
	if asked {
		envs = `{"key":"NVIDIA_VISIBLE_DEVICES","value":"` + value + `"}`
	}
	return fmt.Sprintf(`{"config":{"envs":[%s]},"runtimeSpec":{"process":{"env":["NVIDIA_VISIBLE_DEVICES=%s"]}}}`, envs, value)
}

func TestCollectOverCRI(t *testing.T) {
	const tasks = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/"
	root := newHost(t, map[string]string{
		tasks + "c1/config.json": `{"process":{"env":["NVIDIA_VISIBLE_DEVICES=void"]},"linux":{"devices":[{"path":"/dev/nvidia1"}]},"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"}]}}`,
		"/proc/4711/mountinfo":   "1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 /nvidia0 /dev/nvidia0 rw,nosuid - devtmpfs udev rw\n3 1 0:2 /nvidiactl /dev/nvidiactl rw - devtmpfs udev rw\nshort\n",
	})
	pod := func(id, info string) runtimetest.CRIContainer {
		return runtimetest.CRIContainer{ID: id, Name: "main", Namespace: "ml", Pod: "pod-" + id, Image: "cuda:12", Handler: "nvidia", Info: info}
	}
	containers := []runtimetest.CRIContainer{
		pod("c1", containerdInfo), pod("c2", crioInfo), pod("c3", env("all", false)), pod("c4", env("all", true)),
		pod("c5", `{"config":{"CDI_devices":[{"name":"k8s.gpuready.io/gpu=`+uuid+`"},{"name":"vendor.com/net=eth0"}]},"runtimeSpec":{}}`),
		pod("c6", `{"config":{"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=0,nvidia.com/gpu=1"},"linux":{"security_context":{"privileged":true}}},"runtimeSpec":{}}`),
		pod("c7", `{"runtimeSpec":{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"],"capabilities":{"bounding":["CAP_SYS_ADMIN"]}}}}`),
		pod("c8", `{"runtimeSpec":{"mounts":[{"destination":"/var/run/nvidia-container-devices/0"}]}}`),
		pod("c9", env("none", true)), pod("gone", ""),
	}
	containers[3].Handler = ""
	containers[9].Gone = true
	serveCRI(t, root, runtimetest.CRIConfig{Handlers: []string{"runc", "nvidia"}, Containers: containers})

	findings, err := Run(t.Context(), root, at, Options{All: true, Timeout: time.Minute})
	require.NoError(t, err)
	byID := map[string]Finding{}
	for _, f := range findings {
		byID[f.ID] = f
	}
	require.Len(t, byID, 9)
	require.Equal(t, Container{
		Namespace: "ml", Pod: "pod-c1", Name: "main", ID: "c1", Image: "cuda:12", Value: "all", Handler: "nvidia", Reads: true,
		Inspected: true, Devices: []string{"/dev/nvidia0", "/dev/nvidia1"},
	}, byID["c1"].Container, "the last value counts, and what a handler made of it in the bundle does not")
	for id, want := range map[string]Verdict{"c1": Loses, "c2": Keeps, "c3": Loses, "c4": Unaffected, "c5": Keeps, "c6": Keeps, "c7": Keeps, "c8": Keeps, "c9": Unaffected} {
		require.Equal(t, want, byID[id].Verdict, "%s: %s", id, byID[id].Reason)
	}
	require.True(t, byID["c2"].Injected)
	require.True(t, byID["c3"].FromImage)
	require.False(t, byID["c4"].FromImage)
	require.True(t, byID["c4"].Default)
	require.Equal(t, []string{"k8s.gpuready.io/gpu=" + uuid}, byID["c5"].CDI)
	require.Equal(t, []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}, byID["c6"].CDI)
	require.True(t, byID["c6"].Privileged)
	require.Equal(t, Loses, findings[0].Verdict, "those that lose come first")

	some, err := Run(t.Context(), root, at, Options{Timeout: time.Minute})
	require.NoError(t, err)
	require.Len(t, some, 8, "all but the one that asks for none and has none")
}

func TestOneUnreadableContainerDoesNotHideTheOthers(t *testing.T) {
	root := newHost(t, nil)
	serveCRI(t, root, runtimetest.CRIConfig{Containers: []runtimetest.CRIContainer{
		{ID: "../../etc", Name: "a", Namespace: "n", Pod: "p", Handler: "nvidia", Info: `{"pid":"many"}`},
		{ID: "b", Name: "b\x1b[2J\nkeeps", Namespace: "n", Pod: "p", Handler: "nvidia", Info: env("all", true)},
	}})
	findings, err := Run(t.Context(), root, at, Options{Timeout: time.Minute})
	require.ErrorContains(t, err, "container n/p/a (../../etc): the runtime's status of it cannot be parsed")
	require.Len(t, findings, 1)
	require.Equal(t, Loses, findings[0].Verdict)
	require.NotContains(t, findings[0].Where(), "\x1b")
	require.Nil(t, (&criService{at: at}).bundles("../../etc"))
	require.Nil(t, (&dockerAPI{}).configPaths("a/b"))
	require.NotNil(t, (&dockerAPI{}).configPaths(strings.Repeat("a", 256)))
	require.Nil(t, (&dockerAPI{}).configPaths(strings.Repeat("a", 257)), "too long")
}

func TestRunTimesOutOnASilentRuntime(t *testing.T) {
	root := newHost(t, nil)
	serveCRI(t, root, runtimetest.CRIConfig{Hangs: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Run(ctx, root, at, Options{})
	require.ErrorContains(t, err, "does not answer")
	_, err = Run(t.Context(), root, "/run/nobody.sock", Options{})
	require.ErrorContains(t, err, "is not reached")
}

func serveDocker(t *testing.T, root *host.Root, answers map[string]string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(root.Path(dockerAt)), 0o755))
	l, err := net.Listen("unix", root.Path(dockerAt))
	require.NoError(t, err)
	end := make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.Method+" "+r.URL.Path]
		switch {
		case !known:
			http.NotFound(w, r)
		case answer == "hangs":
			select {
			case <-end:
			case <-r.Context().Done():
			}
		case answer == "huge":
			_, _ = w.Write([]byte(`"` + strings.Repeat("x", maxResponse) + `"`))
		case answer == "fails":
			http.Error(w, "daemon is\nbroken", http.StatusInternalServerError)
		default:
			_, _ = w.Write([]byte(answer))
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		close(end)
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

const daemon = `{"DefaultRuntime":"runc","Runtimes":{"runc":{"path":"runc"},"nvidia":{"path":"/usr/bin/nvidia-container-runtime","runtimeArgs":[]},"gpu":{"path":"/usr/local/nvidia/gpuready/gpu-oci-runtime"}}}`

func TestCollectOverDockersAPI(t *testing.T) {
	root := newHost(t, map[string]string{
		"/run/containerd/io.containerd.runtime.v2.task/moby/d1/config.json": `{"linux":{"devices":[{"path":"/dev/nvidia0"}]}}`,
		"/proc/7/mountinfo": "",
	})
	serveDocker(t, root, map[string]string{
		"GET /info":               daemon,
		"GET /containers/json":    `[{"Id":"d1"},{"Id":"d2"},{"Id":"d3"},{"Id":"d4"},{"Id":"d5"},{"Id":"gone"}]`,
		"GET /containers/d1/json": `{"Name":"/train","Config":{"Image":"cuda","Env":["NVIDIA_VISIBLE_DEVICES=0"]},"HostConfig":{"Runtime":"gpu"},"State":{"Pid":7}}`,
		"GET /containers/d2/json": `{"Name":"/flag","Config":{"Image":"cuda","Env":["NVIDIA_VISIBLE_DEVICES=all"]},"HostConfig":{"Runtime":"runc","DeviceRequests":[{"Driver":"","Capabilities":[["gpu"]]}]}}`,
		"GET /containers/d3/json": `{"Name":"/cdi","Config":{"Image":"cuda"},"HostConfig":{"Runtime":"runc","DeviceRequests":[{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu=all"]}]}}`,
		"GET /containers/d4/json": `{"Name":"/all","Config":{"Image":"cuda","Env":["NVIDIA_VISIBLE_DEVICES=all"]},"HostConfig":{"Runtime":"nvidia","CapAdd":["CAP_SYS_ADMIN"]}}`,
		"GET /containers/d5/json": `{"Name":"/image","Config":{"Image":"cuda","Env":["NVIDIA_VISIBLE_DEVICES=all"]},"HostConfig":{"Runtime":"runc"}}`,
	})
	findings, err := Run(t.Context(), root, dockerAt, Options{Runtime: runtime.Docker, Timeout: time.Minute})
	require.NoError(t, err)
	got := map[string]Verdict{}
	for _, f := range findings {
		got[f.Where()] = f.Verdict
	}
	require.Equal(t, map[string]Verdict{"train": Loses, "flag": Keeps, "cdi": Keeps, "all": Keeps, "image": Unaffected}, got)
	require.Equal(t, Container{Name: "train", ID: "d1", Image: "cuda", Value: "0", Handler: "gpu", Reads: true, Inspected: true, Devices: []string{"/dev/nvidia0"}}, findings[0].Container)
}

func TestBadResponsesOfDockerAreErrors(t *testing.T) {
	for answer, want := range map[string]string{
		"huge": "has more than", "fails": "500 Internal Server Error: daemon is broken", "[]": "cannot unmarshal", "hangs": "deadline exceeded",
	} {
		root := newHost(t, nil)
		serveDocker(t, root, map[string]string{"GET /info": answer})
		limit := time.Minute
		if answer == "hangs" {
			limit = 50 * time.Millisecond
		}
		_, err := Run(t.Context(), root, dockerAt, Options{Runtime: runtime.Docker, Timeout: limit})
		require.ErrorContains(t, err, want)
	}
	_, err := Run(t.Context(), newHost(t, nil), dockerAt, Options{Runtime: runtime.Docker})
	require.ErrorContains(t, err, "set DOCKER_SOCKET")
}
