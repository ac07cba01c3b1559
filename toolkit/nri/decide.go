// Package nri implements the toolkit as a plugin of the container runtime (Node
// Resource Interface). It gives the GPUs' devices to node agents that are not
// privileged, as package injection describes. It also gives containers of allowed
// namespaces the GPUs that they request. When it reconnects, it finds the containers
// that were created in its absence.
//
// A runtime calls its plugins before it creates a container, one after the other, and
// waits for each. So the response only depends on the request and on an Offer or a
// Table made beforehand. A slow disk or driver delays no container of this node.
package nri

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/nri/pkg/api"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Offer holds the edits that agents receive. It is immutable.
type Offer struct {
	Generation string                  // of the specification, its files and its devices' numbers; see injection.Generation
	edits      api.ContainerAdjustment // the edits of the CDI device
}

// NewOffer makes an offer from the content of a CDI specification file. It returns an
// error if a part of the device is missing, as a container with it would not start.
// caps tell which of its device nodes belong to MIG instances.
func NewOffer(root *host.Root, data []byte, caps node.Caps) (*Offer, error) {
	spec, err := cdi.Parse(data)
	if err != nil {
		return nil, err
	}
	_, device, err := cdi.Find([]cdi.File{{Kind: spec.Kind, Spec: spec}}, injection.Device)
	if err != nil {
		return nil, err
	}
	o := &Offer{}
	instances := caps.Instances()
	whole, base := sha256.New(), sha256.New()
	both := io.MultiWriter(whole, base)
	whole.Write(data)
	for _, e := range []specs.ContainerEdits{spec.ContainerEdits, device.ContainerEdits} {
		if err := addEdits(&o.edits, root, e); err != nil {
			return nil, err
		}
		e.DeviceNodes = slices.DeleteFunc(slices.Clone(e.DeviceNodes), func(n *specs.DeviceNode) bool { return instances[n.Path] })
		if err := json.NewEncoder(base).Encode(e); err != nil {
			return nil, err
		}
		for _, m := range e.Mounts {
			fmt.Fprintln(both, identity(root, m.HostPath))
		}
	}
	monitored := false
	for _, d := range o.edits.GetLinux().GetDevices() {
		to := both
		if instances[d.Path] {
			to = whole
		}
		fmt.Fprintln(to, d.Path, d.Major, d.Minor)
		monitored = monitored || d.Path == caps.Monitor()
	}
	if monitored { // without the monitor, an agent only sees instances whose nodes it may open
		o.Generation = digest(base)
	}
	o.Generation = injection.Generation(o.Generation, digest(whole))
	return o, nil
}

func digest(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)[:8]) }

// identity returns a string that changes when another file replaces the one at a path,
// as when a driver is reinstalled or its root is mounted again. Containers keep the old
// file. Other files than regular ones, such as a daemon's socket, may be replaced
// without harm. The modification time does not matter.
func identity(root *host.Root, path string) string {
	info, err := root.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return path
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return path
	}
	return fmt.Sprint(path, " ", st.Dev, ":", st.Ino, " ", st.Size)
}

// addEdits converts CDI edits to NRI's form and adds them.
func addEdits(a *api.ContainerAdjustment, root *host.Root, e specs.ContainerEdits) error {
	for _, env := range e.Env {
		key, value, _ := strings.Cut(env, "=")
		a.AddEnv(key, value)
	}
	for _, n := range e.DeviceNodes {
		p := cmp.Or(n.HostPath, n.Path)
		info, err := root.Stat(p)
		if err != nil {
			return err
		}
		major, minor, ok := host.Device(info)
		if !ok {
			return fmt.Errorf("%s is not a character device", p)
		}
		if err := checkPermissions(n); err != nil {
			return err
		}
		a.AddDevice(&api.LinuxDevice{Path: n.Path, Type: "c", Major: int64(major), Minor: int64(minor)})
	}
	for _, m := range e.Mounts {
		a.AddMount(mount(m))
	}
	for _, h := range e.Hooks {
		hooks, err := hook(h)
		if err != nil {
			return err
		}
		a.AddHooks(hooks)
	}
	return nil
}

// checkPermissions returns an error if a device node has narrower permissions than NRI
// can express. A node that a plugin adds is always readable and writable
// (api.LinuxDevice.AccessString of NRI 0.12; earlier runtimes accept no device rules).
func checkPermissions(n *specs.DeviceNode) error {
	if p := n.Permissions; p == "" || strings.Contains(p, "r") && strings.Contains(p, "w") {
		return nil
	}
	return fmt.Errorf("the device node %s has the permissions %q in its CDI specification, and NRI only supports \"rw\"; use the runtime handler nvidia", n.Path, n.Permissions)
}

func mount(m *specs.Mount) *api.Mount {
	return &api.Mount{Source: m.HostPath, Destination: m.ContainerPath, Type: cmp.Or(m.Type, "bind"), Options: m.Options}
}

func hook(h *specs.Hook) (*api.Hooks, error) {
	hook := []*api.Hook{{Path: h.Path, Args: h.Args, Env: h.Env}}
	if h.Timeout != nil {
		hook[0].Timeout = api.Int(*h.Timeout)
	}
	switch h.HookName {
	case "createRuntime":
		return &api.Hooks{CreateRuntime: hook}, nil
	case "createContainer":
		return &api.Hooks{CreateContainer: hook}, nil
	case "startContainer":
		return &api.Hooks{StartContainer: hook}, nil
	}
	return nil, fmt.Errorf("NRI does not support hooks of type %q", h.HookName)
}

// decide returns the adjustment of a container that is about to be created in a pod. In
// nearly all cases there is none and it returns nil. namespace is our own. byName
// reports whether the runtime resolves the CDI names that plugins add. If offer is nil,
// the container keeps its variable unchanged, and so learns that it lacks the GPUs.
func decide(namespace string, offer *Offer, byName bool, pod *api.PodSandbox, container *api.Container) *api.ContainerAdjustment {
	if offer == nil || !expects(namespace, pod, container) {
		return nil
	}
	a := &api.ContainerAdjustment{}
	if byName {
		a.AddCDIDevice(&api.CDIDevice{Name: injection.Device})
	} else {
		// Shared with other responses: it is only ever read.
		a.Env = slices.Clone(offer.edits.Env)
		a.Mounts = offer.edits.Mounts
		a.Hooks = offer.edits.Hooks
		a.Linux = offer.edits.Linux
	}
	a.AddEnv(injection.Variable, offer.Generation)
	return a
}

// expects reports whether a container belongs to one of our agents and has not received
// the GPUs yet.
func expects(namespace string, pod *api.PodSandbox, container *api.Container) bool {
	return namespace != "" && pod.GetNamespace() == namespace &&
		pod.GetAnnotations()[injection.Annotation] == "true" &&
		slices.Contains(container.GetEnv(), injection.Variable+"="+injection.Expected)
}

// resolvesNames reports whether a runtime resolves the CDI names that plugins add.
// Others silently ignore them, so only runtimes known to resolve them get names:
// containerd does from 2.1 on, CRI-O 1.34 does not yet.
func resolvesNames(name, version string) bool {
	r, known := runtime.ParseRelease(version)
	return name == string(runtime.Containerd) && known && r.AtLeast(2, 1)
}
