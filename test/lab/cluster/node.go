package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/test/lab/namespace"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// Programs of a node.
const (
	kubelet    = "kubelet"
	containerd = "containerd"
)

// nodeConfig holds the common settings of a cluster's nodes.
type nodeConfig struct {
	Folder      *folder.Folder // of the cluster, with the programs of its nodes
	Hierarchies []namespace.Hierarchy
	Plane       *controlPlane
	Images      []string          // archives that each node has before Boot returns
	Gates       string            // additional feature gates of its kubelet
	WithoutCDI  bool              // containerd finds no CDI specs
	NUMA        bool              // two made-up NUMA nodes, topology manager policy single-numa-node
	GPUs        bool              // the machine's own, with their driver
	Status      time.Duration     // how often a kubelet reports
	Restart     time.Duration     // delay before containerd is restarted after it ended by itself
	Done        func(what string) // called after each step, concurrently

	guest bool // the node is a virtual machine, not namespaces of this machine
}

// Node is one node of a cluster. Its methods may be called concurrently, but none during a
// reboot.
type Node struct {
	Name string // as Kubernetes knows it
	IP   string

	config  nodeConfig
	number  int
	spec    NodeSpec
	files   map[string]string // files of the disk before the first boot
	bootID  string
	machine *namespace.Machine                // nil: never booted
	running atomic.Pointer[namespace.Machine] // the same, except while it is halted on purpose
}

// newNodes creates the nodes n1, n2, … without booting them.
func newNodes(ctx context.Context, config nodeConfig, count int) ([]*Node, error) {
	if count == 0 {
		return nil, nil
	}
	base, err := baseSpec(ctx, filepath.Join(config.Folder.Bin(), "ctr"))
	if err != nil {
		return nil, err
	}
	var nodes []*Node
	for i := range count {
		n, err := buildNode(config, base, fmt.Sprintf("n%d", i+1), i+1, NodeSpec{})
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// NodeSpec describes how one node differs from the others of its cluster.
type NodeSpec struct {
	// Properties with which the kubelet registers the node.
	ProviderID string            // as a cloud names the machine: "cloud://group/name"
	Labels     map[string]string // those that a kubelet may set
	Taints     []string          // "key:Effect" or "key=value:Effect"

	// PCI addresses of the NVIDIA GPUs on its own PCI bus, "0000:1b:00.0"; none: it shows the
	// machine's bus.
	GPUs []string
}

// args returns the kubelet's arguments.
func (s NodeSpec) args() []string {
	var args []string
	if s.ProviderID != "" {
		args = append(args, "--provider-id="+s.ProviderID)
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, key+"="+s.Labels[key])
	}
	if len(labels) > 0 {
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	if len(s.Taints) > 0 {
		args = append(args, "--register-with-taints="+strings.Join(s.Taints, ","))
	}
	return args
}

// newNode creates a node of that name and number without booting it.
func newNode(ctx context.Context, config nodeConfig, name string, number int, spec NodeSpec) (*Node, error) {
	base, err := baseSpec(ctx, filepath.Join(config.Folder.Bin(), "ctr"))
	if err != nil {
		return nil, err
	}
	return buildNode(config, base, name, number, spec)
}

func buildNode(config nodeConfig, base, name string, number int, spec NodeSpec) (*Node, error) {
	n := &Node{Name: name, IP: nodeIP(number), config: config, number: number, spec: spec}
	var err error
	if n.files, err = n.content(base); err != nil {
		return nil, err
	}
	return n, nil
}

// content returns the files of a node's disk before its first boot, by path. base is
// containerd's base_runtime_spec, or "".
func (n *Node) content(base string) (map[string]string, error) {
	authority := n.config.Plane.Authority
	self := folder.Subject{Name: "system:node:" + n.Name, Groups: []string{"system:nodes"}}
	client, err := n.config.Plane.Client(self)
	if err != nil {
		return nil, err
	}
	self.Hosts = []string{n.Name, n.IP}
	serving, err := authority.Issue(self)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"/etc/machine-id":                    strings.ReplaceAll(newUUID(), "-", "") + "\n",
		"/etc/kubernetes/kubelet.conf":       string(client),
		"/etc/kubernetes/pki/ca.crt":         string(authority.PEM),
		"/var/lib/kubelet/pki/kubelet.crt":   string(serving.Cert),
		"/var/lib/kubelet/pki/kubelet.key":   string(serving.Key),
		"/var/lib/kubelet/config.yaml":       kubeletConfig(n.config),
		"/etc/containerd/config.toml":        containerdConfig(n.config),
		"/etc/cni/net.d/10-cluster.conflist": cniConfig(PodNet(n.number)),
	}
	if base != "" {
		files["/etc/containerd/base.json"] = base
	}
	for _, address := range n.spec.GPUs {
		for name, text := range namespace.GPUFunction() {
			files[filepath.Join(namespace.PCI, address, name)] = text
		}
	}
	return files, nil
}

var containerdArgs = []string{"--config=/etc/containerd/config.toml"}

func (n *Node) kubeletArgs() []string {
	return append([]string{
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--hostname-override=" + n.Name, "--node-ip=" + n.IP, "--v=2",
	}, n.spec.args()...)
}

// machineSpec returns the spec for the next boot of the node.
func (n *Node) machineSpec(groups []string) namespace.Spec {
	f := n.config.Folder
	program := func(name string, args ...string) namespace.Program {
		return namespace.Program{Name: name, Path: filepath.Join(namespace.Bin, name), Args: args, Log: f.Log(n.Name + "-" + name), Restart: true}
	}
	spec := namespace.Spec{
		Hostname: n.Name,
		Node: &namespace.NodeSpec{
			Dir: f.Disk(n.Name), BootID: n.bootID,
			Binds:       map[string]string{namespace.Bin: f.Bin(), "/opt/cni/bin": f.Plugins()},
			Hierarchies: n.config.Hierarchies, Groups: groups, GPUs: n.config.GPUs,
		},
		Programs: []namespace.Program{
			program(containerd, containerdArgs...),
			program(kubelet, n.kubeletArgs()...),
		},
	}
	spec.Programs[0].RestartAfter = n.config.Restart
	if n.config.NUMA {
		spec.Node.NUMA = halves()
	}
	return spec
}

// Boot boots the node for the first time. It may run while the control plane starts, and returns
// when the kubelet has started. waitReady waits until the Node is Ready.
func (n *Node) Boot(ctx context.Context) error { return n.boot(ctx, true) }

// boot starts the node. The first time it also gets its files and images.
func (n *Node) boot(ctx context.Context, first bool) error {
	c := n.config
	n.bootID = newUUID()
	groups, err := namespace.MakeGroups(c.Hierarchies, c.Folder.Group(n.Name))
	if err != nil {
		return err
	}
	if n.machine, err = namespace.StartMachine(c.Folder.MachineFiles(n.Name), n.machineSpec(groups), nil); err != nil {
		return err
	}
	n.running.Store(n.machine)
	if err := n.machine.WaitBooted(ctx); err != nil {
		return err
	}
	if first {
		for path, content := range n.files {
			if err := n.write(path, content); err != nil {
				return err
			}
		}
	}
	if err := c.Plane.Attach(ctx, n.number, n.machine.PID()); err != nil {
		return err
	}
	if err := n.machine.Start(ctx, containerd, true); err != nil {
		return err
	}
	c.Done(n.Name + " containerd")
	// The images come before the kubelet registers the node: then pods may come.
	if first {
		for _, archive := range c.Images {
			if err := n.Import(ctx, archive); err != nil {
				return err
			}
		}
		c.Done(n.Name + " images")
	}
	if err := c.Plane.Serving(ctx); err != nil {
		return err
	}
	return n.machine.Start(ctx, kubelet, true)
}

// Kill begins to end everything on the node at once, as when its power fails.
func (n *Node) Kill() {
	if n.machine != nil {
		n.machine.Kill()
	}
}

// Halt ends the node as Kill does, waits for it, and removes all of the node from the machine
// outside except its disk.
func (n *Node) Halt() error {
	n.running.Store(nil)
	if n.machine != nil {
		n.machine.End()
	}
	return namespace.RemoveGroups(n.config.Hierarchies, n.config.Folder.Group(n.Name))
}

// hasEnded reports whether the node's first process has ended, and nobody halted the node. It may be called
// during a reboot.
func (n *Node) hasEnded() bool {
	m := n.running.Load()
	if m == nil {
		return false
	}
	select {
	case <-m.Ended():
		return true
	default:
		return false
	}
}

// Remove ends the node as Halt does, and removes its disk and its Node object.
func (n *Node) Remove(ctx context.Context) error {
	c := n.config
	n.Kill()
	return errors.Join(n.Halt(), os.RemoveAll(c.Folder.Disk(n.Name)), c.Plane.API.DeleteNode(ctx, n.Name))
}

// Number returns the node's number in the cluster's network.
func (n *Node) Number() int { return n.number }

// BootID returns the boot ID of the node, which is the same in its containers. A reboot changes
// it.
func (n *Node) BootID() string { return n.bootID }

// PathOnNode returns the path under which this process sees a path of the node. It is valid until
// the node reboots; links to absolute paths lead out of it.
func (n *Node) PathOnNode(path string) string { return n.machine.Path(path) }

// write writes a file on the node.
func (n *Node) write(path, content string) error {
	at := n.PathOnNode(path)
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		err = os.WriteFile(at, []byte(content), 0o600)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", path, n.Name, err)
	}
	return nil
}

// Exec runs a program of the node in its namespaces and returns its output. An error includes the
// end of its standard error.
func (n *Node) Exec(ctx context.Context, name string, args ...string) ([]byte, error) {
	return n.machine.Exec(ctx, nil, name, args...)
}

// Import imports the images of an archive into the node's containerd.
func (n *Node) Import(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := n.machine.Exec(ctx, f, "ctr", "--namespace=k8s.io", "images", "import", "--local", "-"); err != nil {
		return fmt.Errorf("import %s: %w", archive, err)
	}
	return nil
}

// KillKubelet kills the kubelet and returns when it runs again.
func (n *Node) KillKubelet(ctx context.Context) error {
	return n.machine.Restart(ctx, kubelet, syscall.SIGKILL)
}

// RestartContainerd restarts containerd, as systemctl does, and returns when it
// serves again. Containers keep running.
func (n *Node) RestartContainerd(ctx context.Context) error {
	return n.machine.Restart(ctx, containerd, syscall.SIGTERM)
}

// Reboot ends everything on the node at once and starts it again, with its
// disk, an empty /run and /dev, and a new boot ID. It returns when the node is
// Ready.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.Halt(); err != nil {
		return err
	}
	if err := n.boot(ctx, false); err != nil {
		return err
	}
	return waitReady(ctx, n.config.Plane.API, n)
}

// Logs returns the output of kubelet or containerd on the node so far.
func (n *Node) Logs(program string) ([]byte, error) {
	file, err := n.LogFile(program)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// LogFile returns the file, outside the node, with the output of kubelet or containerd.
func (n *Node) LogFile(program string) (string, error) {
	file := n.machine.Log(program)
	if file == "" {
		return "", fmt.Errorf("%s: no such program on a node; there are %s and %s", program, kubelet, containerd)
	}
	return file, nil
}

// newUUID returns a random UUID, in the kernel's format of a boot ID.
func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
