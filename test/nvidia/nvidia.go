// Package nvidia installs NVIDIA's own GPU operator stack and ours on a cluster of test/lab/cluster,
// one after the other and with the same simulated driver, so that the two can be measured side
// by side:
//
//	built, err := nvidia.Build(ctx, "bin", os.Stderr)
//	c, err := cluster.Up(ctx, cluster.Config{Name: "nvidia", Images: built.Base, Restart: 5 * time.Second})
//	registry, err := built.Serve(ctx, c, nvidia.Public(), nvidia.Sizes())
//	err = built.Prepare(ctx, c) // Node Feature Discovery, and nodes without a GPU
//	settings := nvidia.Settings{Registry: registry}
//	for _, stack := range []nvidia.Stack{built.NVIDIA(settings), built.GPUReady(settings)} {
//		err = stack.Install(ctx, c)
//		steps, err := built.Provision(ctx, c, stack) // or: built.Apply the Policy, nvidia.Plug, and a clock of one's own
//		err = stack.Remove(ctx, c) // the nodes are bare again
//	}
//
// NVIDIA's programs are built from their Go modules as they are. What has no module is turned
// off in the policy, or has a stand-in; docs/time-to-gpu.md lists both.
package nvidia

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Stack is a GPU operator with its operands, as its Helm chart installs it.
type Stack interface {
	// Name is "nvidia" or "gpuready".
	Name() string

	// Namespace is the namespace of the operator and its operands.
	Namespace() string

	// Install installs the operator and returns when it is ready. There is no policy yet, so
	// nothing happens on the nodes.
	Install(ctx context.Context, c *cluster.Cluster) error

	// Policy returns the ClusterPolicy, as YAML, that the chart renders.
	Policy(ctx context.Context) (string, error)

	// Remove removes the policy and the operator. Each node reboots and registers again, so
	// the next stack finds it as bare as the first one did. Images that came from a
	// Registry are gone, others stay.
	Remove(ctx context.Context, c *cluster.Cluster) error
}

// Settings apply to both stacks. Zero values are defaults.
type Settings struct {
	// DriverTakes is the time from the driver container's start to loaded modules. The
	// default, 5 s, is that of a precompiled driver; one that is compiled takes a minute.
	DriverTakes time.Duration

	// Profile is the machine that gpusim simulates, h100-sxm by default.
	Profile string

	// Registry serves the images. By default the nodes have them already, and
	// no registry answers.
	Registry *Registry
}

// repository is the registry path of NVIDIA's images.
func (s Settings) repository() string {
	if s.Registry == nil {
		return repository
	}
	return s.Registry.Host + "/theirs"
}

// driver are the values, the same in both charts, that name the driver container.
func (s Settings) driver() []string {
	return []string{
		"driver.repository=" + s.repository(), "driver.image=driver", "driver.version=" + DriverVersion,
		"driver.env[0].name=DRIVER_TAKES", "driver.env[0].value=" + cmp.Or(s.DriverTakes, 5*time.Second).String(),
		"driver.env[1].name=GPUSIM_PROFILE", "driver.env[1].value=" + cmp.Or(s.Profile, "h100-sxm"),
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
