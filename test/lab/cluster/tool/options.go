package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
)

// options are the options of the command line.
type options struct {
	command    string
	component  string // of logs
	node       string // of reboot, add-node and remove-node
	name       string
	nodes      int
	images     []string
	profile    string
	manifests  string
	withoutCDI bool
	numa       bool
	nodeStatus time.Duration
	timeout    time.Duration
	binaries   string
	output     string
	follow     bool
	help       bool

	flags *pflag.FlagSet
}

var commands = []struct{ name, args, what string }{
	{"up", "", "bring a cluster up and hold it until Ctrl-C"},
	{"down", "", "end a cluster that another terminal holds"},
	{"status", "", "show running clusters and the state of their nodes"},
	{"logs", "[COMPONENT]", "print a component's log; without one, list the log files"},
	{"reboot", "NODE", "end a node at once and boot it again, with its disk; also one that was killed"},
	{"add-node", "[NODE]", "add a node; without a name, the next of n1, n2, …"},
	{"remove-node", "NODE", "end a node and delete its Node object, as a cloud does"},
	{"build", "", "build the binaries ahead: etcd, Kubernetes, containerd, runc"},
}

func commandNames() (names []string) {
	for _, c := range commands {
		names = append(names, c.name)
	}
	return names
}

func parse(args []string) (options, error) {
	var o options
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.command, args = args[0], args[1:]
	}
	f := pflag.NewFlagSet("cluster", pflag.ContinueOnError)
	o.flags = f
	f.SortFlags = false
	f.Usage = func() {}
	in := func(commands ...string) bool { return o.command == "" || slices.Contains(commands, o.command) }
	nodeCommands := []string{"reboot", "add-node", "remove-node"}
	if in(append(nodeCommands, "up", "down", "status", "logs")...) {
		f.StringVar(&o.name, "name", cluster.DefaultName, "`NAME` of the cluster; several can be up side by side")
	}
	if in("up") {
		f.IntVar(&o.nodes, "nodes", 1, "number of nodes")
		f.StringArrayVar(&o.images, "image", nil, "image `ARCHIVE` that every node gets; may be given again")
		f.StringVar(&o.profile, "profile", "", "also install gpuready with a simulated driver of this `PROFILE`, as gpusim profiles lists them")
		f.StringVar(&o.manifests, "manifests", "deployments/static", "folder `DIR` with what --profile installs")
		f.BoolVar(&o.withoutCDI, "without-cdi", false, "containerd looks for CDI specs where there are none")
		f.BoolVar(&o.numa, "numa", false, "two made-up NUMA nodes, topology manager policy single-numa-node")
		f.DurationVar(&o.nodeStatus, "node-status", 2*time.Second, "how often a kubelet reports; Kubernetes' default is 10s")
		f.StringVar(&o.binaries, "binaries", "", "use the binaries in the folder `DIR` instead of building any")
	}
	if in(append(nodeCommands, "up")...) {
		f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "give up after this long, building not counted")
	}
	if in("status") {
		f.StringVarP(&o.output, "output", "o", "text", "text or json")
	}
	if in("logs") {
		f.BoolVarP(&o.follow, "follow", "f", false, "follow the log until Ctrl-C")
	}
	f.BoolVarP(&o.help, "help", "h", false, "show this help")
	if err := cmdline.Parse(f, args); err != nil {
		return o, cmdline.AddHelp(err, strings.TrimSpace("cluster "+o.command))
	}
	return o, o.check()
}

func (o *options) check() error {
	rest := o.flags.Args()
	known := slices.ContainsFunc(commands, func(c struct{ name, args, what string }) bool { return c.name == o.command })
	switch {
	case o.command != "" && !known:
		return cmdline.AddHelp(cmdline.UnknownCommand(o.command, commandNames()), "cluster")
	case o.help:
		return nil
	case o.command == "":
		return cmdline.AddHelp(cmdline.NoCommand(commandNames()), "cluster")
	case o.command == "logs" && len(rest) == 1:
		o.component = rest[0]
	case (o.command == "reboot" || o.command == "remove-node") && len(rest) != 1:
		return cmdline.AddHelp(cmdline.CountArguments(o.command, len(rest), "NODE"), "cluster "+o.command)
	case (o.command == "reboot" || o.command == "add-node" || o.command == "remove-node") && len(rest) == 1:
		o.node = rest[0]
		return folder.CheckNodeName(o.node)
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q; see cluster %s --help", rest[0], o.command)
	case o.command == "status" && o.output != "text" && o.output != "json":
		return fmt.Errorf("--output %q: must be text or json", o.output)
	}
	return nil
}

func help(w io.Writer, o options) {
	fmt.Fprint(w, `cluster: a real Kubernetes cluster on this machine: etcd, the control plane, and
nodes with kubelet, containerd and runc, each in namespaces of its own. It needs
root, no container engine and no registry. Nothing of a cluster is left behind; the
binaries, which are compiled once, stay in the cache.

`)
	if o.command == "" {
		fmt.Fprint(w, "Usage:\n")
		for _, c := range commands {
			fmt.Fprintf(w, "  cluster %-21s %s\n", strings.TrimSpace(c.name+" "+c.args), c.what)
		}
	} else {
		for _, c := range commands {
			if c.name == o.command {
				fmt.Fprintf(w, "Usage:\n  cluster %s [flags]    %s\n", strings.TrimSpace(c.name+" "+c.args), c.what)
			}
		}
	}
	fmt.Fprintf(w, `
Examples:
  make cluster                              # with this tree's images loaded
  bin/cluster up --nodes 2 --image bin/images/toolkit.tar
  make cluster CLUSTER_ARGS="--nodes 2 --profile dgx-2"   # gpuready and simulated GPUs
  bin/cluster up --name b --without-cdi     # beside the first
  bin/cluster logs n1-kubelet
  bin/cluster add-node                      # n2, with the images of the others
  bin/cluster reboot n1
  bin/cluster remove-node n2
  bin/cluster status -o json
  bin/cluster down --name b

Flags:
%s
Environment:
  GPUREADY_CLUSTERS   folder for the clusters' disks (now %s)
  GPUREADY_CACHE      cache folder for built binaries

Exit codes:
  0    success; up: the cluster was up, and was ended
  1    it failed: the component, its log file and the log's last lines are shown;
       reboot, remove-node: there is no such node
  2    bad usage
  3    no such cluster is up
  130  interrupted before the end; nothing is left behind
`, o.flags.FlagUsages(), folder.Base())
}
