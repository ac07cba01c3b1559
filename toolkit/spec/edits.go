package spec

import (
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// Device nodes are written without numbers, modes and groups. The runtime looks up the
// numbers when it creates the container, and creates nodes for every user in it. So the
// specification stays valid when the driver is reloaded, and needs no newer version of
// CDI.

// nodes converts paths below the dev root to device nodes.
func (b *builder) nodes(paths []string) []*specs.DeviceNode {
	var list []Node
	for _, p := range paths {
		list = append(list, Node{Path: p, Host: path.Join("/", b.DevRoot, p)})
	}
	return around(list)
}

func around(list []Node) []*specs.DeviceNode {
	var nodes []*specs.DeviceNode
	for _, l := range list {
		n := &specs.DeviceNode{Path: l.Path, Permissions: "rw"}
		if l.Host != l.Path {
			n.HostPath = l.Host
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func mounts(list []Mount) []*specs.Mount {
	var out []*specs.Mount
	for _, m := range list {
		out = append(out, &specs.Mount{HostPath: m.Host, ContainerPath: m.Container, Options: m.Options})
	}
	return out
}

// nonRecursive are the options that mount one file system read-only, without the mounts
// below it and without later ones. Read-only is a property of one mount, so a recursive
// mount would leave the file systems in the driver container's root writable.
var nonRecursive = []string{"ro", "nosuid", "nodev", "bind", "private"}

// roots returns the mounts of the driver's root and its directory of device nodes, through
// which agents see the driver as on the host. A driver of the host itself needs neither.
func (b *builder) roots() []*specs.Mount {
	var list []Mount
	if root := path.Clean("/" + b.DriverRoot); root != "/" {
		list = append(list, Mount{Host: root, Container: root, Options: nonRecursive})
	}
	if root := path.Clean("/" + b.DevRoot); root != "/" {
		dev := path.Join(root, "dev")
		list = append(list, Mount{Host: dev, Container: dev, Options: nonRecursive})
	}
	return mounts(list)
}

// device returns the edits of a GPU, or of a part that has graphics.
func (b *builder) device(address gpu.PCIAddress, nodes []string) specs.ContainerEdits {
	return specs.ContainerEdits{
		DeviceNodes: append(b.nodes(nodes), around(b.Around.DRM[address])...),
		Hooks:       b.hooks(flags("create-symlinks", "--link", b.Around.links(address))),
	}
}

// common returns the edits that all devices of a kind share: the driver's files.
func (b *builder) common() specs.ContainerEdits {
	return specs.ContainerEdits{
		Env:    b.Files.Env,
		Mounts: mounts(b.Files.Mounts),
		Hooks:  b.hooks(flags("create-symlinks", "--link", b.Files.Links), flags("update-ldcache", "--folder", b.Files.Folders)),
	}
}

// compute returns the edits that all GPUs share. Agents do not get some of these, because
// they need the unmodified driver and all of its device nodes.
func (b *builder) compute() specs.ContainerEdits {
	e := b.common()
	e.DeviceNodes = b.nodes(b.control())
	var compat []string
	if b.Files.Version != "" { // before the loader's cache is made: it may add a folder
		compat = []string{"enable-cuda-compat", "--host-driver-version=" + b.Files.Version}
	}
	var profile []string
	if b.Files.hasGraphics() {
		profile = []string{"update-application-profile"}
	}
	e.Hooks = b.hooks(
		flags("create-symlinks", "--link", b.Files.Links), compat, flags("update-ldcache", "--folder", b.Files.Folders),
		[]string{"disable-device-node-modification"}, profile,
	)
	return e
}

// hasGraphics reports whether the driver has the libraries that read application profiles.
func (f Files) hasGraphics() bool {
	return slices.ContainsFunc(f.Mounts, func(m Mount) bool {
		base := path.Base(m.Container)
		return strings.HasPrefix(base, "libEGL_nvidia.so.") || strings.HasPrefix(base, "libGLX_nvidia.so.")
	})
}

// hooks returns a single hook that runs all non-empty ones in one process, because
// starting a process takes as long as most of them run.
func (b *builder) hooks(each ...[]string) []*specs.Hook {
	args := joined.Args(each...)
	if args == nil {
		return nil
	}
	return []*specs.Hook{{
		HookName: "createContainer", // in the container's mounts, before its root is switched to
		Path:     b.Hook,
		Args:     append([]string{path.Base(b.Hook)}, args...),
		// Never empty: otherwise a runtime passes the container's own environment,
		// LD_PRELOAD included (CVE-2025-23266).
		Env: []string{"PATH=/usr/bin:/bin"},
	}}
}

// flags returns a hook with a flag for each value, nil if there are none.
func flags(hook, name string, values []string) []string {
	if len(values) == 0 {
		return nil
	}
	args := []string{hook}
	for _, v := range values {
		args = append(args, name, v)
	}
	return args
}
