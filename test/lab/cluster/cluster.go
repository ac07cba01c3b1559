// Package cluster starts a real Kubernetes cluster on one machine: etcd,
// kube-apiserver, kube-scheduler and kube-controller-manager, and nodes with a
// kubelet, containerd and runc, each node in namespaces of its own with the
// paths that a node has in production.
//
// This program also runs inside the namespaces (package namespace). So every caller of Up must
// call Inside first in main or TestMain:
//
//	if exit, ran := cluster.Inside(os.Args[1:]); ran {
//		os.Exit(exit)
//	}
//
// The control plane and each node are machines (package namespace). The control plane runs etcd and
// Kubernetes' servers, and owns the certificate authority (package api) and a bridge in its network
// namespace. A veth pair connects each node to the bridge. A node runs containerd and the kubelet,
// with the paths that a node has in production. A cluster has its own folder (package folder), with a
// record for other processes.
//
// A cluster ends with the process that called Up, however that ends; Down ends it and removes
// its files. After a kill the kernel ends the processes, so only files and empty control groups
// are left, which the next Up removes.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/namespace"

	"github.com/gpuready/gpuready/test/lab/folder"
)

// ErrNotRoot is returned when namespaces cannot be created because the process is not root.
var ErrNotRoot = errors.New("a cluster needs root for its namespaces; try again with sudo")

// ErrLeftBehind means that a cluster has ended but was not removed completely.
var ErrLeftBehind = errors.New("something is left behind")

// Config describes the cluster to start. The zero value is one node with defaults.
type Config struct {
	Name        string        // of the cluster, unique on this machine; default "gpuready"
	Nodes       int           // default 1; they are named n1, n2, …
	Bare        bool          // no nodes: the control plane alone
	Images      []string      // archives that each node has before Up returns
	Gates       string        // additional feature gates of the kubelets: "DevicePluginCDIDevices: false"
	WithoutCDI  bool          // containerd finds no CDI specs (before 2.4: ignores CDI devices)
	NUMA        bool          // two made-up NUMA nodes, topology manager policy single-numa-node
	GPUs        bool          // nodes have the machine's own GPUs, and their driver
	Controllers string        // value of the controller manager's flag --controllers; default "*"
	Admission   []string      // additional admission plugins of the API server
	Audit       string        // group of users whose requests the API server logs (Audited); "": none
	NodeStatus  time.Duration // how often a kubelet reports; default 2 s (Kubernetes: 10 s)
	Restart     time.Duration // delay before containerd is restarted after it ended by itself; its systemd unit: 5 s; default none
	Binaries    binaries.Dir  // default: what binaries.Ensure returns
	Progress    func(Step)    // called after each step; may be nil
}

// Step is a completed step of starting a cluster.
type Step struct {
	What string
	Took time.Duration // since Up was called
}

// Cluster is a running cluster.
type Cluster struct {
	Name       string
	Kubeconfig string  // an administrator's file, valid on this machine outside the namespaces
	Server     string  // URL of the API server, the same
	Nodes      []*Node // n1, n2, …; AddNode and RemoveNode change it; concurrent readers use Node

	config  Config
	began   time.Time
	folder  *folder.Folder
	limits  *folder.RaisedLimits // nil: not raised
	plane   *controlPlane        // nil: never created
	nodes   nodeConfig           // the common settings of its nodes
	mu      sync.Mutex           // guards Nodes, taken and the record
	taken   map[int]bool         // the numbers of nodes and guests
	down    sync.Once
	downErr error
}

// Inside runs the part of a cluster inside its namespaces, if args ask for it; see above.
func Inside(args []string) (exit int, ran bool) { return namespace.RunInside(args) }

// DefaultName is the default of Config.Name.
const DefaultName = "gpuready"

func (c *Config) complete() error {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if err := folder.CheckName(c.Name); err != nil {
		return err
	}
	switch {
	case c.Bare && c.Nodes == 0:
	case c.Bare:
		return fmt.Errorf("%d nodes, and a control plane alone: say one of the two", c.Nodes)
	case c.Nodes == 0:
		c.Nodes = 1
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return fmt.Errorf("%d nodes: must be 1 to %d", c.Nodes, maxNodes)
	}
	if c.NodeStatus == 0 {
		c.NodeStatus = 2 * time.Second
	}
	for i, archive := range c.Images {
		if _, err := os.Stat(archive); err != nil {
			return fmt.Errorf("image archive: %w; build it first (make images)", err)
		}
		var err error
		if c.Images[i], err = filepath.Abs(archive); err != nil {
			return err
		}
	}
	return nil
}

// Up starts a cluster and returns when all its nodes are Ready and have their
// images. If it fails nothing is left. ctx bounds the start only.
func Up(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	c := &Cluster{Name: config.Name, config: config, began: time.Now(), taken: map[int]bool{}}
	if err := c.start(ctx); err != nil {
		if c.folder != nil && (ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded)) {
			err = c.folder.PreserveLogs(err)
		}
		return nil, errors.Join(err, c.Down())
	}
	return c, nil
}

// start prepares files and settings, then starts everything in parallel. Each step waits only
// for what it needs.
func (c *Cluster) start(ctx context.Context) error {
	config := c.config
	hierarchies, err := namespace.HostHierarchies()
	if err != nil {
		return err
	}
	if c.folder, err = folder.Claim(c.Name, hierarchies); err != nil {
		return err
	}
	if c.limits, err = folder.RaiseLimits(folder.LimitsFile, folder.ClusterLimits); err != nil {
		return fmt.Errorf("raise limits of this machine: %w", err)
	}
	if config.Binaries == nil {
		if config.Binaries, err = binaries.Ensure(ctx, binaries.Options{Out: os.Stderr}); err != nil {
			return err
		}
	}
	c.done("binaries")
	if err := c.folder.Collect(config.Binaries.Path); err != nil {
		return err
	}
	pause, err := writePause(c.folder)
	if err != nil {
		return err
	}
	if c.plane, err = newPlane(c.folder); err != nil {
		return err
	}
	c.plane.planeOptions = planeOptions{Controllers: config.Controllers, Admission: config.Admission, Audit: config.Audit}
	c.nodes = nodeConfig{
		Folder: c.folder, Hierarchies: hierarchies, Plane: c.plane, Images: append([]string{pause}, config.Images...),
		Gates: config.Gates, WithoutCDI: config.WithoutCDI, NUMA: config.NUMA, GPUs: config.GPUs, Status: config.NodeStatus, Restart: config.Restart, Done: c.done,
	}
	if c.Nodes, err = newNodes(ctx, c.nodes, config.Nodes); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		c.taken[n.Number()] = true
	}
	g, together := errgroup.WithContext(ctx)
	g.Go(func() error { return c.plane.Start(together, config.Binaries.Path, c.done) })
	for _, n := range c.Nodes {
		g.Go(func() error { return n.Boot(together) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.Server, c.Kubeconfig = c.plane.Server, c.plane.Kubeconfig
	if !config.Bare {
		if err := c.WaitReady(ctx); err != nil {
			return err
		}
		c.done("all nodes Ready")
	}
	return c.write()
}

func (c *Cluster) done(what string) {
	if c.config.Progress != nil {
		c.config.Progress(Step{What: what, Took: time.Since(c.began)})
	}
}

// writePause writes the archive of the pause image, which each pod needs.
func writePause(f *folder.Folder) (archive string, err error) {
	pause, err := binaries.PauseImage()
	if err != nil {
		return "", err
	}
	archive = f.Join(binaries.PauseArchive)
	return archive, binaries.WriteImage(archive, pause)
}

// write writes the cluster's record for other processes.
func (c *Cluster) write() error {
	r := folder.Record{Name: c.Name, Process: os.Getpid(), Since: c.began, Kubeconfig: c.Kubeconfig, Server: c.Server, Dir: c.folder.Path}
	for _, n := range c.Nodes {
		r.Nodes = append(r.Nodes, folder.NodeRecord{Name: n.Name, IP: n.IP})
	}
	return r.Write()
}

// WaitReady waits until nodes, by default all, are Ready, each since its last
// boot.
func (c *Cluster) WaitReady(ctx context.Context, nodes ...*Node) error {
	if len(nodes) == 0 {
		nodes = c.Nodes
	}
	return waitReady(ctx, c.plane.API, nodes...)
}

// Down ends the cluster and removes its files. It may be called again.
func (c *Cluster) Down() error {
	c.down.Do(func() {
		for _, n := range c.Nodes {
			n.Kill() // all at once, then wait for each
		}
		var errs []error
		for _, n := range c.Nodes {
			errs = append(errs, n.Halt())
		}
		if c.plane != nil {
			c.plane.End()
		}
		if c.limits != nil {
			errs = append(errs, c.limits.Lower())
		}
		if c.folder != nil {
			errs = append(errs, c.folder.Release())
		}
		if err := errors.Join(errs...); err != nil {
			c.downErr = fmt.Errorf("cluster %s: %w: %w", c.Name, ErrLeftBehind, err)
		}
	})
	return c.downErr
}

// AddNode adds a node to the running cluster, and returns when it is Ready and has the
// cluster's images. If it fails nothing of the node is left. Several may be added at a
// time; all must have returned before Down is called.
func (c *Cluster) AddNode(ctx context.Context, name string, spec NodeSpec) (*Node, error) {
	n, err := c.newNode(ctx, name, spec)
	if err != nil {
		return nil, err
	}
	if err = n.Boot(ctx); err == nil {
		err = c.WaitReady(ctx, n)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add node %s: %w", name, err), c.RemoveNode(context.WithoutCancel(ctx), name))
	}
	return n, nil
}

// newNode creates a node and adds it to the cluster.
func (c *Cluster) newNode(ctx context.Context, name string, spec NodeSpec) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := folder.CheckNodeName(name); err != nil {
		return nil, fmt.Errorf("add node: %w", err)
	}
	if c.find(name) != nil {
		return nil, fmt.Errorf("add node %s: there is one of that name", name)
	}
	number, err := c.number(name)
	if err != nil {
		return nil, err
	}
	n, err := newNode(ctx, c.nodes, name, number, spec)
	if err != nil {
		return nil, fmt.Errorf("add node %s: %w", name, err)
	}
	c.taken[number] = true
	c.Nodes = append(c.Nodes, n)
	return n, c.write()
}

// RemoveNode ends a node at once and deletes its Node object, as a cloud does when it deletes a
// machine. Only its logs are left.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	n := c.Node(name)
	if n == nil {
		return fmt.Errorf("remove node %s: there is no node of that name", name)
	}
	if err := n.Remove(ctx); err != nil {
		return fmt.Errorf("remove node %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(other *Node) bool { return other == n })
	delete(c.taken, n.Number())
	return c.write()
}

// number reserves the lowest free number for a node.
func (c *Cluster) number(name string) (int, error) {
	for number := 1; number <= maxNodes; number++ {
		if !c.taken[number] {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%s is one node too many: a cluster has %d at most", name, maxNodes)
}

// Join connects a virtual machine to the cluster, as a node of that name.
func (c *Cluster) Join(name string) (*Guest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	number, err := c.number(name)
	if err != nil {
		return nil, err
	}
	c.taken[number] = true
	return newGuest(c.nodes, name, number)
}

// RestartAPIServer kills the API server and returns when it serves again.
func (c *Cluster) RestartAPIServer(ctx context.Context) error { return c.plane.RestartAPIServer(ctx) }

// Audited returns the file in which the API server logs the requests of Config.Audit, one JSON
// object a line. Each entry is written before the response.
func (c *Cluster) Audited() string { return c.plane.Audited() }

// Listen returns a listener of this process that nodes and pods can reach at PlaneIP.
func (c *Cluster) Listen(ctx context.Context, port int) (net.Listener, error) {
	return c.plane.Listen(ctx, port)
}

// Ended is closed when the control plane has ended, through Down or a crash.
func (c *Cluster) Ended() <-chan struct{} { return c.plane.Ended() }

// Node returns the node of that name, nil if there is none.
func (c *Cluster) Node(name string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(name)
}

func (c *Cluster) find(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}
