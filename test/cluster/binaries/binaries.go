// Package binaries builds what a real cluster runs on (Kubernetes, containerd,
// runc, etcd, CNI plugins) and keeps it.
//
// Each folder beside this file that has a go.mod is a module without a line of
// Go: it pins one project, and its tools are the programs to build. What comes
// of it is one entry of a cache outside the checkout: a folder whose name ends
// in a hash of all that it was built from, so that a new containerd does not
// build Kubernetes again. An entry is there whole or not at all.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options say where to build and how to show it. The zero value builds quietly,
// with the go command of PATH, from the checkout around the working directory
// or the running program, into DefaultCache.
type Options struct {
	Cache  string    // folder of the cache
	Source string    // folder with the modules' folders
	Go     string    // the go command
	Out    io.Writer // progress; nil: none is shown
}

// DefaultCache is $GPUREADY_CACHE, else $XDG_CACHE_HOME/gpuready, else
// ~/.cache/gpuready.
func DefaultCache() (string, error) {
	if dir := os.Getenv("GPUREADY_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for a cache: %w; set GPUREADY_CACHE to one", err)
	}
	return filepath.Join(dir, "gpuready"), nil
}

// Dir tells where each binary lies.
type Dir map[string]string

// Path is the absolute path of a binary: "kubelet". Those of one module lie in
// one folder, which holds no other programs.
func (d Dir) Path(name string) string { return d[name] }

// Search is a value for PATH that has every binary in it.
func (d Dir) Search() string {
	folders := map[string]bool{}
	for _, path := range d {
		folders[filepath.Dir(path)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(folders)), string(filepath.ListSeparator))
}

// Ensure returns the binaries, at once where they are in the cache; what is not
// it builds, which takes minutes. Only one build of a module runs at a time on a
// machine: another Ensure waits for it and uses what came of it.
func Ensure(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, modules, o) }

// EnsureRuntimes is Ensure for runc, containerd and dockerd alone.
func EnsureRuntimes(ctx context.Context, o Options) (Dir, error) {
	wanted := []module{docker}
	for _, m := range modules {
		if m.name == "runc" || m.name == "containerd" {
			wanted = append(wanted, m)
		}
	}
	return ensure(ctx, wanted, o)
}

// EnsureNFD is Ensure for Node Feature Discovery: nfd-master and nfd-worker.
func EnsureNFD(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, []module{nfd}, o) }

// EnsureNVIDIA is Ensure for NVIDIA's own programs, built as they are: those of its GPU
// operator, device plugin and container toolkit.
func EnsureNVIDIA(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, nvidia, o) }

// EnsureOLM is Ensure for the Operator Lifecycle Manager: olm, catalog and opm.
func EnsureOLM(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, []module{olm}, o) }

// EnsureAutoscaler is Ensure for the Cluster Autoscaler: cluster-autoscaler.
func EnsureAutoscaler(ctx context.Context, o Options) (Dir, error) {
	return ensure(ctx, []module{autoscaler}, o)
}

func ensure(ctx context.Context, modules []module, o Options) (Dir, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	tc, err := askToolchain(ctx, o.Go, o.Source)
	if err != nil {
		return nil, err
	}
	s := newScreen(o.Out)
	dir := Dir{}
	var missing []entry
	for _, m := range modules {
		e, err := m.entry(o.Source, o.Cache, tc)
		if err != nil {
			return nil, err
		}
		for _, b := range m.binaries {
			dir[b.name] = filepath.Join(e.path, b.name)
		}
		switch err := e.use(time.Now()); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, e)
		case err != nil:
			s.printf("%v; it is built anew\n", err)
			missing = append(missing, e)
		}
	}
	if len(missing) == 0 {
		return dir, nil
	}
	s.announce(missing, o.Cache)
	for _, e := range missing {
		if err := e.fill(ctx, o.Go, s); err != nil {
			return nil, err
		}
	}
	prune(o.Cache, time.Now().Add(-unusedFor))
	return dir, nil
}

// complete fills in what is not given.
func (o *Options) complete() error {
	if o.Go == "" {
		o.Go = "go"
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	var err error
	if o.Cache == "" {
		if o.Cache, err = DefaultCache(); err != nil {
			return err
		}
	}
	if o.Cache, err = filepath.Abs(filepath.Join(o.Cache, "binaries")); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return fmt.Errorf("cache of the cluster's binaries: %w; set GPUREADY_CACHE to a folder that can be written", err)
	}
	if o.Source == "" {
		o.Source, err = findSource()
	}
	return err
}

// findSource looks for this package's folder in the checkout that the working
// directory or the running program (bin/cluster) is in.
func findSource() (string, error) {
	const here = "test/cluster/binaries"
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			source := filepath.Join(dir, here)
			if _, err := os.Stat(filepath.Join(source, "kubernetes/go.mod")); err == nil {
				return source, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no %s above %s; run this inside a checkout of gpuready", here, strings.Join(starts, " or "))
}
