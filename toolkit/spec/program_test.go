package spec

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

// program returns the start of an ELF file for a processor.
func program(machine uint16) string {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(head[16:], 3)
	binary.LittleEndian.PutUint16(head[18:], machine)
	return string(head)
}

var native, foreign = program(map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]), program(map[string]uint16{"amd64": 183, "arm64": 62}[runtime.GOARCH])

// find finds a driver's files below a root with the given ones, and returns the mounts by the
// paths in containers.
func find(t *testing.T, dir, driverRoot string, files map[string]string) (map[string]string, Files) {
	t.Helper()
	for name, content := range files {
		at := dir + name
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			require.NoError(t, os.Symlink(target, at))
			continue
		}
		require.NoError(t, os.WriteFile(at, []byte(content), 0o755))
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	found, err := Find(root, driverRoot, version)
	require.NoError(t, err)
	mounts := map[string]string{}
	for _, m := range found.Mounts {
		mounts[m.Container] = m.Host
	}
	return mounts, found
}

func TestProgramsRunInContainers(t *testing.T) {
	const script = "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi \"$@\"\n"
	const outside = "/usr/bin/nvidia-smi::/usr/local/nvidia/bin/nvidia-smi"
	libraries := func(dir string) string { return dir + "/libcuda.so." + version }
	for name, c := range map[string]struct {
		files map[string]string
		want  string // host path of nvidia-smi
		at    string // its path in containers
		link  string
	}{
		"of a distribution": {
			files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": native},
			want:  "/usr/bin/nvidia-smi", at: "/usr/bin/nvidia-smi",
		},
		"in the first folder of the PATH": {
			files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": native, "/usr/local/bin/nvidia-smi": native},
			want:  "/usr/local/bin/nvidia-smi", at: "/usr/local/bin/nvidia-smi",
		},
		"a script for a program beside the libraries": {
			files: map[string]string{libraries("/usr/local/nvidia/lib64"): "x", "/usr/bin/nvidia-smi": script, "/usr/local/nvidia/bin/nvidia-smi": native},
			want:  "/usr/local/nvidia/bin/nvidia-smi", at: "/usr/bin/nvidia-smi", link: outside,
		},
		"a script for a program of an installer, with libraries elsewhere": {
			files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": script, "/usr/local/nvidia/bin/nvidia-smi": native},
			want:  "/usr/local/nvidia/bin/nvidia-smi", at: "/usr/bin/nvidia-smi", link: outside,
		},
		"beside the libraries rather than an older driver's": {
			files: map[string]string{libraries("/usr/local/nvidia/lib64"): "x", "/usr/bin/nvidia-smi": native, "/usr/local/nvidia/bin/nvidia-smi": native},
			want:  "/usr/local/nvidia/bin/nvidia-smi", at: "/usr/bin/nvidia-smi", link: outside,
		},
		"a script for a program in the PATH": {
			files: map[string]string{libraries("/usr/lib64"): "x", "/usr/local/bin/nvidia-smi": script, "/usr/bin/nvidia-smi": native},
			want:  "/usr/bin/nvidia-smi", at: "/usr/bin/nvidia-smi",
		},
		"by a link of the alternatives": {
			files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": "-> /etc/alternatives/nvidia-smi", "/etc/alternatives/nvidia-smi": "-> /usr/lib/nvidia/nvidia-smi", "/usr/lib/nvidia/nvidia-smi": native},
			want:  "/usr/lib/nvidia/nvidia-smi", at: "/usr/bin/nvidia-smi",
		},
		"only a script":                {files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": script}},
		"a link to a script":           {files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": "-> wrapper", "/usr/bin/wrapper": script}},
		"only for another processor":   {files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": foreign}},
		"a script without a last line": {files: map[string]string{libraries("/usr/lib64"): "x", "/usr/bin/nvidia-smi": "#!"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, driverRoot := range []string{"/", "/run/nvidia/driver"} {
				dir := t.TempDir()
				files := map[string]string{}
				for p, content := range c.files {
					files[filepath.Join(driverRoot, p)] = content
				}
				mounts, found := find(t, dir, driverRoot, files)
				if c.want == "" {
					for at := range mounts {
						require.NotContains(t, at, "nvidia-smi")
					}
					continue
				}
				require.Equal(t, filepath.Join(driverRoot, c.want), mounts[c.at])
				var links []string
				for _, l := range found.Links {
					if strings.Contains(l, "nvidia-smi") {
						links = append(links, l)
					}
				}
				require.Equal(t, c.link, strings.Join(links, " "))
			}
		})
	}
}

func TestFirmwareIsFoundWhereTheKernelSearches(t *testing.T) {
	const file = "/nvidia/" + version + "/gsp_ga10x.bin"
	for name, c := range map[string]struct {
		root  string
		files map[string]string
		want  map[string]string // host paths by paths in containers
	}{
		"the distribution's, of both kinds": {root: "/", files: map[string]string{
			firmwareParameter: "\n", "/lib/firmware" + file: "x", "/lib/firmware/nvidia/" + version + "/ucodes_gb10x.bin": "x",
			"/lib/firmware/nvidia/" + version + "/other.bin": "x", "/lib/firmware/nvidia/1.2.3/gsp_ga10x.bin": "x",
		}, want: map[string]string{"/lib/firmware" + file: "/lib/firmware" + file, "/lib/firmware/nvidia/" + version + "/ucodes_gb10x.bin": "/lib/firmware/nvidia/" + version + "/ucodes_gb10x.bin"}},
		"the installer's": {root: "/", files: map[string]string{
			firmwareParameter: "/usr/local/nvidia/firmware\n", "/usr/local/nvidia/firmware" + file: "x",
		}, want: map[string]string{"/usr/local/nvidia/firmware" + file: "/usr/local/nvidia/firmware" + file}},
		"a driver's container sets the host's path": {root: "/run/nvidia/driver", files: map[string]string{
			firmwareParameter: "/run/nvidia/driver/firmware\n", "/run/nvidia/driver/firmware" + file: "x",
		}, want: map[string]string{"/lib/firmware" + file: "/run/nvidia/driver/firmware" + file}},
		"the host's path, below a driver's root": {root: "/opt/driver", files: map[string]string{
			firmwareParameter: "/usr/local/nvidia/firmware", "/opt/driver/usr/local/nvidia/firmware" + file: "x", "/usr/local/nvidia/firmware" + file: "x",
		}, want: map[string]string{"/usr/local/nvidia/firmware" + file: "/opt/driver/usr/local/nvidia/firmware" + file}},
		"a simulated driver's own /sys": {root: "/driver", files: map[string]string{
			firmwareParameter: "/a", "/driver" + firmwareParameter: "/b", "/driver/a" + file: "x", "/driver/b" + file: "x",
		}, want: map[string]string{"/b" + file: "/driver/b" + file}},
		"a path that leads nowhere": {root: "/", files: map[string]string{firmwareParameter: "/../../none"}},
		"no path":                   {root: "/", files: map[string]string{firmwareParameter: "lib\n", "/lib" + file: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.files[filepath.Join(c.root, "/usr/lib64/libcuda.so."+version)] = "x"
			mounts, _ := find(t, t.TempDir(), c.root, c.files)
			got := map[string]string{}
			for at, from := range mounts {
				if strings.HasSuffix(at, ".bin") {
					got[at] = from
				}
			}
			if c.want == nil {
				c.want = map[string]string{}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// Programs of graphics read the profile. A driver without their libraries has no use for it.
func TestOnlyDriversWithGraphicsHaveAProfile(t *testing.T) {
	for _, libraries := range [][]string{{"libcuda"}, {"libcuda", "libEGL_nvidia"}, {"libcuda", "libGLX_nvidia"}} {
		files := map[string]string{}
		for _, l := range libraries {
			files["/usr/lib64/"+l+".so."+version] = "x"
		}
		_, found := find(t, t.TempDir(), "/", files)
		b := &builder{Input: Input{Files: found, Hook: "/hook"}}
		hooks := b.compute().Hooks
		require.Len(t, hooks, 1)
		require.Equal(t, len(libraries) > 1, slices.Contains(hooks[0].Args, "update-application-profile"), libraries)
		require.NotContains(t, b.common().Hooks[0].Args, "update-application-profile", "agents see all GPUs")
	}
}
