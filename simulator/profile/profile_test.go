package profile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func build(t testing.TB, name string, o Options) *state.State {
	t.Helper()
	p, err := Get(name)
	require.NoError(t, err)
	s, err := p.State(o)
	require.NoError(t, err)
	return s
}

// describe summarizes in a few lines how machines differ.
func describe(s *state.State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s driver %s CUDA %d\n", state.Text(s.Profile[:]), state.Text(s.ModuleVersion[:]), s.CudaVersion)
	for i, g := range s.GPUs() {
		fmt.Fprintf(&b, "%2d %s %s %s numa %d cpus %s mig %d\n", i, state.Text(g.Uuid[:]), g.Pci.Address(), state.Text(g.Name[:]), g.NumaNode, CPUs(g.CpuAffinity), g.NGiProfiles)
		b.WriteString("   pcie")
		for j := range s.GPUs() {
			name := LevelName(s.Topology[i][j])
			if i == j {
				name = "X"
			}
			b.WriteString(" " + name)
		}
		b.WriteString("\n   nvlink")
		for _, l := range g.Link[:g.Nlinks] {
			switch {
			case l.Active == 0:
				b.WriteString(" -")
			case l.RemoteType == state.RemoteGPU:
				fmt.Fprintf(&b, " %d.%d", l.RemoteGpu, l.RemoteLink)
			default:
				fmt.Fprintf(&b, " %s", l.Remote.Address())
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestEveryProfileBuildsTheMachineThatItDescribes(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { golden.Require(t, "testdata/"+name+".txt", describe(build(t, name, Options{}))) })
	}
	golden.Require(t, "testdata/a100-80gb-4.txt", describe(build(t, "a100-80gb", Options{GPUs: 4})))
	golden.Require(t, "testdata/a100-80gb-1.txt", describe(build(t, "a100-80gb", Options{GPUs: 1})))
}

func TestEveryNumberOfGPUsIsAWholeMachine(t *testing.T) {
	for _, name := range Names() {
		p, err := Get(name)
		require.NoError(t, err)
		for n := 1; n <= len(p.GPUs); n++ {
			s, err := p.State(Options{GPUs: n})
			require.NoError(t, err)
			require.EqualValues(t, n, s.Ngpus)
			uuids := map[string]bool{}
			nodes := map[int32]int{}
			for i, g := range s.GPUs() {
				require.Regexp(t, uuidForm, state.Text(g.Uuid[:]))
				require.False(t, uuids[state.Text(g.Uuid[:])], "the UUID is given twice")
				uuids[state.Text(g.Uuid[:])] = true
				require.True(t, strings.HasPrefix(state.Text(g.Name[:]), "SIMULATED "))
				require.Less(t, g.MemoryReserved, g.MemoryTotal)
				require.EqualValues(t, i, g.Minor)
				nodes[g.NumaNode]++
				linksAgree(t, s, i)
				for j := range s.GPUs() {
					require.Equal(t, s.Topology[i][j], s.Topology[j][i])
				}
			}
			if name != "mixed" && len(p.NUMA) > 1 {
				require.InDelta(t, nodes[0], nodes[1], 1, "%s with %d: half of the GPUs on each node", name, n)
			}
		}
		_, err = p.State(Options{GPUs: len(p.GPUs) + 1})
		require.ErrorContains(t, err, fmt.Sprintf("has 1 to %d GPUs", len(p.GPUs)))
		_, err = p.State(Options{GPUs: -1})
		require.Error(t, err)
	}
}

// linksAgree follows each link of a GPU to its far end and back.
func linksAgree(t *testing.T, s *state.State, index int) {
	t.Helper()
	for l, link := range s.Gpu[index].Link[:s.Gpu[index].Nlinks] {
		if link.Active == 0 || link.RemoteType != state.RemoteGPU {
			continue
		}
		require.NotEqualValues(t, index, link.RemoteGpu)
		back := s.Gpu[link.RemoteGpu].Link[link.RemoteLink]
		require.EqualValues(t, 1, back.Active)
		require.EqualValues(t, index, back.RemoteGpu)
		require.EqualValues(t, l, back.RemoteLink)
		require.Equal(t, s.Gpu[link.RemoteGpu].Pci, link.Remote)
	}
}

func TestUUIDsDependOnProfilePlaceAndSeedAlone(t *testing.T) {
	first, again := build(t, "h100-sxm", Options{}), build(t, "h100-sxm", Options{DriverVersion: "570.1.2"})
	fewer, seeded := build(t, "h100-sxm", Options{GPUs: 1}), build(t, "h100-sxm", Options{Seed: "node-b"})
	other := build(t, "h200-sxm", Options{})
	require.Equal(t, first.Gpu[0].Uuid, again.Gpu[0].Uuid)
	require.Equal(t, first.Gpu[0].Uuid, fewer.Gpu[0].Uuid)
	require.NotEqual(t, first.Gpu[0].Uuid, seeded.Gpu[0].Uuid)
	require.NotEqual(t, first.Gpu[0].Serial, seeded.Gpu[0].Serial)
	require.NotEqual(t, first.Gpu[0].Uuid, other.Gpu[0].Uuid)
}

// TestMIGNamesFollowFromTheMemory derives each profile's name as NVIDIA's Go
// library does from what NVML reports: in it a number that does not fit shows.
func TestMIGNamesFollowFromTheMemory(t *testing.T) {
	seen := 0
	for _, name := range Names() {
		s := build(t, name, Options{})
		for _, g := range s.GPUs() {
			for _, p := range g.GiProfile[:g.NGiProfiles] {
				total := float64(g.MemoryTotal) / (1 << 30)
				eighths := (p.MemoryMb*8<<20 + g.MemoryTotal - 1) / g.MemoryTotal
				wholeGB := float64((g.MemoryTotal + 1<<30 - 1) >> 30)
				gb := int(float64(eighths)/8*wholeGB + 0.5)
				name, _, _ := strings.Cut(strings.ReplaceAll(state.Text(p.Name[:]), "-", "+"), "+")
				require.Equal(t, fmt.Sprintf("%dg.%dgb", p.Slices, gb), name, "of %.1f GiB", total)
				require.LessOrEqual(t, p.SmCount, g.SmCount)
				seen++
			}
		}
	}
	require.Positive(t, seen)
}

const small = `
version: 1
name: small
description: for tests
gpus:
- {model: t4, pci: "0000:01:00.0"}
`

func TestDecodeErrorNamesTheField(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"unknown key":   {"name: small", "title: small", `unknown field "title"`},
		"key twice":     {"name: small", "name: small\nname: big", `"name" already set`},
		"version":       {"version: 1", "version: 2", "version: 2 is not known"},
		"name":          {"name: small", "name: a/b", `name: "a/b" must be`},
		"model":         {"model: t4", "model: t5", `gpus[0].model: no model is named "t5"`},
		"path as model": {"model: t4", "model: ../models/t4", "is not the name of a model"},
		"pci":           {"0000:01:00.0", "01:00", `gpus[0].pci: "01:00" is no PCI address`},
		"pci twice":     {"gpus:", "gpus:\n- {model: t4, pci: \"0000:01:00.0\"}", `"0000:01:00.0" is also gpus[0].pci`},
		"numa":          {`00.0"`, `00.0", numa: 0`, "gpus[0].numa: there is no node 0"},
		"cpus":          {"gpus:", "numa: [5-3]\ngpus:", `numa[0]: "5-3" in "5-3" is no range`},
		"uuid":          {`00.0"`, `00.0", uuid: GPU-1`, "gpus[0].uuid"},
		"count":         {"gpus:", "count: 3\ngpus:", "count: 3; the machine has 1"},
		"no GPU":        {"- {model: t4, pci: \"0000:01:00.0\"}", "", "gpus: 0; a machine has 1 to 16"},
		"kind":          {"gpus:", "nvlink: [{gpus: 2, kind: ring}]\ngpus:", `nvlink[0].kind: "ring"`},
		"mesh":          {"gpus:", "nvlink: [{gpus: 8, kind: mesh, perPair: 9}]\ngpus:", "nvlink[0].perPair: 9 links"},
		"rows of pairs": {"gpus:", "nvlink: [{gpus: 1, kind: mesh, pairs: []}]\ngpus:", "nvlink[0].pairs: 0 rows for 1 GPUs"},
		"pairs":         {"gpus:", "nvlink: [{gpus: 1, kind: mesh, pairs: [[1]]}]\ngpus:", "nvlink[0].pairs[0][0]: 1 links"},
		"cluster":       {"gpus:", "nvlink: [{gpus: 1, kind: none, cluster: rack}]\ngpus:", `nvlink[0].cluster: "rack" does not have the form`},
		"topology":      {"gpus:", "topology: [[X, PIX]]\ngpus:", "topology[0]: 2 columns for 1 GPUs"},
		"driver":        {"gpus:", "driver: {version: ../x}\ngpus:", `"../x" is no driver version`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(small, c.from, c.to, 1)
			require.NotEqual(t, small, text)
			_, err := Decode([]byte(text), "x.yaml")
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "x.yaml")
		})
	}
	_, err := Decode([]byte(small), "x.yaml")
	require.NoError(t, err)
	_, err = Get("h100")
	require.ErrorContains(t, err, "there are a100-80gb, a10g, b200,")
	_, err = Load("/nowhere/x.yaml")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestEncodedProfileDescribesTheSameMachine(t *testing.T) {
	for _, name := range Names() {
		p, err := Get(name)
		require.NoError(t, err)
		text, err := p.Encode()
		require.NoError(t, err)
		again, err := Decode(text, name)
		require.NoError(t, err)
		want, err := p.State(Options{})
		require.NoError(t, err)
		got, err := again.State(Options{})
		require.NoError(t, err)
		require.True(t, *want == *got, name)
	}
}

// FuzzDecode builds whatever machine the decoder lets through.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(small))
	for _, name := range Names() {
		p, err := Get(name)
		require.NoError(f, err)
		text, err := p.Encode()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Decode(text, "fuzz")
		if err != nil {
			return
		}
		s, err := p.State(Options{})
		if err == nil {
			require.NoError(t, s.Validate())
		}
	})
}

func FuzzUnits(f *testing.F) {
	f.Add("81559Mi", "0-55,112-167")
	f.Add("18446744073709551615", "255")
	f.Fuzz(func(t *testing.T, bytes, cpus string) {
		var b, again Bytes
		if b.UnmarshalJSON([]byte(bytes)) == nil {
			text, err := b.MarshalJSON()
			require.NoError(t, err)
			require.NoError(t, again.UnmarshalJSON(text))
			require.Equal(t, b, again)
		}
		if mask, err := parseCPUs(cpus); err == nil {
			same, err := parseCPUs(CPUs(mask))
			require.NoError(t, err)
			require.Equal(t, mask, same)
		}
	})
}
