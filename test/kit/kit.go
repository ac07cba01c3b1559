package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/test/kit/nvml"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// kit is one run.
type kit struct {
	options
	dir     string // in which it is unpacked
	report  report
	cluster *cluster.Cluster // nil: not up
	regroup func() error     // nil: processes are in the groups where they were
	mode    uint32           // compute mode of the first GPU before the run
}

// task is one step of a run.
type task struct {
	name, expect string
	limit        time.Duration
	needed       bool // without it no other step makes sense
	do           func(ctx context.Context) (seen string, err error)
}

// unable is why a step cannot be done on this machine.
type unable struct{ why string }

func (u *unable) Error() string { return u.why }

// run runs the steps, and removes everything at the end.
func (k *kit) run(ctx context.Context) {
	k.report.Version, k.report.Simulated = version.Release(), k.simulate != ""
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		k.report.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	for _, s := range k.steps() {
		if !k.try(ctx, s) && (s.needed || ctx.Err() != nil) {
			break
		}
	}
	k.try(context.WithoutCancel(ctx), task{
		name: "end", expect: "no process, mount, control group or file of the run is left", limit: time.Minute, do: k.end,
	})
}

// try runs a step, and reports whether it did not fail.
func (k *kit) try(ctx context.Context, s task) bool {
	fmt.Fprintf(os.Stderr, "%s …\n", s.name)
	limited, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("it took more than %v", s.limit))
	defer cancel()
	began := time.Now()
	seen, err := s.do(limited)
	r := result{Step: s.name, Expect: s.expect, Outcome: passed, Seen: seen, Seconds: time.Since(began).Seconds()}
	if err != nil {
		r.Outcome, r.Seen = failed, err.Error()
		if why, cannot := errors.AsType[*unable](err); cannot {
			r.Outcome, r.Seen = skipped, "because "+why.why
		}
	}
	k.report.Steps = append(k.report.Steps, r)
	fmt.Fprintf(os.Stderr, "  %s, %.1f s: %s\n", r.Outcome, r.Seconds, r.Seen)
	return r.Outcome != failed
}

// kubectl runs kubectl, and returns its output.
func (k *kit) kubectl(ctx context.Context, args ...string) (string, error) {
	return k.kubectlWith(ctx, "", args...)
}

func (k *kit) kubectlWith(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(k.dir, "bin/kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.cluster.Kubeconfig, "HOME="+k.dir)
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, tail(out.String()), tail(complaint.String()))
	}
	return out.String(), nil
}

// tail returns the end of a text that may be long.
func tail(text string) string { return text[max(0, len(text)-600):] }

// apply applies manifests of the kit.
func (k *kit) apply(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := k.kubectl(ctx, "apply", "-f", k.manifest(name)); err != nil {
			return err
		}
	}
	return nil
}

func (k *kit) manifest(name string) string {
	if name == simulatedDriver {
		return filepath.Join(k.simulate, name)
	}
	return filepath.Join(k.dir, "manifests", name)
}

// applyText applies a manifest that is not a file.
func (k *kit) applyText(ctx context.Context, text string) error {
	_, err := k.kubectlWith(ctx, text, "apply", "-f", "-")
	return err
}

// onNode runs the kit on the node, with the driver's libraries.
func (k *kit) onNode(ctx context.Context, args ...string) ([]byte, error) {
	libraries := "/run/nvidia/driver/usr/lib/x86_64-linux-gnu:/run/nvidia/driver/usr/lib/aarch64-linux-gnu:/run/nvidia/driver/usr/lib64"
	return k.node().Exec(ctx, "env", append([]string{"LD_LIBRARY_PATH=" + libraries, "CUDA_DEVICE_ORDER=PCI_BUS_ID", namespace.Tool, inside}, args...)...)
}

func (k *kit) node() *cluster.Node { return k.cluster.Nodes[0] }

// readGPUs reads the machine's GPUs on the node.
func (k *kit) readGPUs(ctx context.Context, times int) (nvml.Machine, error) {
	var m nvml.Machine
	out, err := k.onNode(ctx, "read", fmt.Sprint(times))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(out, &m)
}

// until calls done until it returns no error.
func until(ctx context.Context, done func() error) error {
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// end ends the cluster, and looks for what is left.
func (k *kit) end(context.Context) (string, error) {
	if k.cluster != nil {
		if err := k.cluster.Down(); err != nil {
			return "", err
		}
	}
	if k.regroup != nil {
		if err := k.regroup(); err != nil {
			return "", err
		}
	}
	var left []string
	hierarchies, err := namespace.HostHierarchies()
	if err != nil {
		return "", err
	}
	for _, group := range namespace.FindGroups(hierarchies, "gpuready-"+clusterName+"-") {
		left = append(left, "control group "+group)
	}
	executables, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return "", err
	}
	for _, link := range executables {
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, k.dir+"/") && link != fmt.Sprintf("/proc/%d/exe", os.Getpid()) {
			left = append(left, "process "+filepath.Base(filepath.Dir(link))+", "+target)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, k.dir+"/") {
			left = append(left, "mount "+line)
		}
	}
	if _, err := os.Stat(filepath.Join(k.dir, "clusters", clusterName)); err == nil {
		left = append(left, "the cluster's folder")
	}
	if len(left) > 0 {
		return "", fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	return "nothing", nil
}
