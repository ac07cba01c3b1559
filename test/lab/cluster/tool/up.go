package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// build builds the binaries, and prints where they are.
func build(ctx context.Context) error {
	dir, err := binaries.Ensure(ctx, binaries.Options{Out: os.Stderr})
	if err != nil {
		return err
	}
	for folder := range strings.SplitSeq(dir.SearchPath(), string(filepath.ListSeparator)) {
		fmt.Println(folder)
	}
	return nil
}

// up brings a cluster up and holds it.
func up(ctx context.Context, o options) error {
	if _, err := o.install(); err != nil { // fail early
		return usageError{err}
	}
	var dir binaries.Dir
	var err error
	if o.binaries != "" {
		dir, err = collect(o.binaries)
	} else {
		dir, err = binaries.Ensure(ctx, binaries.Options{Out: os.Stderr})
	}
	if err != nil {
		return err
	}
	began := time.Now()
	start, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c, err := cluster.Up(start, cluster.Config{
		Name: o.name, Nodes: o.nodes, Images: o.images,
		WithoutCDI: o.withoutCDI, NUMA: o.numa, NodeStatus: o.nodeStatus, Binaries: dir,
		Progress: func(s cluster.Step) { fmt.Fprintf(os.Stderr, "  %5.1f s  %s\n", s.Took.Seconds(), s.What) },
	})
	if err != nil {
		return err
	}
	if err := apply(start, o, c, dir.Path("kubectl")); err != nil {
		return errors.Join(err, c.Down())
	}
	return hold(ctx, c, filepath.Dir(dir.Path("kubectl")), time.Since(began))
}

// hold prints how to use the cluster and waits for its end.
func hold(ctx context.Context, c *cluster.Cluster, path string, took time.Duration) error {
	fmt.Printf("\ncluster %s is up: %d of %d nodes Ready, %.1f s. In another terminal:\n\n", c.Name, len(c.Nodes), len(c.Nodes), took.Seconds())
	fmt.Printf("    export KUBECONFIG=%s\n    export PATH=%s:$PATH\n    kubectl get nodes\n\n", c.Kubeconfig, path)
	fmt.Println("Ctrl-C ends it and removes all of it.")
	serving, stop := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	helpers.Go(func() { watchNodes(serving, c, os.Stderr) })
	helpers.Go(func() {
		if err := c.Serve(serving); err != nil {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
	})
	select {
	case <-c.Ended():
	case <-ctx.Done():
	}
	stop()
	helpers.Wait()
	if ctx.Err() == nil {
		return errors.Join(errors.New("the control plane ended by itself"), c.Down())
	}
	fmt.Fprintf(os.Stderr, "\nending cluster %s\n", c.Name)
	if err := c.Down(); err != nil {
		return err
	}
	fmt.Printf("cluster %s is gone\n", c.Name)
	return nil
}

// collect lists the binaries of one folder.
func collect(path string) (binaries.Dir, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("--binaries: %w", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	dir := binaries.Dir{}
	for _, e := range entries {
		dir[e.Name()] = filepath.Join(path, e.Name())
	}
	return dir, nil
}
