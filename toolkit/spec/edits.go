package spec

import (
	"path"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// Of device nodes no numbers, modes or groups are written: the runtime looks the
// numbers up when it makes the container, and the nodes that it makes are for every
// user in it. So they outlive a driver that is loaded anew, and the file needs no
// newer version of CDI.

// nodes are those below the dev root.
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

// alone mounts one file system read-only, without what is mounted below it and without
// what is mounted there later. Nothing in it can be written to, whatever the driver's
// container has mounted in its root: read-only is the property of one mount, so a
// recursive one would leave the others writable.
var alone = []string{"ro", "nosuid", "nodev", "bind", "private"}

// roots are the driver's root and its folder of device nodes, where agents look at the
// driver as it is on the host. A driver of the host itself needs neither.
func (b *builder) roots() []*specs.Mount {
	var list []Mount
	if root := path.Clean("/" + b.DriverRoot); root != "/" {
		list = append(list, Mount{Host: root, Container: root, Options: alone})
	}
	if root := path.Clean("/" + b.DevRoot); root != "/" {
		dev := path.Join(root, "dev")
		list = append(list, Mount{Host: dev, Container: dev, Options: alone})
	}
	return mounts(list)
}

// device are the edits of a whole GPU.
func (b *builder) device(address gpu.PCIAddress, nodes []string) specs.ContainerEdits {
	return specs.ContainerEdits{
		DeviceNodes: append(b.nodes(nodes), around(b.Around.DRM[address])...),
		Hooks:       b.hooks(flags("create-symlinks", "--link", b.Around.links(address))),
	}
}

// common are what all devices of a kind have in common: the driver's files.
func (b *builder) common() specs.ContainerEdits {
	return specs.ContainerEdits{
		Env:    b.Files.Env,
		Mounts: mounts(b.Files.Mounts),
		Hooks:  b.hooks(flags("create-symlinks", "--link", b.Files.Links), flags("update-ldcache", "--folder", b.Files.Folders)),
	}
}

// compute are what all GPUs have in common. Agents do without some of it: they are
// to see the driver as it is, and all of its device nodes.
func (b *builder) compute() specs.ContainerEdits {
	e := b.common()
	e.DeviceNodes = b.nodes(b.control())
	var compat []string
	if b.Files.Version != "" { // before the loader's cache is made: it may add a folder
		compat = []string{"enable-cuda-compat", "--host-driver-version=" + b.Files.Version}
	}
	e.Hooks = b.hooks(
		flags("create-symlinks", "--link", b.Files.Links), compat, flags("update-ldcache", "--folder", b.Files.Folders),
		[]string{"disable-device-node-modification"},
	)
	return e
}

// hooks is one process for all that are not empty: starting each of its own takes as
// long as what most of them do.
func (b *builder) hooks(each ...[]string) []*specs.Hook {
	args := joined.Args(each...)
	if args == nil {
		return nil
	}
	return []*specs.Hook{{
		HookName: "createContainer", // in the container's mounts, before its root is switched to
		Path:     b.Hook,
		Args:     append([]string{path.Base(b.Hook)}, args...),
		// Never empty: a runtime then passes on the container's own
		// environment, LD_PRELOAD included (CVE-2025-23266).
		Env: []string{"PATH=/usr/bin:/bin"},
	}}
}

// flags is a hook with a flag for each value; nil without any.
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
