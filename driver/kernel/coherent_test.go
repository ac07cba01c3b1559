package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

func TestCoherentGPUsKeepTheirMemory(t *testing.T) {
	grace, hopper := []host.PCIGPU{{Device: 0x2330}, {Device: 0x2342}}, []host.PCIGPU{{Device: 0x2330}}
	r580 := Files{"nvidia": {Info: Info{Params: map[string]string{coherentMode: "charp"}}}}
	r570 := Files{"nvidia": {Info: Info{Params: map[string]string{"NVreg_EnableMSI": "int"}}}}
	configured := Param{Name: coherentMode, Value: "numa", HasValue: true, Source: "/drivers/nvidia.conf:1"}
	for name, c := range map[string]struct {
		files Files
		gpus  []host.PCIGPU
		have  []Param
		want  string
	}{
		"GH200":                 {r580, grace, nil, "NVreg_CoherentGPUMemoryMode=driver"},
		"GB300":                 {r580, []host.PCIGPU{{Device: 0x31c2}}, nil, "NVreg_CoherentGPUMemoryMode=driver"},
		"H100":                  {r580, hopper, nil, ""},
		"An older driver":       {r570, grace, nil, ""},
		"Another configuration": {r580, grace, []Param{configured}, "NVreg_CoherentGPUMemoryMode=numa"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOptions()
			o.Params["nvidia"] = c.have
			o.SetDefaults(c.files, c.gpus)
			got := ""
			for _, p := range o.Params["nvidia"] {
				got += p.String()
			}
			require.Equal(t, c.want, got)
		})
	}
	require.True(t, generationOf(0x2345).open && !generationOf(0x2345).prior, "GH200 480GB")
}

func TestGPUMemoryThatTheNodeCountsIsNoted(t *testing.T) {
	dir := t.TempDir()
	s := System{Proc: dir + "/proc", Sys: dir + "/sys"}
	require.Empty(t, s.DescribeGPUMemory(t.Context()))
	for name, text := range map[string]string{
		"proc/driver/nvidia/gpus/0009:01:00.0/numa_status": "Node:      1\nStatus:    online\n",
		"proc/driver/nvidia/gpus/0019:01:00.0/numa_status": "Node:      9\nStatus:    offline\n",
		"sys/devices/system/node/node0/cpulist":            "0-71\n", "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       501000000 kB\n",
		"sys/devices/system/node/node1/cpulist": "\n", "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       99614720 kB\nNode 1 MemFree:        1 kB\n",
		"sys/devices/system/node/node2/cpulist": "\n", "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal:       99614720 kB\n", // CXL
		"sys/devices/system/node/node9/cpulist": "\n", "sys/devices/system/node/node9/meminfo": "Node 9 MemTotal:       0 kB\n",
	} {
		writeFile(t, dir, name, []byte(text))
	}
	require.Equal(t, "GPU memory is online as NUMA nodes, which the kubelet counts as memory of the node: node 1 (95 GiB of GPU 0009:01:00.0)"+
		"; set NVreg_CoherentGPUMemoryMode=driver (drivers from R580 on), and restart the node", s.DescribeGPUMemory(t.Context()))
}
