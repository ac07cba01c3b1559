package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mknod creates a character device node in a container's /dev, as a runtime does.
func mknod(t *testing.T, rootfs, name string, minor uint32) {
	t.Helper()
	require.NoError(t, os.MkdirAll(rootfs+"/dev", 0o755))
	if err := unix.Mknod(rootfs+"/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))); errors.Is(err, unix.EPERM) {
		t.Skip("making devices needs root")
	} else {
		require.NoError(t, err)
	}
}

func wantProfile(mask string) string {
	return `{"rules":[{"pattern":[],"profile":"gpuready-container"}],"profiles":[{"name":"gpuready-container","settings":["EGLVisibleDGPUDevices",` + mask + `]}]}` + "\n"
}

func TestProfileNamesTheGPUsOfTheContainer(t *testing.T) {
	for name, c := range map[string]struct {
		nodes map[string]uint32 // minor numbers
		mask  string            // "" if nothing is written
	}{
		"no GPU":                       {nodes: map[string]uint32{"nvidiactl": 255, "nvidia-uvm": 0, "nvidia-modeset": 254, "nvidia": 1, "nvidia0x": 2, "xnvidia0": 3}},
		"one":                          {nodes: map[string]uint32{"nvidia0": 0, "nvidiactl": 255}, mask: "0x1"},
		"another":                      {nodes: map[string]uint32{"nvidia5": 5}, mask: "0x20"},
		"all of a large machine":       {nodes: map[string]uint32{"nvidia0": 0, "nvidia1": 1, "nvidia7": 7, "nvidia15": 15, "nvidia63": 63}, mask: "0x8000000000008083"},
		"the number counts, no name":   {nodes: map[string]uint32{"nvidia0": 4}, mask: "0x10"},
		"numbers that fit no mask":     {nodes: map[string]uint32{"nvidia64": 64, "nvidia100": 100}},
		"one that fits and another":    {nodes: map[string]uint32{"nvidia2": 2, "nvidia64": 64}, mask: "0x4"},
		"a container without any /dev": {},
	} {
		t.Run(name, func(t *testing.T) {
			rootfs, state := bundled(t)
			for n, minor := range c.nodes {
				mknod(t, rootfs, n, minor)
			}
			if c.nodes != nil { // neither is a device
				require.NoError(t, os.WriteFile(rootfs+"/dev/nvidia8", nil, 0o666))
				require.NoError(t, os.Symlink("/dev/null", rootfs+"/dev/nvidia9"))
			}
			for range 2 { // for devices of two kinds
				_, stderr, err := call(state, "update-application-profile")
				require.NoError(t, err)
				require.Empty(t, stderr)
			}
			if c.mask == "" {
				require.NoDirExists(t, rootfs+"/etc")
				return
			}
			data, err := os.ReadFile(rootfs + profilePath)
			require.NoError(t, err)
			require.Equal(t, wantProfile(c.mask), string(data))
			info, err := os.Stat(rootfs + profilePath)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o444), info.Mode())
		})
	}
}

// Whatever an image has in the profile's place, nothing outside is changed and the container
// starts.
func TestProfileReplacesWhatAnImageHasThere(t *testing.T) {
	for name, c := range map[string]struct {
		make    func(t *testing.T, rootfs, outside string)
		message string // why it is not written
	}{
		"a file": {make: func(t *testing.T, rootfs, _ string) {
			require.NoError(t, os.WriteFile(rootfs+profilePath, []byte("x"), 0o600))
		}},
		"a link out": {make: func(t *testing.T, rootfs, outside string) {
			require.NoError(t, os.Symlink(outside+"/10-container.conf", rootfs+profilePath))
		}},
		"a folder that is a link out": {make: func(t *testing.T, rootfs, outside string) {
			require.NoError(t, os.RemoveAll(rootfs+"/etc/nvidia"))
			require.NoError(t, os.Symlink(outside, rootfs+"/etc/nvidia"))
		}},
		"a pipe": {make: func(t *testing.T, rootfs, _ string) {
			require.NoError(t, unix.Mkfifo(rootfs+profilePath, 0o600))
		}},
		"an endless file": {make: func(t *testing.T, rootfs, _ string) {
			require.NoError(t, os.WriteFile(rootfs+profilePath, nil, 0o600))
			require.NoError(t, os.Truncate(rootfs+profilePath, 1<<40))
		}},
		"a folder": {make: func(t *testing.T, rootfs, _ string) {
			require.NoError(t, os.Mkdir(rootfs+profilePath, 0o755))
		}, message: "not restricted"},
		"a file for a folder": {make: func(t *testing.T, rootfs, _ string) {
			require.NoError(t, os.RemoveAll(rootfs+"/etc/nvidia"))
			require.NoError(t, os.WriteFile(rootfs+"/etc/nvidia", nil, 0o644))
		}, message: "not restricted"},
		"a volume": {make: func(t *testing.T, rootfs, outside string) {
			bind(t, outside, rootfs+"/etc/nvidia")
		}, message: "mount from the host"},
		"a read-only file system": {make: func(t *testing.T, rootfs, _ string) {
			bind(t, rootfs, rootfs)
			require.NoError(t, unix.Mount("", rootfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, message: "read-only file system"},
		"endless names in /dev": {make: func(t *testing.T, rootfs, _ string) {
			for i := range maxNodes {
				require.NoError(t, os.WriteFile(fmt.Sprintf("%s/dev/x%d", rootfs, i), nil, 0o600))
			}
		}, message: "4096 names or more"},
	} {
		t.Run(name, func(t *testing.T) {
			rootfs, state := bundled(t)
			mknod(t, rootfs, "nvidia1", 1)
			require.NoError(t, os.MkdirAll(path.Dir(rootfs+profilePath), 0o755))
			outside := t.TempDir()
			for _, dir := range []string{"", "/nvidia-application-profiles-rc.d"} {
				require.NoError(t, os.MkdirAll(outside+dir, 0o755))
				require.NoError(t, os.WriteFile(outside+dir+"/10-container.conf", []byte("the host's"), 0o644))
			}
			before := snapshot(t, outside)
			c.make(t, rootfs, outside)
			_, stderr, err := call(state, "update-application-profile")
			require.NoError(t, err)
			require.Equal(t, before, snapshot(t, outside))
			if c.message != "" {
				require.Contains(t, stderr, c.message)
				return
			}
			require.Empty(t, stderr)
			if name == "a folder that is a link out" {
				rootfs += outside // the same path, below the container's root
				require.FileExists(t, rootfs+"/nvidia-application-profiles-rc.d/10-container.conf")
				return
			}
			info, err := os.Lstat(rootfs + profilePath)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o444), info.Mode())
			data, err := os.ReadFile(rootfs + profilePath)
			require.NoError(t, err)
			require.Equal(t, wantProfile("0x2"), string(data))
		})
	}
}
