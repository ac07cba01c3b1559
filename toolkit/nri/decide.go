// Package nri is the toolkit as a plugin of the container runtime (Node Resource
// Interface): it gives node agents that are not privileged the GPUs' devices, as
// package injection says, and the containers of namespaces that may the GPUs that they
// ask for. Containers that were created while it was away it finds when it is back.
//
// A runtime asks its plugins before it creates a container, one after the other,
// and waits for each. So the answer follows from the request and from an Offer
// or a Table made beforehand, and from nothing else: no container of this node starts
// later because a disk or a driver is slow.
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
)

// Offer is what there is to give to agents. It does not change once it is made.
type Offer struct {
	Generation string                  // of the specification, its files and its devices' numbers; see injection.Generation
	edits      api.ContainerAdjustment // what the CDI device stands for
}

// NewOffer makes an offer of a CDI specification file's content. Its error says what
// of the device is not there: a container that was given it would not start. caps
// tell which of its devices stand for a MIG instance.
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
		if err := add(&o.edits, root, e); err != nil {
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
	if monitored { // else those who may not open an instance's nodes do not see it
		o.Generation = digest(base)
	}
	o.Generation = injection.Generation(o.Generation, digest(whole))
	return o, nil
}

func digest(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)[:8]) }

// identity tells one file from another at the same path, as after a driver that
// was installed again, or whose root was mounted anew: containers keep the file
// that they were given. What is no regular file, a daemon's socket, may come and
// go without them; when it was written is beside the point.
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

// add says in NRI's words what a specification says in CDI's.
func add(a *api.ContainerAdjustment, root *host.Root, e specs.ContainerEdits) error {
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
		if err := allowed(n); err != nil {
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

// allowed returns an error where a device node is to be used less than NRI can say. A
// node that a plugin adds may be read and written, whatever else the plugin says of it
// (api.LinuxDevice.AccessString of NRI 0.12; runtimes before take no device rules).
func allowed(n *specs.DeviceNode) error {
	if p := n.Permissions; p == "" || strings.Contains(p, "r") && strings.Contains(p, "w") {
		return nil
	}
	return fmt.Errorf("the device node %s has the permissions %q in its CDI specification, and NRI knows \"rw\" alone; use the runtime handler nvidia", n.Path, n.Permissions)
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
	return nil, fmt.Errorf("a hook %q cannot be given by NRI", h.HookName)
}

// Decide returns how a container that is about to be created in a pod is adjusted;
// nil, in nearly all cases, for not at all. namespace is our own; byName says that
// the runtime resolves the CDI names that plugins add. An offer of nil gives
// nothing: the container finds its variable as it was, and so what it lacks.
func Decide(namespace string, offer *Offer, byName bool, pod *api.PodSandbox, container *api.Container) *api.ContainerAdjustment {
	if offer == nil || !expects(namespace, pod, container) {
		return nil
	}
	a := &api.ContainerAdjustment{}
	if byName {
		a.AddCDIDevice(&api.CDIDevice{Name: injection.Device})
	} else {
		// Shared with other answers: it is only ever read.
		a.Env = slices.Clone(offer.edits.Env)
		a.Mounts = offer.edits.Mounts
		a.Hooks = offer.edits.Hooks
		a.Linux = offer.edits.Linux
	}
	a.AddEnv(injection.Variable, offer.Generation)
	return a
}

// expects says whether a container is that of an agent of ours that was not given the
// GPUs yet.
func expects(namespace string, pod *api.PodSandbox, container *api.Container) bool {
	return namespace != "" && pod.GetNamespace() == namespace &&
		pod.GetAnnotations()[injection.Annotation] == "true" &&
		slices.Contains(container.GetEnv(), injection.Variable+"="+injection.Expected)
}

// resolvesNames says whether a runtime resolves the CDI names that plugins add.
// Others pass them over without a word, so what is not known to is not trusted
// with one: containerd does from 2.1 on, CRI-O 1.34 does not yet.
func resolvesNames(runtime, version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	return runtime == "containerd" && n == 2 && (major > 2 || major == 2 && minor >= 1)
}
