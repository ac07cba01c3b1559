package probe

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

const release = "5.15.0-91-generic"

// tree is a host's root: files by path, "->x" for a link to x, "ELF" for a library.
type tree map[string]string

// library returns an ELF header that the loader of this machine accepts.
func library() []byte {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(head[18:], map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH])
	return head
}

func (f tree) build(t *testing.T) *host.Root {
	t.Helper()
	dir := t.TempDir()
	for name, content := range f {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case content == "ELF":
			require.NoError(t, os.WriteFile(path, library(), 0o755))
		case len(content) > 2 && content[:2] == "->":
			require.NoError(t, os.Symlink(content[2:], path))
		default:
			require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

// merge puts trees together; a later one's "" takes a file away.
func merge(trees ...tree) tree {
	all := tree{}
	for _, f := range trees {
		for name, content := range f {
			if all[name] = content; content == "" {
				delete(all, name)
			}
		}
	}
	return all
}

func libs(root, version string) tree {
	dir := filepath.Join(root, "usr/lib64")
	return tree{filepath.Join(dir, "libnvidia-ml.so.1"): "->libnvidia-ml.so." + version, filepath.Join(dir, "libnvidia-ml.so."+version): "ELF"}
}

func TestWhetherTheHostHasADriver(t *testing.T) {
	bare := tree{"proc/modules": "overlay 151552 1 - Live 0x0\nnvidia_wmi_ec_backlight 16384 0 - Live 0x0\n", "proc/sys/kernel/osrelease": release + "\n"}
	loaded := func(version string) tree {
		return merge(bare, tree{"proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 56000000 2 nvidia_uvm, Live 0x0 (POE)\n", "sys/module/nvidia/version": version + "\n"})
	}
	module := tree{"usr/lib/modules/" + release + "/modules.dep": "kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko\nupdates/dkms/nvidia.ko.zst: kernel/drivers/i2c/i2c.ko\n", "lib": "->usr/lib"}
	own, contained := libs("", "580.95.05"), libs("run/nvidia/driver", "570.10")
	for _, c := range []struct {
		name string
		host tree
		line string // "HostDriver: …", else what the reason has
	}{
		{"nothing", bare, "there is no libnvidia-ml on it, and no kernel module nvidia is loaded"},
		{"a kernel without modules", tree{"proc/version": "Linux"}, "no kernel module nvidia is loaded"},
		{"a driver that works", merge(loaded("580.95.05"), own, module), "HostDriver: 580.95.05 at /"},
		{"one whose modules are elsewhere", merge(loaded("580.95.05"), own), "HostDriver: 580.95.05 at /"},
		{"one that GKE installed", merge(loaded("535.1.2"), libs("home/kubernetes/bin/nvidia", "535.1.2")), "HostDriver: 535.1.2 at /home/kubernetes/bin/nvidia"},
		{"one that the module does not name", merge(loaded("580.95.05"), tree{"sys/module/nvidia/version": ""}, own), "HostDriver: 580.95.05 at /"},
		{"one that names itself nowhere", merge(loaded(""), tree{"usr/lib64/libnvidia-ml.so.1": "ELF"}), "HostDriver: unknown at /"},
		{"installed, and the node boots", merge(bare, own, module), "HostDriver: 580.95.05 at /"},
		{"half an upgrade", merge(loaded("570.10"), own, module), "HostDriver: 570.10 at /"},
		{"for another kernel", merge(bare, own, tree{"lib/modules/6.1.0/modules.dep": "updates/nvidia.ko:\n"}), "libraries of version 580.95.05 below /, and no kernel module nvidia for kernel " + release},
		{"libraries alone", merge(bare, own), "no kernel module nvidia for kernel"},
		{"a file that is no library", merge(bare, module, tree{"usr/lib64/libnvidia-ml.so.1": "empty"}), "there is no libnvidia-ml on it"},
		{"a module alone", merge(bare, module), "there is no libnvidia-ml on it"},
		{"a driver container runs", merge(loaded("570.10"), contained), "version 570.10, is loaded and no library of it is on the host: a driver container loaded it"},
		{"a driver container ran", loaded("570.10"), "a driver container loaded it"},
		{"a driver container runs, and libraries are left on the host", merge(loaded("570.10"), contained, own), "that of the driver container that shows its root at /run/nvidia/driver"},
		{"of the same version", merge(loaded("570.10"), contained, libs("", "570.10"), module), "that of the driver container"},
		{"a driver container ran, and libraries are left on the host", merge(loaded("570.10"), own), "no kernel module nvidia for kernel"},
		{"a driver container that never got its own loaded", merge(loaded("580.95.05"), contained, own, module), "HostDriver: 580.95.05 at /"},
		{"a simulated driver", merge(bare, contained), "there is no libnvidia-ml on it"},
		{"the host links to the container", merge(loaded("570.10"), contained, tree{"usr/lib64": "->../run/nvidia/driver/usr/lib64"}), "a driver container loaded it"},
		{"the host shows its own root as a container's", merge(loaded("580.95.05"), own, tree{"run/nvidia/driver": "->../.."}), "HostDriver: 580.95.05 at /"},
		{"another's module of a like name", merge(bare, own, tree{"lib/modules/" + release + "/modules.dep": "kernel/nvidia-wmi.ko:\nkernel/xnvidia.ko: updates/nvidia.ko\n"}), "no kernel module nvidia for kernel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := c.host.build(t)
			found, err := InspectHost(root, root)
			require.NoError(t, err)
			require.Contains(t, found.String(), c.line)
			require.Equal(t, c.line[:4] == "Host", found.Exists(), found.String())
		})
	}
}

func TestUnreadableFilesAreErrors(t *testing.T) {
	root := tree{"etc/hostname": "n1"}.build(t)
	_, err := InspectHost(root, root)
	require.ErrorContains(t, err, "cannot read the loaded kernel modules")
	require.ErrorContains(t, err, "--host-root")
	root = merge(tree{"proc/modules": "x 1 0 - Live 0x0\n"}, libs("", "580.95.05")).build(t)
	_, err = InspectHost(root, root)
	require.ErrorContains(t, err, "cannot read the version of the running kernel")
}
