// Package binaries provides the programs of others that tests run: built from Go modules, or fetched
// from Debian. A cache keeps both. It also packs programs into images.
//
// Each folder beside this file with a go.mod is a module without Go code: it pins one project
// (Kubernetes, containerd, runc, etcd, CNI plugins), and its tools are the programs to build. The
// result is one entry of a cache outside the checkout. The name of an entry's folder ends in a hash
// of all inputs of the build, so a new containerd does not rebuild Kubernetes. An entry is either
// complete or absent.
//
// EnsureDebian fetches Debian's programs, of any release, without installing anything. apt works in
// separate folders and checks signatures and hashes, and dpkg unpacks.
//
// WriteImage builds container images from files, as archives in the OCI layout that `ctr images
// import` reads.
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

// Options describe where to build and how to report progress. The zero value builds quietly,
// with the go command of PATH, into DefaultCache. The source is the checkout around the working
// directory or the running program.
type Options struct {
	Cache      string    // folder of the cache
	Source     string    // folder with the modules' folders
	Go         string    // the go command
	Out        io.Writer // progress; nil: none is shown
	Kubernetes string    // its minor version ("1.32"), of which there is a module; "": the newest
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

// Dir maps the name of each binary to its path.
type Dir map[string]string

// Path returns the absolute path of a binary, such as "kubelet". The binaries of one module are
// in one folder that holds no other programs.
func (d Dir) Path(name string) string { return d[name] }

// SearchPath returns a value for PATH that includes every binary.
func (d Dir) SearchPath() string {
	folders := map[string]bool{}
	for _, path := range d {
		folders[filepath.Dir(path)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(folders)), string(filepath.ListSeparator))
}

// Ensure returns the binaries, from the cache if they are there. Missing ones are built, which
// takes minutes. Only one build of a module runs at a time on a machine; another Ensure waits
// for it and uses its result.
func Ensure(ctx context.Context, o Options) (Dir, error) {
	completed := o
	if err := completed.complete(); err != nil {
		return nil, err
	}
	kubernetes, err := kubernetesAt(o.Kubernetes, completed.Source)
	if err != nil {
		return nil, err
	}
	wanted := slices.Clone(modules)
	wanted[len(wanted)-1] = kubernetes
	return ensure(ctx, wanted, o)
}

// EnsureRuntimes is like Ensure, for runc, containerd and dockerd only.
func EnsureRuntimes(ctx context.Context, o Options) (Dir, error) {
	wanted := []module{docker}
	for _, m := range modules {
		if m.name == "runc" || m.name == "containerd" {
			wanted = append(wanted, m)
		}
	}
	return ensure(ctx, wanted, o)
}

// EnsureNode is like Ensure, for runc, containerd and the CNI plugins only.
func EnsureNode(ctx context.Context, o Options) (Dir, error) {
	wanted := slices.DeleteFunc(slices.Clone(modules), func(m module) bool { return m.name == "etcd" || m.name == "kubernetes" })
	return ensure(ctx, wanted, o)
}

// EnsureNFD is like Ensure, for Node Feature Discovery: nfd-master and nfd-worker.
func EnsureNFD(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, []module{nfd}, o) }

// EnsureNVIDIA is like Ensure, for the unmodified programs of NVIDIA's GPU operator, device
// plugin and container toolkit.
func EnsureNVIDIA(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, nvidia, o) }

// EnsureOLM is like Ensure, for the Operator Lifecycle Manager: olm, catalog, opm and cpb.
func EnsureOLM(ctx context.Context, o Options) (Dir, error) { return ensure(ctx, []module{olm}, o) }

// EnsureAutoscaler is like Ensure, for the Cluster Autoscaler: cluster-autoscaler.
func EnsureAutoscaler(ctx context.Context, o Options) (Dir, error) {
	return ensure(ctx, []module{autoscaler}, o)
}

func ensure(ctx context.Context, modules []module, o Options) (Dir, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	tc, err := readToolchain(ctx, o.Go, o.Source)
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

// complete fills in the defaults.
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

// findSource finds this package's folder in the checkout that contains the working directory
// or the running program (bin/cluster).
func findSource() (string, error) {
	const here = "test/lab/binaries"
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
