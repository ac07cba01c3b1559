package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"

	"github.com/gpuready/gpuready/test/lab/namespace"
)

// Prepare gives each node a PCI bus of its own, with no GPU yet, and installs Node Feature
// Discovery, the real one, which both stacks need.
func (b *Built) Prepare(ctx context.Context, c *cluster.Cluster) error {
	for _, n := range c.Nodes {
		if err := os.MkdirAll(n.PathOnNode(namespace.PCI), 0o755); err != nil {
			return err
		}
		if err := save(n, containerdConfig); err != nil {
			return err
		}
		// From the next boot on the node does it itself.
		if _, err := n.Exec(ctx, "mount", "--bind", namespace.PCI, "/sys/bus/pci/devices"); err != nil {
			return err
		}
	}
	_, err := b.helm(ctx, c, "install", "nfd", filepath.Join(b.nfd.Dir, "deployment/helm/node-feature-discovery"),
		"--namespace", "node-feature-discovery", "--create-namespace", "--wait", "--timeout", "3m",
		"--set", "image.repository="+nfdRepository, "--set", "image.tag="+b.nfd.Version, "--set", "gc.enable=false",
		"--set", "master.podSecurityContext.runAsUser=65532", "--set", "worker.podSecurityContext.runAsUser=65532",
		"--set", "worker.config.core.sleepInterval=1s", "--set", "worker.config.sources.pci.deviceLabelFields={vendor}")
	return err
}

// gpuAddress is the PCI address of a node's GPU.
const gpuAddress = "0000:65:00.0"

// Plug puts a GPU on a node's PCI bus.
func Plug(n *cluster.Node) error {
	at := n.PathOnNode(filepath.Join(namespace.PCI, gpuAddress))
	dir := at + ".new"
	if err := writeGPU(dir); err != nil {
		return err
	}
	return os.Rename(dir, at) // it appears whole
}

// writeGPU makes a folder with what sysfs has of a GPU.
func writeGPU(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, value := range namespace.GPUFunction() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Unplug takes it away.
func Unplug(n *cluster.Node) error {
	return os.RemoveAll(n.PathOnNode(filepath.Join(namespace.PCI, gpuAddress)))
}

const nfdRepository = "docker.io/gpuready/node-feature-discovery"

func (b *Built) nfdImage(built binaries.Dir) (binaries.Image, error) {
	files := map[string][]byte{}
	for _, name := range []string{"nfd-master", "nfd-worker"} {
		content, err := os.ReadFile(built.Path(name))
		if err != nil {
			return binaries.Image{}, err
		}
		files["/usr/bin/"+name] = content
	}
	return binaries.Image{Name: nfdRepository + ":" + b.nfd.Version, Files: files}, nil
}

// osTag names the nodes' operating system in tags of driver images; it is this
// machine's: "debian12".
func osTag() (string, error) {
	content, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = strings.Trim(value, `"`)
	}
	return values["ID"] + values["VERSION_ID"], nil
}

// left are the files that a stack may leave on a node's disk.
var left = []string{"/etc/containerd/conf.d", "/usr/local/nvidia", "/etc/cdi", "/var/lib/kubelet/device-plugins", "/etc/kubernetes/node-feature-discovery"}

// bare makes each node what it was before a stack came: no GPU, its namespace gone, the disk
// without the stack's files, containerd with its own configuration, the kubelet without
// memory of GPUs, a new boot, a new Node, and no images of the registry if there is one.
func (b *Built) bare(ctx context.Context, c *cluster.Cluster, namespace string, registry *Registry) error {
	if _, err := b.Kubectl(ctx, c, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s"); err != nil {
		return err
	}
	g, together := errgroup.WithContext(ctx)
	for _, n := range c.Nodes {
		g.Go(func() error {
			if err := Unplug(n); err != nil {
				return err
			}
			for _, path := range left {
				if err := os.RemoveAll(n.PathOnNode(path)); err != nil {
					return err
				}
			}
			if err := restore(n, containerdConfig); err != nil {
				return err
			}
			if _, err := b.Kubectl(together, c, "delete", "node", n.Name, "--timeout=60s"); err != nil {
				return err
			}
			if err := n.Reboot(together); err != nil {
				return err
			}
			return registry.forget(together, n)
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("make the nodes bare: %w", err)
	}
	return nil
}

const containerdConfig = "/etc/containerd/config.toml"

// saved are a file's bytes before a stack came.
const saved = "/var/lib/gpuready-test-saved"

// save keeps a copy of a node's file for restore, once.
func save(n *cluster.Node, path string) error {
	to := n.PathOnNode(filepath.Join(saved, path))
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := os.ReadFile(n.PathOnNode(path))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

func restore(n *cluster.Node, path string) error {
	content, err := os.ReadFile(n.PathOnNode(filepath.Join(saved, path)))
	if err != nil {
		return err
	}
	return os.WriteFile(n.PathOnNode(path), content, 0o644)
}
