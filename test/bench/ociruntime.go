package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// handlerGoal limits what gpu-oci-runtime may add to a container's start.
const handlerGoal = 5 * time.Millisecond

// ociRuntime measures what gpu-oci-runtime adds to a container's life (create, start and delete)
// on a node with 8 GPUs in 56 MIG devices. It alternates between runc with the edited
// configuration, and gpu-oci-runtime with the configuration that requests the edits.
func (b *bench) ociRuntime(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("oci-runtime: left out, it needs root")
		return nil
	}
	c, err := b.newContainer(ctx)
	if err != nil {
		return err
	}
	defer c.node.close()
	with, without, err := c.alternate(ctx, start{c.runc, c.config("")}, start{c.runc, c.config("")})
	if err != nil {
		return err
	}
	difference("runc adds to itself: how far rows can be trusted", with, without, goal{})
	for _, r := range []struct{ name, visible string }{
		{"nothing asked for", ""},
		{"1 of 8 GPUs by index", "3"},
		{"1 of 8 GPUs by UUID", c.uuid},
		{"a MIG device", "3:2"},
		{"all of 8 GPUs, 56 MIG devices", "all"},
	} {
		bare, asking := c.config(""), c.config(r.visible)
		edited, err := c.edited(ctx, asking)
		if err != nil {
			return err
		}
		with, without, err := c.alternate(ctx, start{c.plain, asking}, start{c.runc, edited})
		if err != nil {
			return err
		}
		difference("gpu-oci-runtime adds to runc: "+r.name, with, without, within(handlerGoal, 0))
		if with, without, err = c.alternate(ctx, start{c.alone, asking}, start{standIn, edited}); err != nil {
			return err
		}
		difference("  to a runtime that does nothing ("+standIn+")", with, without, within(handlerGoal, 0))
		if r.visible == "" {
			continue
		}
		if with, without, err = c.alternate(ctx, start{c.hooked, asking}, start{c.runc, bare}); err != nil {
			return err
		}
		difference("  and with runc's work and the hooks, to one without GPUs", with, without, goal{})
	}
	return nil
}

// container is a container that is started repeatedly, from an image with many libraries.
type container struct {
	*bench
	node  *node
	image *image
	uuid  string // of a GPU
	runc  string
	// Paths of gpu-oci-runtime: with the node's specifications, with their hooks as well, and with a
	// runtime below it that does nothing.
	plain, hooked, alone string
}

// standIn is a runtime that creates no container. It shows the added time even where runc's own
// time varies by more.
const standIn = "/bin/true"

// rest is longer than the kernel takes to remove the namespaces of the previous container. In a
// container started meanwhile, runc itself takes 3 to 5 ms longer if anything precedes it, even a
// sleep of 3 ms: decision 29.
const rest = 50 * time.Millisecond

// start is one way to start the container.
type start struct {
	program string
	config  []byte
}

func (b *bench) newContainer(ctx context.Context) (_ *container, err error) {
	dir, err := os.MkdirTemp(b.tmp, "r")
	if err != nil {
		return nil, err
	}
	built, err := binaries.EnsureRuntimes(ctx, binaries.Options{Out: os.Stderr})
	if err != nil {
		return nil, err
	}
	c := &container{bench: b, node: &node{bench: b, dir: dir}, runc: built.Path("runc")}
	if c.image, err = newImage(filepath.Join(dir, "container")); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(b.program("gpu-cdi-hook"))
	if err != nil {
		return nil, err
	}
	if err := c.image.writeFile("init", program); err != nil {
		return nil, err
	}
	if err := c.node.gpusim(ctx, "up", "--profile", "a100-80gb"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.node.close()
		}
	}()
	for gpu := range 8 {
		if err := c.node.gpusim(ctx, "mig", "--gpu", fmt.Sprint(gpu), "--layout", strings.TrimSuffix(strings.Repeat("1g.10gb,", 7), ",")); err != nil {
			return nil, err
		}
	}
	return c, c.install(ctx)
}

// install has the toolkit write the node's specifications, and configures two copies of
// gpu-oci-runtime with them.
func (c *container) install(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.program("gpu-toolkit"), "apply", "--host-root", c.node.dir, "--driver-root", "/driver")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gpu-toolkit apply: %w: %s", err, out)
	}
	files, err := filepath.Glob(c.node.dir + "/var/run/cdi/*.yaml")
	if err != nil || len(files) == 0 {
		return fmt.Errorf("specifications of the toolkit: %v, %w", files, err)
	}
	for _, h := range []struct {
		name, runtime string
		hooked        bool
		into          *string
	}{{"plain", c.runc, false, &c.plain}, {"hooked", c.runc, true, &c.hooked}, {"alone", standIn, false, &c.alone}} {
		dir := filepath.Join(c.node.dir, h.name)
		*h.into = filepath.Join(dir, "gpu-oci-runtime")
		if err := c.handler(dir, h.runtime); err != nil {
			return err
		}
		for _, file := range files {
			if err := c.specify(file, filepath.Join(dir, "cdi"), h.hooked); err != nil {
				return err
			}
		}
	}
	return nil
}

// handler installs gpu-oci-runtime in a folder.
func (c *container) handler(dir, runtime string) error {
	if err := os.MkdirAll(filepath.Join(dir, "cdi"), 0o755); err != nil {
		return err
	}
	s := request.DefaultSettings()
	s.Runtimes, s.SpecDirs, s.AcceptEnvvar = []string{runtime}, []string{filepath.Join(dir, "cdi")}, true
	text, err := s.Encode()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(c.program("gpu-oci-runtime"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, request.SettingsFile), text, 0o644),
		os.WriteFile(filepath.Join(dir, "gpu-oci-runtime"), program, 0o755),
	)
}

// specify rewrites a specification for a host in a folder so that it applies to this one.
func (c *container) specify(file, dir string, hooked bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	spec, err := cdi.Parse(data)
	if err != nil {
		return err
	}
	edits := []*specs.ContainerEdits{&spec.ContainerEdits}
	for i := range spec.Devices {
		if name := spec.Devices[i].Name; c.uuid == "" && strings.HasPrefix(name, "GPU-") {
			c.uuid = name
		}
		edits = append(edits, &spec.Devices[i].ContainerEdits)
	}
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			n.HostPath = filepath.Join(c.node.dir, n.HostPath)
		}
		for _, m := range e.Mounts {
			m.HostPath = filepath.Join(c.node.dir, m.HostPath)
		}
		for _, h := range e.Hooks {
			h.Path = c.program("gpu-cdi-hook")
		}
		if !hooked {
			e.Hooks = nil
		}
	}
	if data, err = cdi.Encode(*spec); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, filepath.Base(file)), data, 0o644)
}

// config returns the configuration of a container that requests GPUs and ends at once.
func (c *container) config(visible string) []byte {
	env := []string{"PATH=/usr/bin:/bin"}
	if visible != "" {
		env = append(env, "NVIDIA_VISIBLE_DEVICES="+visible)
	}
	var namespaces []oci.LinuxNamespace
	for _, n := range []oci.LinuxNamespaceType{oci.PIDNamespace, oci.MountNamespace, oci.IPCNamespace, oci.UTSNamespace, oci.NetworkNamespace} {
		namespaces = append(namespaces, oci.LinuxNamespace{Type: n})
	}
	data, _ := json.Marshal(oci.Spec{ // of strings and numbers only
		Version: "1.0.2",
		Process: &oci.Process{Args: []string{"/init", "--version"}, Cwd: "/", Env: env},
		Root:    &oci.Root{Path: "rootfs"},
		Mounts:  c.image.mounts,
		Linux:   &oci.Linux{Namespaces: namespaces, Resources: &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Access: "rwm"}}}},
	})
	return data
}

// edited returns the configuration with all edits applied and without hooks.
func (c *container) edited(ctx context.Context, config []byte) ([]byte, error) {
	if _, err := c.start(ctx, start{c.plain, config}); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(c.image.bundle, "config.json"))
}

func (c *container) alternate(ctx context.Context, a, b start) (first, second []time.Duration, err error) {
	for range c.containers {
		for _, way := range []struct {
			start
			into *[]time.Duration
		}{{a, &first}, {b, &second}} {
			took, err := c.start(ctx, way.start)
			if err != nil {
				return nil, nil, err
			}
			*way.into = append(*way.into, took)
		}
	}
	return first, second, nil
}

// start creates the container, starts it and deletes it when it has ended.
func (c *container) start(ctx context.Context, s start) (time.Duration, error) {
	if err := errors.Join(
		os.WriteFile(filepath.Join(c.image.bundle, "config.json"), s.config, 0o600),
		c.image.writeFile("etc/ld.so.cache", c.image.cache),
	); err != nil {
		return 0, err
	}
	time.Sleep(rest)
	cmd := exec.CommandContext(ctx, s.program, "--root", filepath.Join(c.node.dir, "runc"), "run", "--bundle", c.image.bundle, "bench-"+filepath.Base(c.node.dir))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("%s run: %w: %s", filepath.Base(s.program), err, out)
	}
	return took, nil
}
