package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/folder"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// seer is the source of a program that prints files, for this test's pods.
const seer = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
)

func main() {
	for _, arg := range os.Args[1:] {
		if arg == "stay" {
			c := make(chan os.Signal, 1)
			signal.Notify(c)
			<-c
			return
		}
		text, err := os.ReadFile(arg)
		fmt.Println(arg, strings.TrimSpace(string(text)), err)
	}
}
`

// TestClusterSurvivesNodeEvents starts real clusters. It takes a minute, and ten more to build
// the binaries.
func TestClusterSurvivesNodeEvents(t *testing.T) {
	if os.Getenv("GPUREADY_E2E") == "" {
		t.Skip("brings up real clusters; set GPUREADY_E2E=1 to run it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dir, err := binaries.Ensure(ctx, binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())

	config := Config{
		Name: "test", Nodes: 2, Images: []string{buildSeer(t)}, Binaries: dir,
		Progress: func(s Step) { t.Logf("%5.1f s  %s", s.Took.Seconds(), s.What) },
	}
	c, err := Up(ctx, config)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Down()) }()
	k := kubectl{t: t, path: dir.Path("kubectl"), config: c.Kubeconfig}

	t.Run("a pod runs to completion and sees its node's boot ID", func(t *testing.T) {
		n := c.Node("n2")
		k.apply(pod("once", n.Name, "/proc/sys/kernel/random/boot_id", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"))
		k.run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/once", "--timeout=60s")
		require.Contains(t, k.run("logs", "once"), n.BootID())
		require.NotEqual(t, n.BootID(), c.Node("n1").BootID())
	})
	k.apply(pod("stays", "n1", "stay"))
	k.run("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
	started := k.run("get", "pod", "stays", "-o=jsonpath={.status.containerStatuses[0].containerID}")
	n := c.Node("n1")

	t.Run("a kubelet that is killed comes back", func(t *testing.T) {
		require.NoError(t, n.KillKubelet(ctx))
		require.NoError(t, c.WaitReady(ctx, n))
	})
	t.Run("containers outlive containerd", func(t *testing.T) {
		require.NoError(t, n.RestartContainerd(ctx))
		out, err := n.Exec(ctx, "ctr", "--namespace=k8s.io", "tasks", "ls")
		require.NoError(t, err)
		require.Contains(t, string(out), strings.TrimPrefix(started, "containerd://"))
		k.until(t, "stay", "exec", "stays", "--", "/seer", "/proc/1/cmdline")
	})
	t.Run("a node is private", func(t *testing.T) {
		require.NoError(t, os.WriteFile(n.PathOnNode("/usr/local/made-on-node"), nil, 0o644))
		require.NoFileExists(t, "/usr/local/made-on-node")
		require.NoFileExists(t, c.Node("n2").PathOnNode("/usr/local/made-on-node"))
		_, err := n.Exec(ctx, "ls", "/run/made-before-reboot")
		require.ErrorContains(t, err, "No such file")
		require.NoError(t, os.WriteFile(n.PathOnNode("/run/made-before-reboot"), nil, 0o644))
	})
	t.Run("a node reboots", func(t *testing.T) {
		before := n.BootID()
		require.NoError(t, n.Reboot(ctx))
		require.NotEqual(t, before, n.BootID())
		require.NoFileExists(t, n.PathOnNode("/run/made-before-reboot"))
		require.FileExists(t, n.PathOnNode("/usr/local/made-on-node"))
		k.until(t, n.BootID(), "exec", "stays", "--", "/seer", "/proc/sys/kernel/random/boot_id")
	})
	t.Run("nodes come and go", func(t *testing.T) {
		n, err := c.AddNode(ctx, "more", NodeSpec{
			ProviderID: "test://more", Labels: map[string]string{"feature.node.kubernetes.io/pci-10de.present": "true"}, Taints: []string{"example.com/new:NoSchedule"},
			GPUs: []string{"0000:1b:00.0"},
		})
		require.NoError(t, err)
		require.Equal(t, "test://more true example.com/new", k.run("get", "node", "more",
			`-o=jsonpath={.spec.providerID} {.metadata.labels.feature\.node\.kubernetes\.io/pci-10de\.present} {.spec.taints[?(@.effect=="NoSchedule")].key}`))
		_, err = c.AddNode(ctx, "more", NodeSpec{})
		require.ErrorContains(t, err, "there is one of that name")
		k.run("taint", "node", "more", "example.com/new-")
		k.apply(pod("there", "more", "/proc/sys/kernel/random/boot_id", "/sys/bus/pci/devices/0000:1b:00.0/vendor"))
		k.until(t, n.BootID(), "logs", "there")
		require.Contains(t, k.run("logs", "there"), "vendor 0x10de <nil>")
		disk := c.folder.Disk("more")
		require.DirExists(t, disk)
		require.NoError(t, c.RemoveNode(ctx, "more"))
		require.NoDirExists(t, disk)
		require.Equal(t, "node/n1\nnode/n2\n", k.run("get", "nodes", "-o=name"))
		require.ErrorContains(t, c.RemoveNode(ctx, "more"), "no node of that name")
	})
	t.Run("another process reboots, adds and removes nodes", func(t *testing.T) {
		serving, stop := context.WithCancel(ctx)
		served := make(chan error, 1)
		go func() { served <- c.Serve(serving) }()
		defer func() {
			stop()
			require.NoError(t, <-served)
		}()
		r, err := folder.FindRecord(config.Name)
		require.NoError(t, err)
		c.Node("n2").Kill()
		require.Eventually(t, func() bool { return r.Refresh(ctx) == nil && r.Nodes[1].Ended }, time.Minute, 100*time.Millisecond)
		require.NoError(t, r.RebootNode(ctx, "n2", time.Minute))
		require.Empty(t, c.EndedNodes())
		require.ErrorContains(t, r.RebootNode(ctx, "n9", time.Minute), "there is no node n9; there are n1, n2")
		added, err := r.AddNode(ctx, "", time.Minute)
		require.NoError(t, err)
		require.Equal(t, "n3", added)
		require.NoError(t, r.RemoveNode(ctx, added, time.Minute))
		require.Equal(t, "node/n1\nnode/n2\n", k.run("get", "nodes", "-o=name"))
	})
	t.Run("clusters stand side by side", func(t *testing.T) {
		other := config
		other.Name, other.Nodes, other.NUMA, other.WithoutCDI = "other", 1, true, true
		second, err := Up(ctx, other)
		require.NoError(t, err)
		defer func() { require.NoError(t, second.Down()) }()
		in := kubectl{t: t, path: k.path, config: second.Kubeconfig}
		require.Equal(t, "node/n1", strings.TrimSpace(in.run("get", "nodes", "-o=name")))
		require.Equal(t, 2, strings.Count(k.run("get", "nodes", "-o=name"), "node/"))
		_, err = Up(ctx, other)
		require.ErrorContains(t, err, "is up")
		online, err := second.Node("n1").Exec(ctx, "cat", "/sys/devices/system/node/online")
		require.NoError(t, err)
		require.Equal(t, "0-1\n", string(online))
	})
	require.NoError(t, c.Down())
	require.NoDirExists(t, c.folder.Path)
	hierarchies, err := namespace.HostHierarchies()
	require.NoError(t, err)
	require.Empty(t, namespace.FindGroups(hierarchies, "gpuready-test-"))
}

type kubectl struct {
	t            *testing.T
	path, config string
}

func (k kubectl) run(args ...string) string {
	k.t.Helper()
	return k.runWithInput("", args...)
}

func (k kubectl) apply(manifest string) {
	k.t.Helper()
	k.runWithInput(manifest, "apply", "-f", "-")
}

// until runs kubectl until it prints the text. A restarted kubelet knows its pods a little
// later, and nothing signals when.
func (k kubectl) until(t *testing.T, text string, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		out, err := k.command(args...).CombinedOutput()
		return err == nil && strings.Contains(string(out), text)
	}, time.Minute, 200*time.Millisecond, "kubectl %s never printed %q", strings.Join(args, " "), text)
}

func (k kubectl) command(args ...string) *exec.Cmd {
	return exec.Command(k.path, append([]string{"--kubeconfig=" + k.config}, args...)...)
}

func (k kubectl) runWithInput(stdin string, args ...string) string {
	k.t.Helper()
	cmd := k.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(k.t, err, "kubectl %s\n%s", strings.Join(args, " "), out)
	return string(out)
}

func pod(name, node string, args ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - {name: seer, image: "gpuready.test/seer:1", args: ["%s"]}
`, name, node, strings.Join(args, `", "`))
}

// buildSeer builds the image of the pods.
func buildSeer(t *testing.T) string {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "seer")
	require.NoError(t, os.WriteFile(source, []byte(seer), 0o644))
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	archive := filepath.Join(dir, "seer.tar")
	require.NoError(t, binaries.WriteImage(archive, binaries.Image{
		Name: "gpuready.test/seer:1", Files: map[string][]byte{"/seer": content}, Entrypoint: []string{"/seer"},
	}))
	return archive
}
