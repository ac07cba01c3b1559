// Package nvidia installs NVIDIA's own GPU operator stack and ours on a cluster of test/cluster,
// one after the other and with the same simulated driver, so that the two can be measured side
// by side:
//
//	built, err := nvidia.Build(ctx, "bin", os.Stderr)
//	c, err := cluster.Up(ctx, cluster.Config{Name: "nvidia", Images: built.Images})
//	err = built.Prepare(ctx, c) // Node Feature Discovery, and nodes without a GPU
//	for _, stack := range []nvidia.Stack{built.NVIDIA(driver), built.GPUReady(driver)} {
//		err = stack.Install(ctx, c)
//		steps, err := built.Provision(ctx, c, stack) // or: built.Apply the Policy, nvidia.Plug, and a clock of one's own
//		err = stack.Remove(ctx, c) // the nodes are bare again
//	}
//
// NVIDIA's programs are built from their Go modules as they are. What has no module is turned
// off in the policy, or has a stand-in; docs/nvidia-stack.md lists both.
package nvidia

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuready/gpuready/test/cluster"
)

// Stack is a GPU operator with its operands, as its Helm chart installs it.
type Stack interface {
	// Name is "nvidia" or "gpuready".
	Name() string

	// Namespace is where the operator and its operands run.
	Namespace() string

	// Install installs the operator and returns when it is ready. There is no policy yet, so
	// nothing happens on the nodes.
	Install(ctx context.Context, c *cluster.Cluster) error

	// Policy returns the ClusterPolicy, as YAML, that the chart renders.
	Policy(ctx context.Context) (string, error)

	// Remove removes the policy and the operator. Each node reboots and registers again, so
	// the next stack finds it as bare as the first one did; images stay.
	Remove(ctx context.Context, c *cluster.Cluster) error
}

// Driver is the simulated driver that both stacks bring to the nodes, by the same driver
// container. Zero values are defaults.
type Driver struct {
	Takes   time.Duration // from the container's start until the modules are loaded; default 5 s, as of a precompiled driver
	Profile string        // what gpusim simulates; default h100-sxm
}

func (d Driver) values() []string {
	if d.Takes == 0 {
		d.Takes = 5 * time.Second
	}
	if d.Profile == "" {
		d.Profile = "h100-sxm"
	}
	return []string{
		"driver.repository=" + repository, "driver.image=driver", "driver.version=" + DriverVersion,
		"driver.env[0].name=DRIVER_TAKES", "driver.env[0].value=" + d.Takes.String(),
		"driver.env[1].name=GPUSIM_PROFILE", "driver.env[1].value=" + d.Profile,
		"driver.env[2].name=DRIVER_VERSION", "driver.env[2].value=" + DriverVersion,
	}
}

// Apply applies a manifest.
func (b *Built) Apply(ctx context.Context, c *cluster.Cluster, manifest string) error {
	_, err := b.run(ctx, c, manifest, b.kubectl, "apply", "--server-side", "-f", "-")
	return err
}

// Kubectl runs kubectl as an administrator and returns what it prints.
func (b *Built) Kubectl(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	return b.run(ctx, c, "", b.kubectl, args...)
}

// helm runs helm; without a cluster it can render charts.
func (b *Built) helm(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	return b.run(ctx, c, "", filepath.Join(b.bin, "tools/helm"), args...)
}

func (b *Built) run(ctx context.Context, c *cluster.Cluster, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	home, err := os.MkdirTemp("", "gpuready-helm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	if c != nil {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+c.Kubeconfig)
	}
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// set turns values of a chart into arguments of helm.
func set(values []string) []string {
	var args []string
	for _, v := range values {
		args = append(args, "--set-string", v)
	}
	return args
}
