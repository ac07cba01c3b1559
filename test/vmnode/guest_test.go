package vmnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/namespace"
	"github.com/gpuready/gpuready/test/lab/vm"
)

const (
	memory = 4096 // MiB
	disk   = 8192 // MiB, of which it takes what is written
	cpus   = 2

	// reserved is the memory of the device on the PCI bus of simulator/pci.
	reserved = "memmap=128M$0x60000000"
)

// needed are the kernel modules that a node needs: for containers' root file systems, the pods'
// network, the machine's network card, and the driver.
var needed = []string{"overlay", "veth", "bridge", "br_netfilter", "virtio_net", "ecc"}

// guest is a virtual machine that is a node.
type guest struct {
	*vm.Machine
	*cluster.Guest
}

// boot boots a machine with a node's files on its disk, including the archives of images.
func boot(t *testing.T, k *vm.Kernel, g *cluster.Guest, archives map[string]string) *guest {
	t.Helper()
	files := vm.Files{
		"/etc/hostname":                 {Data: []byte(g.Name + "\n")},
		"/etc/hosts":                    {Data: fmt.Appendf(nil, "127.0.0.1 localhost\n%s %s\n", g.IP, g.Name)},
		"/etc/resolv.conf":              {Data: []byte("# There is no DNS.\n")},
		"/etc/kubernetes/manifests":     {Mode: os.ModeDir | 0o755},
		"/var/lib/kubelet":              {Mode: os.ModeDir | 0o750},
		"/var/log":                      {Mode: os.ModeDir | 0o755},
		"/usr/lib/gpusim/gpusim-pci.ko": {Data: pciModule(t, k)},
	}
	for at, text := range g.Files {
		files[at] = vm.File{Data: []byte(text), Mode: 0o600}
	}
	for at, outside := range g.Binaries {
		files[at] = vm.Program(outside)
	}
	for name, archive := range archives {
		files["/images/"+name] = vm.File{Source: archive}
	}
	return &guest{vm.Boot(t, vm.Config{
		Kernel: k, Memory: memory, CPUs: cpus, Disk: disk, Network: g.Network, Args: []string{reserved},
		Files: vm.Merge(files, k.ModuleTree(t, needed, nil)),
	}), g}
}

// setUp does the work of a node's operating system: modules, network, and the GPU on the PCI bus.
func (g *guest) setUp(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	g.MustRun(ctx, "modprobe", "-a", "overlay", "veth", "bridge", "br_netfilter", "virtio_net")
	g.MustRun(ctx, "sh", "-ec", fmt.Sprintf(`
		hostname %s
		ip link set lo up
		ip address add %s/16 dev eth0
		ip link set eth0 up
		ip route add default via %s
		echo 1 >/proc/sys/net/ipv4/ip_forward`, g.Name, g.IP, g.Gateway))
	require.NoError(t, g.LoadModule(ctx, "/usr/lib/gpusim/gpusim-pci.ko", "device_id="+deviceID))
	require.Contains(t, g.MustRun(ctx, "cat", "/sys/bus/pci/devices/"+address.Address()+"/vendor"), "0x10de")
}

// start starts a program of the node, whose output goes to a file of the node.
func (g *guest) start(t *testing.T, program []string) {
	t.Helper()
	line := fmt.Sprintf("exec %s >>%s 2>&1", strings.Join(program, " "), logFile(program[0]))
	g.Start(t.Context(), vm.Command{
		Args: []string{"sh", "-c", line},
		Env:  []string{"PATH=" + namespace.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
}

func logFile(program string) string { return "/var/log/" + filepath.Base(program) + ".log" }

// logOutput logs the last lines of the node's programs if the test has failed.
func (g *guest) logOutput(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, program := range g.Programs {
		t.Logf("%s:\n%s", program[0], g.Run(ctx, "tail", "-n", "60", logFile(program[0])))
	}
	t.Log(g.Run(ctx, "sh", "-c", "dmesg | tail -n 30; free; df; cat /proc/modules | head -n 40"))
}

// ctr runs ctr, a client of containerd.
func (g *guest) ctr(ctx context.Context, args ...string) vm.Result {
	return g.RunCommand(ctx, vm.Command{Args: append([]string{namespace.Bin + "/ctr", "--namespace=k8s.io"}, args...), Timeout: patience})
}

// waitContainerd waits until containerd responds.
func (g *guest) waitContainerd(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		r := g.ctr(ctx, "version")
		if r.Code == 0 {
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("containerd does not answer after %v: %v", patience, r)
		}
	}
}

// importImages imports the archives on the disk into containerd.
func (g *guest) importImages(t *testing.T, archives map[string]string) {
	t.Helper()
	for name := range archives {
		r := g.ctr(t.Context(), "images", "import", "/images/"+name)
		require.Zero(t, r.Code, "import %s: %v", name, r)
	}
}
