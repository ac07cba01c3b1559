// Command autoscaler starts a cluster with the Cluster Autoscaler and no GPU node, and holds it until
// Ctrl-C. A pod that requests nvidia.com/gpu then adds one. It shows the purpose of a startup taint;
// `make e2e-autoscaler` runs the scenarios.
//
// The autoscaler is the real program. It runs outside the cluster, with an administrator's
// kubeconfig, and calls the Provider over its external gRPC interface. The Provider adds and removes
// nodes of the cluster. It has one group of GPU nodes, initially empty.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

type toolOptions struct {
	config   Config
	nodes    Nodes
	scan     time.Duration
	unneeded time.Duration
	timeout  time.Duration
}

func main() {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	o := toolOptions{config: Config{Out: os.Stderr}, nodes: Nodes{Name: "gpu"}}
	f := pflag.NewFlagSet("autoscaler", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.config.Name, "name", "autoscaler", "`NAME` of the cluster")
	f.StringVar(&o.config.Bin, "bin", "bin", "`FOLDER` of what make built")
	f.StringVar(&o.config.Manifests, "manifests", "deployments/static", "`FOLDER` of the manifests")
	f.DurationVar(&o.config.BootDelay, "boot-delay", 0, "how much longer the simulated driver takes on each node")
	f.IntVar(&o.nodes.Max, "max", 3, "how many GPU nodes there may be")
	f.BoolVar(&o.nodes.Taint, "startup-taint", true, "new nodes come with "+StartupTaint+", and the autoscaler knows it")
	f.StringVar(&o.nodes.GPULabel, "gpu-label", "", "`LABEL` by which the provider marks GPU nodes, for example "+PCILabel)
	f.DurationVar(&o.scan, "scan-interval", 2*time.Second, "how often the autoscaler looks")
	f.DurationVar(&o.unneeded, "scale-down-unneeded-time", time.Minute, "how long a node is of no use before it is removed")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "for coming up, with what has to be built")
	if err := f.Parse(os.Args[1:]); errors.Is(err, pflag.ErrHelp) {
		return
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "autoscaler:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := runTool(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "autoscaler:", err)
		os.Exit(1)
	}
}

func runTool(ctx context.Context, o toolOptions) (err error) {
	start, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c, err := Up(start, o.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	p, err := c.NewProvider(start, o.nodes, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	defer p.Close()
	flags := []string{"--scan-interval=" + o.scan.String(), "--scale-down-unneeded-time=" + o.unneeded.String()}
	if o.nodes.Taint {
		flags = append(flags, "--startup-taint="+StartupTaint)
	}
	a, err := c.Autoscale(p, flags...)
	if err != nil {
		return err
	}
	fmt.Printf("\ncluster %s is up, with 0 to %d GPU nodes. In another terminal:\n\n", c.Name, o.nodes.Max)
	fmt.Printf("    export KUBECONFIG=%s\n    export PATH=%s:$PATH\n    kubectl get nodes --watch\n\n", c.Kubeconfig, filepath.Dir(c.Kubectl))
	fmt.Printf("The autoscaler prints to %s. Ctrl-C ends all of it.\n", c.Log())
	select {
	case <-ctx.Done():
	case <-a.Ended():
	case <-c.Ended():
		err = errors.New("the control plane ended by itself")
	}
	return errors.Join(err, a.Stop())
}
