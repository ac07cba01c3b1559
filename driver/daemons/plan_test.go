package daemons

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/daemons/supervisor"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const fabricFile = `# Fabric Manager
LOG_LEVEL=4
LOG_FILE_NAME=/var/log/fabricmanager.log
LOG_USE_SYSLOG=0
DAEMONIZE=1
FABRIC_MODE=0
UNIX_SOCKET_PATH=
`

// hgx returns a machine with eight H100 and an image with all programs.
func hgx(change func(*Machine)) Machine {
	m := Machine{GPUs: 8, NVSwitches: 4, FabricConfig: []byte(fabricFile), Programs: map[string]string{
		persistenced: "/usr/bin/nvidia-persistenced", gridd: "/usr/bin/nvidia-gridd", topologyd: "/usr/bin/nvidia-topologyd",
		nvlsm: "/opt/nvidia/nvlsm/sbin/nvlsm", fabricManager: "/usr/bin/nv-fabricmanager", imex: "/usr/bin/nvidia-imex"}}
	if change != nil {
		change(&m)
	}
	return m
}

func blackwell(m *Machine) {
	m.NVSwitches, m.Bridges, m.PortGUID, m.UserMAD = 0, 4, "0xe09d7303003f3bf8", true
}

var machines = map[string]Machine{
	"one-gpu":        {GPUs: 1, Programs: map[string]string{persistenced: "/usr/bin/nvidia-persistenced"}},
	"no-gpu":         {Env: []string{"NVFM_CONFIG_LOG_LEVEL=3"}},
	"bare-image":     {GPUs: 2},
	"hgx-h100":       hgx(nil),
	"hgx-h100-env":   hgx(func(m *Machine) { m.Env = []string{"NVFM_CONFIG_LOG_LEVEL=3", "HOME=/", "NVFM_CONFIG_NEW_KEY=a=b"} }),
	"hgx-b200":       hgx(blackwell),
	"hgx-b200-split": hgx(func(m *Machine) { blackwell(m); m.Env = []string{"NVFM_CONFIG_FABRIC_MODE=1"} }),
	"service-vm":     hgx(func(m *Machine) { m.GPUs = 0; m.Env = []string{"NVFM_CONFIG_FABRIC_MODE=1"} }),
	"vgpu": hgx(func(m *Machine) {
		m.NVSwitches, m.GPUs, m.VGPU, m.GriddLibs = 0, 1, true, "/usr/lib64/nvidia/gridd"
		m.License = []supervisor.File{{Path: licenseTo, Data: []byte("FeatureType=1\n")}, {Path: tokensTo + "/client_configuration_token.tok", Data: []byte("SECRET")}}
	}),
	"imex": hgx(func(m *Machine) {
		m.NVSwitches, m.GPUs, m.IMEXNodes, m.IMEXConfig = 0, 4, true, []byte("LOG_FILE_NAME=/var/log/nvidia-imex.log\nSERVER_PORT=50000\n")
	}),
}

func TestPlans(t *testing.T) {
	for name, m := range machines {
		t.Run(name, func(t *testing.T) {
			plan, err := NewPlan(m)
			require.NoError(t, err)
			golden.Require(t, "testdata/"+name+".txt", plan.String())
			require.NotContains(t, plan.String(), "SECRET")
		})
	}
}

func TestImpossiblePlansNameTheNextAction(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Machine)
		is     error
		want   string
	}{
		"no fabric manager": {func(m *Machine) { delete(m.Programs, fabricManager) }, ErrMissing,
			"nv-fabricmanager is missing from the driver image: this machine has 4 NVSwitches, and CUDA does not start before it has configured them; add the package nvidia-fabricmanager of the driver's version to the image"},
		"no configuration": {func(m *Machine) { m.FabricConfig = nil }, ErrMissing,
			"/usr/share/nvidia/nvswitch/fabricmanager.cfg is missing from the driver image: nv-fabricmanager reads it; add the whole package nvidia-fabricmanager to the image"},
		"no nvlsm": {func(m *Machine) { blackwell(m); delete(m.Programs, nvlsm) }, ErrMissing,
			"nvlsm is missing from the driver image: this machine has NVSwitches of NVLink 5 behind 4 bridges, which nv-fabricmanager reaches through it; add the package nvlsm to the image"},
		"no port": {func(m *Machine) { blackwell(m); m.PortGUID = "" }, ErrNoPort,
			"no InfiniBand port leads to the NVSwitches yet: this machine has NVSwitches of NVLink 5 behind 4 bridges; load mlx5_core and mlx5_ib"},
		"no ib_umad": {func(m *Machine) { blackwell(m); m.Bridges, m.UserMAD = 1, false }, ErrNoPort,
			"no InfiniBand port leads to the NVSwitches yet: this machine has NVSwitches of NVLink 5 behind 1 bridge; load ib_umad"},
		"no gridd": {func(m *Machine) {
			m.VGPU, m.License = true, []supervisor.File{{Path: licenseTo}}
			delete(m.Programs, gridd)
		}, ErrMissing,
			"nvidia-gridd is missing from the driver image: /drivers/gridd.conf configures a licence, and a vGPU without one slows down; build the image of the vGPU guest driver"},
		"no topologyd": {func(m *Machine) {
			m.Topology, m.License = true, []supervisor.File{{Path: licenseTo}}
			delete(m.Programs, topologyd)
		}, ErrMissing,
			"nvidia-topologyd is missing from the driver image: /etc/nvidia/nvidia-topologyd.conf configures a virtual topology; build the image of the vGPU guest driver, or remove virtualTopology"},
		"no imex": {func(m *Machine) { m.IMEXNodes = true; delete(m.Programs, imex) }, ErrMissing,
			"nvidia-imex is missing from the driver image: /etc/nvidia-imex/nodes_config.cfg names the nodes of an IMEX domain; add the package nvidia-imex of the driver's version to the image"},
		"odd file": {func(m *Machine) { m.FabricConfig = []byte("A=1\n<xml>\n") }, nil,
			`/usr/share/nvidia/nvswitch/fabricmanager.cfg: line 2: "<xml>" is not KEY=value; correct it in the image`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewPlan(hgx(c.change))
			require.EqualError(t, err, c.want)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
}

func TestFilesOfAPlan(t *testing.T) {
	plan, err := NewPlan(machines["hgx-h100-env"])
	require.NoError(t, err)
	d := plan.Daemons[len(plan.Daemons)-1]
	require.Equal(t, fabricManager, d.Name)
	require.Equal(t, strings.Replace(fabricFile, "LOG_LEVEL=4", "LOG_LEVEL=3", 1)+"ABORT_CUDA_JOBS_ON_FM_EXIT=0\nNEW_KEY=a=b\n", string(d.Files[0].Data))
	require.Equal(t, "/var/log/fabricmanager.log", d.LogFile)
	require.Empty(t, d.RestartArgs)
	require.Equal(t, []Setting{{Key: "ABORT_CUDA_JOBS_ON_FM_EXIT", Value: "0", Added: true}, {Key: "LOG_LEVEL", Value: "3", From: "NVFM_CONFIG_LOG_LEVEL", Was: "4"},
		{Key: "NEW_KEY", Value: "a=b", From: "NVFM_CONFIG_NEW_KEY", Added: true}}, plan.Settings)

	// The fabric manager of NVIDIA's packages aborts all jobs when it ends, unless that is configured.
	packaged := hgx(func(m *Machine) { m.FabricConfig = []byte("ABORT_CUDA_JOBS_ON_FM_EXIT=1\nDAEMONIZE=1\n") })
	plan, err = NewPlan(packaged)
	require.NoError(t, err)
	require.Equal(t, "ABORT_CUDA_JOBS_ON_FM_EXIT=0\nDAEMONIZE=1\n", string(plan.Daemons[1].Files[0].Data))
	packaged.Env = []string{"NVFM_CONFIG_ABORT_CUDA_JOBS_ON_FM_EXIT=1"}
	plan, err = NewPlan(packaged)
	require.NoError(t, err)
	require.Equal(t, "ABORT_CUDA_JOBS_ON_FM_EXIT=1\nDAEMONIZE=1\n", string(plan.Daemons[1].Files[0].Data))

	plan, err = NewPlan(machines["imex"])
	require.NoError(t, err)
	require.Equal(t, "LOG_FILE_NAME=\nSERVER_PORT=50000\nDAEMONIZE=0\nLOG_USE_SYSLOG=0\n", string(plan.Daemons[1].Files[0].Data))

	plan, err = NewPlan(machines["hgx-b200-split"])
	require.NoError(t, err)
	require.True(t, plan.ResetGPUs)
}
