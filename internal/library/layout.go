package library

import (
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// A layout names the folders in which a distribution or an installer puts the driver's libraries.
type layout struct {
	name    string
	folders []string // below a driver root; "*" in the last part matches as in path.Match, TRIPLET is that of the machine
	// whole: only the driver's libraries are there, and their names do not all end in the driver's version.
	whole  bool
	source string
}

// layouts are all known ones, in the order of preference: those that only one kind of machine has come first.
var layouts = []layout{
	{"WSL", []string{"/usr/lib/wsl/lib"}, true,
		"https://learn.microsoft.com/windows/ai/directml/gpu-cuda-in-wsl: the host mounts its driver's libraries there"},
	{"Tegra", []string{
		"/usr/lib/aarch64-linux-gnu/nvidia", "/usr/lib/aarch64-linux-gnu/tegra", "/usr/lib/aarch64-linux-gnu/tegra-egl", "/opt/nvidia/l4t-gpu-libs/nvgpu",
	}, true,
		"nvidia-l4t-init's /etc/nvidia-container-runtime/host-files-for-container.d: tegra up to L4T r35, nvidia from r36 on, l4t-gpu-libs from r39 on"},
	{"Fedora, RHEL, SUSE, Amazon Linux, Azure Linux", []string{"/usr/lib64"}, false,
		"https://developer.download.nvidia.com/compute/cuda/repos: nvidia-driver-libs; NVIDIA's installer on them"},
	{"Debian, Ubuntu", []string{"/usr/lib/TRIPLET"}, false,
		"https://packages.ubuntu.com: libnvidia-compute-580; Debian's libnvidia-eglcore, -glcore, -rtcore, -glvkspirv"},
	// The folders of nvidia-alternative, nvidia-tesla-alternative, nvidia-tesla-535-alternative and so on. Those of
	// /usr/lib/nvidia hold the X server's modules.
	{"Debian's alternatives", []string{
		"/usr/lib/TRIPLET/nvidia/current*", "/usr/lib/TRIPLET/nvidia/tesla*", "/usr/lib/nvidia/current*", "/usr/lib/nvidia/tesla*",
	}, false,
		"https://packages.debian.org/bookworm: libcuda1, libnvidia-tesla-cuda1, libnvidia-tesla-535-cuda1, xserver-xorg-video-nvidia"},
	// Bottlerocket up to mid-2026 has /usr/lib/nvidia/tesla, and once had a folder of each version in it.
	{"Bottlerocket", []string{"/usr/lib/nvidia/tesla/[0-9]*"}, false,
		"https://github.com/bottlerocket-os/bottlerocket-kernel-kit: kmod-6.1-nvidia.spec; #425 and #473 move the libraries to /usr/lib"},
	{"Arch, Bottlerocket, Talos from 1.13 on", []string{"/usr/lib"}, false,
		"https://archlinux.org/packages/extra/x86_64/nvidia-utils/files; https://github.com/NVIDIA/nvidia-container-toolkit/pull/1621"},
	{"Talos before 1.13", []string{"/usr/local/glibc/usr/lib"}, false,
		"https://github.com/siderolabs/extensions: nvidia-gpu/nvidia-container-toolkit"},
	{"driver roots without /usr", []string{"/lib64", "/lib/TRIPLET", "/lib/TRIPLET/nvidia/current*", "/lib"}, false,
		"https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/google-gke.html: /home/kubernetes/bin/nvidia/lib64"},
	{"NixOS", []string{"/run/opengl-driver/lib"}, false,
		"https://github.com/NixOS/nixpkgs/blob/master/nixos/modules/hardware/graphics.nix"},
	{"installers that may not write to /usr", []string{"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"}, false,
		"https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus"},
	{"prefixes of an installer", []string{
		"/opt/nvidia/current/usr/lib64", "/opt/nvidia/current/usr/lib", "/opt/nvidia/current/lib64", "/opt/nvidia/lib64", "/usr/local/lib64", "/usr/local/lib",
	}, false,
		"https://github.com/flatcar/scripts: nvidia-drivers-service; nvidia-installer --utility-prefix, --opengl-prefix"},
}

// Folders returns the folders of all layouts in the order of preference, absolute below a driver root. The last part of
// some is a pattern as in path.Match.
func Folders() []string {
	var all []string
	for _, l := range layouts {
		for _, folder := range l.folders {
			all = append(all, expandTriplet(folder))
		}
	}
	return all
}

func expandTriplet(folder string) string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return strings.ReplaceAll(folder, "TRIPLET", triplet)
}

// WatchedFiles returns patterns of the files whose change may mean that there is another driver below a driver root of
// the host: files with the given names in the folders of all layouts, new folders, and the loader's cache. It returns
// paths of the host.
func WatchedFiles(root *host.Root, driverRoot string, names ...string) []string {
	files := []string{path.Join("/", driverRoot, CachePath)}
	for _, folder := range Folders() {
		folder = path.Join("/", driverRoot, folder)
		folders := []string{folder}
		if isPattern(folder) {
			files = append(files, folder)
			folders = expand(root, folder)
		}
		for _, dir := range folders {
			for _, name := range names {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	return files
}

func isPattern(folder string) bool { return strings.Contains(path.Base(folder), "*") }

// expand returns the folders that match a pattern, sorted; a folder without a pattern is its own.
func expand(root *host.Root, folder string) []string {
	if !isPattern(folder) {
		return []string{folder}
	}
	names, err := root.NamesAtMost(path.Dir(folder), maxFolders)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	var found []string
	for _, name := range names {
		if ok, _ := path.Match(path.Base(folder), name); ok {
			found = append(found, path.Join(path.Dir(folder), name))
		}
	}
	return found
}
