package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
)

const devices = `Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-caps
511 nvidia-uvm
banana nvidia-x
99999 nvidia-y

Block devices:
  7 loop
252 nvidia-z
`

func TestControlNodesRequireADriver(t *testing.T) {
	drivers := parseMajors(devices)
	require.Equal(t, majors{"mem": 1, "nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-caps": 234, "nvidia-uvm": 511}, drivers)
	caps := parseCaps("config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\nbad\nworse x\n")
	require.Equal(t, "/dev/nvidia-caps/nvidia-cap2", caps.Monitor())
	require.Equal(t, map[string]bool{"/dev/nvidia-caps/nvidia-cap12": true, "/dev/nvidia-caps/nvidia-cap13": true}, caps.Instances())
	require.Empty(t, Caps(nil).Monitor())
	require.Empty(t, Caps(nil).Instances())
	require.Equal(t, []Node{
		{"/dev/nvidiactl", 195, 255}, {"/dev/nvidia-modeset", 195, 254}, {"/dev/nvidia-uvm", 511, 0}, {"/dev/nvidia-uvm-tools", 511, 1},
		{"/dev/nvidia-caps/nvidia-cap1", 234, 1}, {"/dev/nvidia-caps/nvidia-cap13", 234, 13},
	}, control(drivers, caps, []string{"config", Compute(0, 1, 0), Instance(7, 7)}))
	require.Empty(t, control(majors{"mem": 1}, caps, []string{"config"}))
	require.Equal(t, []Node{{"/dev/nvidiactl", 195, 255}, {"/dev/nvidia-modeset", 195, 254}}, control(majors{"nvidia-frontend": 195}, nil, nil))
}

func TestNodesOfGPUsRequireAKnownMinorNumber(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a", Minor: 2}, {UUID: "GPU-b", Fault: gpu.Fault{Reason: gpu.ReasonUnreadable}}, {Minor: 3}, {UUID: "GPU-c"}}
	want := []Node{{"/dev/nvidia2", 195, 2}, {"/dev/nvidia0", 195, 0}}
	require.Equal(t, want, gpus(majors{"nvidia": 195, "nvidia-uvm": 511}, devices))
	require.Equal(t, want, gpus(majors{"nvidia-frontend": 195}, devices))
	require.Empty(t, gpus(majors{"nvidia-uvm": 511}, devices))
}

func TestMakesGPUsDependsOnTheDriversParameters(t *testing.T) {
	for text, want := range map[string]bool{
		"": true,
		"ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nEnableMSI: 0\n": true,
		"ModifyDeviceFiles: 0\n": false,
		"DeviceFileMode: 432\n":  false,
		"DeviceFileGID: 44\n":    false,
	} {
		dir := t.TempDir()
		if text != "" {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/driver/nvidia"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "proc/driver/nvidia/params"), []byte(text), 0o644))
		}
		root, err := host.Open(dir)
		require.NoError(t, err)
		makes, err := makesGPUs(root, "/run/nvidia/driver")
		require.NoError(t, err)
		require.Equal(t, want, makes, text)
		require.NoError(t, root.Close())
	}
}

func TestNodesAndLinksAreCreatedOnce(t *testing.T) {
	for _, devRoot := range []string{"/", "/run/nvidia/driver"} {
		t.Run(devRoot, func(t *testing.T) {
			dir := t.TempDir()
			root, err := host.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			wanted := control(parseMajors(devices), nil, nil)
			plan := func() []apply.Change {
				existing, err := Find(root, devRoot)
				require.NoError(t, err)
				nodes := Nodes{All: union(wanted, existing), Wanted: wanted}
				changes, err := apply.Plan(root, nodes.Items(root, devRoot))
				require.NoError(t, err)
				return changes
			}
			_, err = apply.Write(root, plan())
			if errors.Is(err, fs.ErrPermission) {
				t.Skip("mknod is not permitted")
			}
			require.NoError(t, err)
			require.NoError(t, root.Mknod(devRoot+"/dev/nvidia3", 0o666, 195, 3)) // by the driver
			require.NoError(t, os.WriteFile(dir+devRoot+"/dev/nvidia4", nil, 0o644))
			_, err = apply.Write(root, plan())
			require.NoError(t, err)
			require.Empty(t, plan())
			for link, want := range map[string]string{"195:3": "nvidia3", "195:255": "nvidiactl", "511:1": "nvidia-uvm-tools"} {
				real, err := root.Resolve("/dev/char/" + link)
				require.NoError(t, err)
				if devRoot == "/" {
					require.Equal(t, "/dev/"+want, real)
				} else {
					require.Equal(t, devRoot+"/dev/"+want, real)
				}
			}
			// A link that leads to the device by another path is kept.
			require.NoError(t, os.Remove(dir+"/dev/char/195:3"))
			require.NoError(t, os.Symlink("/dev/char/../.."+path.Join(devRoot, "/dev/nvidia3"), dir+"/dev/char/195:3"))
			require.Empty(t, plan())
			// The uvm driver was reloaded and got another number.
			wanted = control(majors{"nvidia": 195, "nvidia-uvm": 510}, nil, nil)
			_, err = apply.Write(root, plan())
			require.NoError(t, err)
			all, err := Find(root, devRoot)
			require.NoError(t, err)
			require.Contains(t, all, Node{"/dev/nvidia-uvm", 510, 0})
		})
	}
}

func TestProcOfTheDriverRootIsPreferred(t *testing.T) {
	dir := t.TempDir()
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	found, err := readMajors(root, "/driver")
	require.NoError(t, err)
	require.Empty(t, found)
	for i, p := range []string{"/proc", "/driver/proc"} {
		require.NoError(t, os.MkdirAll(dir+p, 0o755))
		require.NoError(t, os.WriteFile(dir+p+"/devices", fmt.Appendf(nil, "%d nvidia-uvm\n", 500+i), 0o644))
		found, err := readMajors(root, "/driver")
		require.NoError(t, err)
		require.EqualValues(t, 500+i, found["nvidia-uvm"])
	}
	caps, err := ReadCaps(root, "/driver")
	require.NoError(t, err)
	require.Empty(t, caps)
}

func FuzzProc(f *testing.F) {
	f.Add(devices)
	f.Add("gpu0/gi1/access 12\n")
	f.Fuzz(func(t *testing.T, s string) {
		for name, n := range parseMajors(s) {
			if n > 4095 || name == "" {
				t.Fatal(name, n)
			}
		}
		for name, n := range parseCaps(s) {
			if n >= 1<<20 || name == "" {
				t.Fatal(name, n)
			}
		}
	})
}
