package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// Kind is a container runtime of one version.
type Kind string

// The supported runtimes.
const (
	Containerd16 Kind = "containerd-1.6" // 1.6.20, of Debian 12
	Containerd17 Kind = "containerd-1.7" // 1.7.24, of Debian 13
	Containerd2  Kind = "containerd-2"   // the version that test/lab/binaries builds
	Docker       Kind = "docker"         // moby's, with containerd 2
	Podman       Kind = "podman"         // 4.3, of Debian 12; there is no daemon
)

// programs maps runtimes to the folders of their programs, in the order of a PATH.
type programs map[Kind][]string

// programsVariable passes the programs to the test processes inside nodes, as JSON.
const programsVariable = "GPUREADY_RUNTIMES"

// fromDebian lists the runtimes that are Debian's packages. They run with the runc of test/lab/binaries.
var fromDebian = map[Kind]binaries.DebianSet{
	Containerd16: {Release: "bookworm", Packages: []string{"containerd"}, Version: "1.6.20"},
	Containerd17: {Release: "trixie", Packages: []string{"containerd"}, Version: "1.7.24"},
	Podman: {Release: "bookworm", Version: "4.3.1", Packages: []string{
		"podman", "conmon", "golang-github-containers-common",
		"libassuan0", "libdevmapper1.02.1", "libglib2.0-0", "libgpgme11", "libsubid4",
	}},
}

// ensure returns the programs of all runtimes. The first call builds and downloads them, which takes minutes.
func ensure(ctx context.Context, out io.Writer) (programs, error) {
	cache, err := binaries.DefaultCache()
	if err != nil {
		return nil, err
	}
	built, err := binaries.EnsureRuntimes(ctx, binaries.Options{Out: out})
	if err != nil {
		return nil, err
	}
	folder := func(name string) string { return filepath.Dir(built.Path(name)) }
	p := programs{
		Containerd2: {folder("containerd"), folder("runc")},
		Docker:      {folder("dockerd"), folder("containerd"), folder("runc")},
	}
	for kind, set := range fromDebian {
		at, err := binaries.EnsureDebian(ctx, cache, set, out)
		if err != nil {
			return nil, err
		}
		p[kind] = []string{filepath.Join(at, "usr/bin"), folder("runc")}
	}
	return p, nil
}

// inherited returns the programs that the test process outside this node has passed to this one.
func inherited() (programs, error) {
	var p programs
	if err := json.Unmarshal([]byte(os.Getenv(programsVariable)), &p); err != nil {
		return nil, fmt.Errorf("%s: %w; TestMain must call node.Main", programsVariable, err)
	}
	return p, nil
}

// export passes the programs to the processes that this one starts.
func (p programs) export() error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.Setenv(programsVariable, string(data))
}
