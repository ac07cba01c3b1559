package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// module is a folder with a go.mod, and how to build its tools.
type module struct {
	name     string // the folder's name
	project  string // the Go module that it pins; its version is the version of the binaries
	cgo      bool   // otherwise the binaries are static anyway
	allow    string // CGO_LDFLAGS_ALLOW: additional linker flags for dependencies
	flags    string // of go build
	ldflags  string // {version} is "v1.37.1", {bare} "1.37.1", {minor} "37"
	binaries []program
}

type program struct {
	name  string
	tool  string        // the package of the tool
	about time.Duration // first build time with 2 cores, after those above it
}

// modules are in build order: the quickest first, so that missing build tools are reported
// early.
var modules = []module{
	{
		name:    "runc",
		project: "github.com/opencontainers/runc",
		cgo:     true, // libseccomp, and C before Go's runtime starts
		flags:   "-tags=grpcnotrace,seccomp,urfave_cli_no_docs,netgo,osusergo -buildmode=pie",
		ldflags: "-linkmode external -extldflags -static-pie", // carries its version itself
		binaries: []program{
			{"runc", "github.com/opencontainers/runc", 40 * time.Second},
		},
	},
	{
		name:    "cni",
		project: "github.com/containernetworking/plugins",
		flags:   "-tags=grpcnotrace",
		ldflags: "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion={version}",
		binaries: []program{
			{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge", 25 * time.Second},
			{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", time.Second},
			{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback", time.Second},
		},
	},
	{
		name:    "etcd",
		project: "go.etcd.io/etcd/server/v3",
		flags:   "-tags=grpcnotrace",
		ldflags: "", // carries its version itself
		binaries: []program{
			{"etcd", "go.etcd.io/etcd/server/v3", time.Minute},
		},
	},
	{
		name:    "containerd",
		project: "github.com/containerd/containerd/v2",
		// Without snapshotters that need C or unavailable tools.
		flags:   "-tags=grpcnotrace,no_btrfs,no_zfs,no_devmapper,urfave_cli_no_docs,netgo,osusergo",
		ldflags: "-X github.com/containerd/containerd/v2/version.Version={version}",
		binaries: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd", 105 * time.Second},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", 5 * time.Second},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr", 10 * time.Second},
		},
	},
	{
		name:    "kubernetes",
		project: "k8s.io/kubernetes",
		flags:   "-tags=grpcnotrace,notest", // as upstream, except SELinux
		ldflags: "-X k8s.io/component-base/version.gitVersion={version}" +
			" -X k8s.io/component-base/version.gitMajor=1" +
			" -X k8s.io/component-base/version.gitMinor={minor}" +
			" -X k8s.io/component-base/version.gitTreeState=clean",
		binaries: []program{
			{"kubelet", "k8s.io/kubernetes/cmd/kubelet", 5 * time.Minute},
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 150 * time.Second},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", time.Minute},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 30 * time.Second},
			{"kubectl", "k8s.io/kubernetes/cmd/kubectl", time.Minute},
		},
	},
}

// kubernetesVersions lists the other minor versions of Kubernetes, for `make e2e-versions`. Each has a
// folder.
var kubernetesVersions = []string{"1.30", "1.32", "1.33", "1.34", "1.35", "1.36"}

// kubernetesAt returns the module of a minor version of Kubernetes; "": the newest.
func kubernetesAt(version, source string) (module, error) {
	m := modules[len(modules)-1]
	mod, err := os.ReadFile(filepath.Join(source, m.name, "go.mod"))
	if err != nil {
		return m, fmt.Errorf("module of the cluster's binaries: %w", err)
	}
	newest := "1." + minor(required(string(mod), m.project))
	switch {
	case version == "" || version == newest:
		return m, nil
	case !slices.Contains(kubernetesVersions, version):
		return m, fmt.Errorf("there is no module of Kubernetes %s: there are %s and %s", version, strings.Join(kubernetesVersions, ", "), newest)
	}
	m.name += "-" + version
	return m, nil
}

// docker is only needed by `make e2e-toolkit`, not by a cluster.
var docker = module{
	name:    "moby",
	project: "github.com/moby/moby/v2",
	flags:   "-tags=grpcnotrace,netgo,osusergo,no_btrfs,no_zfs,exclude_graphdriver_btrfs,exclude_graphdriver_zfs",
	// The version string of releases; the module's version numbers are different.
	ldflags: "-X github.com/moby/moby/v2/dockerversion.Version=29.0.0-moby-{version}",
	binaries: []program{
		{"dockerd", "github.com/moby/moby/v2/cmd/dockerd", 5 * time.Minute},
	},
}

// nfd is only needed by `make e2e-operator`, which puts it into images.
var nfd = module{
	name:    "nfd",
	project: "sigs.k8s.io/node-feature-discovery",
	flags:   "-tags=grpcnotrace,netgo,osusergo",
	// The prefix where the chart mounts the host's folders.
	ldflags: "-X sigs.k8s.io/node-feature-discovery/pkg/version.version={version} -X sigs.k8s.io/node-feature-discovery/pkg/utils/hostpath.pathPrefix=/host-",
	binaries: []program{
		{"nfd-master", "sigs.k8s.io/node-feature-discovery/cmd/nfd-master", 3 * time.Minute},
		{"nfd-worker", "sigs.k8s.io/node-feature-discovery/cmd/nfd-worker", 20 * time.Second},
	},
}

// olm is only needed by `make e2e-operator-olm` and `make verify-release-olm`: the two operators of the
// Operator Lifecycle Manager, the catalog server, and what unpacks the image of a bundle.
var olm = module{
	name:    "olm",
	project: "github.com/operator-framework/operator-lifecycle-manager",
	flags: "-tags=grpcnotrace,containers_image_openpgp,containers_image_docker_daemon_stub,containers_image_storage_stub," +
		"exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper", // no C
	binaries: []program{
		{"olm", "github.com/operator-framework/operator-lifecycle-manager/cmd/olm", 3 * time.Minute},
		{"catalog", "github.com/operator-framework/operator-lifecycle-manager/cmd/catalog", 15 * time.Second},
		{"opm", "github.com/operator-framework/operator-registry/cmd/opm", time.Minute},
		{"cpb", "github.com/operator-framework/operator-lifecycle-manager/util/cpb", 2 * time.Second},
	},
}

// nvidia is only needed by `make e2e-nvidia`, which puts it into images. Plugin and toolkit are
// separate modules because they need different versions of go-nvml.
var nvidia = []module{
	{
		name:    "nvidia-toolkit",
		project: "github.com/NVIDIA/nvidia-container-toolkit",
		cgo:     true, // go-nvml
		ldflags: "-extldflags=-Wl,-z,lazy -X github.com/NVIDIA/nvidia-container-toolkit/internal/info.version={bare}",
		binaries: []program{
			{"nvidia-ctk-installer", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk-installer", 15 * time.Second},
			{"nvidia-ctk", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk", 2 * time.Second},
			{"nvidia-cdi-hook", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook", time.Second},
			{"nvidia-container-runtime", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime", time.Second},
			{"nvidia-container-runtime-hook", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime-hook", time.Second},
			{"nvidia-container-runtime.cdi", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime.cdi", time.Second},
			{"nvidia-container-runtime.legacy", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime.legacy", time.Second},
		},
	},
	{
		name:    "nvidia-plugin",
		project: "github.com/NVIDIA/k8s-device-plugin",
		cgo:     true, // go-nvml
		allow:   "-Wl,--unresolved-symbols=ignore-in-object-files",
		ldflags: "-X github.com/NVIDIA/k8s-device-plugin/internal/info.version={version}",
		binaries: []program{
			{"nvidia-device-plugin", "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin", 70 * time.Second},
			{"gpu-feature-discovery", "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery", 5 * time.Second},
			{"config-manager", "github.com/NVIDIA/k8s-device-plugin/cmd/config-manager", 5 * time.Second},
		},
	},
	{
		name:    "nvidia-operator",
		project: "github.com/NVIDIA/gpu-operator",
		ldflags: "-X github.com/NVIDIA/gpu-operator/internal/info.version={version}",
		binaries: []program{
			{"gpu-operator", "github.com/NVIDIA/gpu-operator/cmd/gpu-operator", 80 * time.Second},
			{"nvidia-validator", "github.com/NVIDIA/gpu-operator/validator", 10 * time.Second},
		},
	},
}

// autoscaler is only needed by `make e2e-autoscaler`: the Cluster Autoscaler with only its
// external gRPC provider.
var autoscaler = module{
	name:    "autoscaler",
	project: "k8s.io/autoscaler/cluster-autoscaler",
	flags:   "-tags=grpcnotrace,externalgrpc",
	binaries: []program{
		{"cluster-autoscaler", "k8s.io/autoscaler/cluster-autoscaler", 5 * time.Minute},
	},
}

// entry is the place in the cache for the binaries of a module in its current state.
type entry struct {
	module
	version string // of the project: "v1.37.1"
	source  string // folder with the go.mod
	path    string // in the cache; it may not exist yet
}

// entry reads a module's files and computes its place in the cache.
func (m module) entry(source, cache string, tc toolchain) (entry, error) {
	e := entry{module: m, source: filepath.Join(source, m.name)}
	mod, err := os.ReadFile(filepath.Join(e.source, "go.mod"))
	if err != nil {
		return e, fmt.Errorf("module of the cluster's binaries: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(e.source, "go.sum"))
	if err != nil {
		return e, fmt.Errorf("module of the cluster's binaries: %w; run go mod tidy there", err)
	}
	if e.version = required(string(mod), m.project); e.version == "" {
		return e, fmt.Errorf("%s/go.mod does not require %s", e.source, m.project)
	}
	e.path = filepath.Join(cache, m.name+"-"+e.version+"-"+e.key(mod, sum, tc))
	return e, nil
}

// required returns the version at which a go.mod requires a module, or "" if it does not.
func required(mod, path string) string {
	for line := range strings.Lines(mod) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) >= 2 && f[0] == path && f[1] != "=>" {
			return f[1]
		}
	}
	return ""
}

// key returns a short hash of all inputs of the build.
func (e entry) key(mod, sum []byte, tc toolchain) string {
	h := sha256.New()
	put := func(s string) { fmt.Fprintf(h, "%d %s\n", len(s), s) } // the length keeps different lists distinct
	put(string(mod))
	put(string(sum))
	put(string(tc))
	put(strings.Join(e.environment(), "\x00"))
	for _, b := range e.binaries {
		put(strings.Join(e.arguments(b, b.name), "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// arguments returns the arguments of the go command that builds a binary to a path.
func (e entry) arguments(b program, path string) []string {
	version := strings.NewReplacer("{version}", e.version, "{bare}", strings.TrimPrefix(e.version, "v"), "{minor}", minor(e.version))
	args := []string{"build", "-v", "-trimpath"}
	args = append(args, strings.Fields(e.flags)...)
	return append(args, "-ldflags="+strings.TrimSpace("-s -w "+version.Replace(e.ldflags)), "-o", path, b.tool)
}

// environment returns the variables that differ between modules.
func (e entry) environment() []string {
	switch {
	case e.allow != "":
		return []string{"CGO_ENABLED=1", "CGO_LDFLAGS_ALLOW=" + e.allow}
	case e.cgo:
		return []string{"CGO_ENABLED=1"}
	}
	return []string{"CGO_ENABLED=0"}
}

// minor returns "37" of "v1.37.1".
func minor(version string) string {
	if f := strings.Split(version, "."); len(f) > 1 {
		return f[1]
	}
	return ""
}

// toolchain is the output of the go command on which builds depend.
type toolchain string

func readToolchain(ctx context.Context, goCommand, dir string) (toolchain, error) {
	cmd := exec.CommandContext(ctx, goCommand, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64")
	cmd.Dir = dir
	cmd.Env = buildEnviron("")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the cluster's binaries are built with Go: %w; see that `%s version` works", err, goCommand)
	}
	return toolchain(out), nil
}
