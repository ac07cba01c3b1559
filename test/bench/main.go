// Command bench measures the delays that users notice, with the built programs. It covers the
// start up to the first device list, Allocate, faults, restarted kubelets, the steps of the demo,
// vectoradd, and the speed of the simulator's PTX interpreter. It also covers the speed and
// quality of GPU choices, the hooks and gpu-oci-runtime in a container's creation, the operator on
// thousands of nodes, and the device plugin's memory and disk use. Machines are noisy, so it prints minimum, median and 99th
// percentile beside the goal, and tests carry no figures.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

func main() {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	if len(os.Args) == 3 && os.Args[1] == bareCommand {
		if err := serveBare(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	pflag.IntVar(&b.starts, "starts", 20, "starts of the device plugin, in each row that has some")
	pflag.IntVar(&b.allocations, "allocations", 2000, "allocations, in each row that has some")
	pflag.IntVar(&b.restarts, "restarts", 200, "restarts of the kubelet")
	pflag.IntVar(&b.hookRuns, "hooks", 200, "containers whose hooks are run")
	pflag.IntVar(&b.containers, "containers", 100, "containers that are started, in each way, by gpu-oci-runtime and by runc")
	pflag.IntVar(&b.nodeEvents, "node-events", 100, "nodes that change, in each of the operator's rows that has some")
	pflag.IntVar(&b.demoRuns, "demos", 5, "runs of the demo, which needs root")
	only := pflag.StringSlice("part", nil, "measure only these parts: "+strings.Join(b.names(), ", "))
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench holds the paths and the number of repetitions.
type bench struct {
	bin string // the built programs
	tmp string

	starts, allocations, restarts, hookRuns, containers, nodeEvents, demoRuns int
}

// part is a group of rows of the table.
type part struct {
	name string
	run  func(context.Context) error
}

func (b *bench) parts() []part {
	return []part{
		{"start", b.start},
		{"host-driver", b.hostDriver},
		{"allocate", b.allocate},
		{"preferred", b.preferred},
		{"xid", b.xids},
		{"bare", b.bare},
		{"kubelet", b.kubelets},
		{"events", b.events},
		{"memory", b.memory},
		{"calls", b.calls},
		{"flood", b.flood},
		{"stop", b.stops},
		{"size", b.size},
		{"driver", b.driver},
		{"toolkit", b.toolkit},
		{"validator", b.validator},
		{"dra", b.dra},
		{"hooks", b.hooks},
		{"oci-runtime", b.ociRuntime},
		{"demo", b.demo},
		{"traces", b.traces},
		{"operator", b.operator},
		{"samples", b.samples},
		{"interpreter", b.interpreter},
	}
}

func (b *bench) names() []string {
	var names []string
	for _, p := range b.parts() {
		names = append(names, p.name)
	}
	return names
}

func (b *bench) run(ctx context.Context, only []string) error {
	for _, name := range only {
		if !slices.Contains(b.names(), name) {
			return fmt.Errorf("--part %q: there are %s", name, strings.Join(b.names(), ", "))
		}
	}
	if b.bin = os.Getenv("GPUREADY_BIN"); b.bin == "" {
		return errors.New("GPUREADY_BIN must name the folder of the built programs; run make bench")
	}
	var err error
	if b.tmp, err = os.MkdirTemp(memoryDir(), "bench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.tmp)
	fmt.Printf("%s/%s, %d processors, %s; goals are for an idle machine with 2 processors\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	header(os.Stdout)
	for _, p := range b.parts() {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// memoryDir returns a folder in memory for sockets and states, as a node has them in /run. It
// returns "" if there is none, or TMPDIR names another.
func memoryDir() string {
	const dir = "/dev/shm"
	if os.Getenv("TMPDIR") != "" || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

func (b *bench) program(name string) string { return filepath.Join(b.bin, name) }
