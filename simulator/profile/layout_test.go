package profile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/simulator/state"
)

func gpu(t require.TestingT, name string) *state.GPU {
	p, err := Get(name)
	require.NoError(t, err)
	s, err := p.State(Options{})
	require.NoError(t, err)
	return &s.Gpu[0]
}

func setLayout(t require.TestingT, g *state.GPU, layout string) error {
	instances, err := ParseLayout(layout)
	require.NoError(t, err)
	return EnableMIG(g, instances)
}

func TestPossibleLayoutsArePlacedAsTheDriverWould(t *testing.T) {
	for _, c := range []struct{ profile, layout, want string }{
		{"h100-sxm", "1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb",
			"1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,1g.10gb@4,1g.10gb@5,1g.10gb@6"},
		{"h100-sxm", "7g.80gb", "7g.80gb@0"},
		{"a100-80gb", "3g.40gb,2g.20gb,2g.20gb", "3g.40gb@4,2g.20gb@0,2g.20gb@2"},
		{"a100-80gb", "2g.20gb,3g.40gb", "3g.40gb@4,2g.20gb@0"},
		{"a100-80gb", "4g.40gb,3g.40gb", "4g.40gb@0,3g.40gb@4"},
		{"a100-80gb", "1g.20gb,1g.20gb,1g.20gb,1g.20gb", "1g.20gb@0,1g.20gb@2,1g.20gb@4,1g.20gb@6"},
		{"h200-sxm", "1g.18gb+me,1g.18gb@6", "1g.18gb+me@0,1g.18gb@6"},
		{"b200", "3g.90gb:1c+2c", "3g.90gb@0:1c+2c"},
		{"rtx-pro-6000", "1g.24gb+me.all,1g.24gb-me,2g.48gb-me", "2g.48gb-me@6,1g.24gb+me.all@0,1g.24gb-me@3"},
		{"rtx-pro-6000", "2g.48gb+gfx,1g.24gb+gfx,1g.24gb", "2g.48gb+gfx@0,1g.24gb+gfx@6,1g.24gb@9"},
	} {
		t.Run(c.profile+" "+c.layout, func(t *testing.T) {
			g := gpu(t, c.profile)
			require.NoError(t, setLayout(t, g, c.layout))
			require.Equal(t, c.want, layoutText(Layout(g)))
			require.EqualValues(t, 1, g.MigCurrent)
			require.EqualValues(t, 1, g.MigPending)
		})
	}
}

func TestImpossibleLayoutsAreRefusedWithTheReasonAndChangeNothing(t *testing.T) {
	for _, c := range []struct{ profile, layout, want string }{
		{"h100-sxm", "1g.5gb", "has no profile 1g.5gb; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"},
		{"h100-sxm", "4g.40gb,4g.40gb", "4g.40gb fits at most 1 times"},
		{"h100-sxm", "3g.40gb,3g.40gb,2g.20gb", "needs 8 compute slices; the GPU has 7"},
		{"h100-sxm", "3g.40gb,3g.40gb,1g.10gb", "does not fit into 8 memory slices: 1g.10gb takes 1 from slice 0, 1, 2, 3, 4, 5, 6; 3g.40gb takes 4 from slice 0, 4"},
		{"h100-sxm", "2g.20gb@1", "2g.20gb cannot start at memory slice 1, only at 0, 2, 4"},
		{"h100-sxm", "3g.40gb@4,1g.10gb@5", "does not fit"},
		{"h100-sxm", "3g.40gb:2c+2c", "3g.40gb:2c+2c: 3g.40gb has 3 compute slices"},
		{"h100-sxm", "7g.80gb:5c", "7g.80gb has 7 compute slices"},
		{"rtx-pro-6000", "1g.24gb@3,1g.24gb@6,2g.48gb", "does not fit into 12 memory slices"},
		{"rtx-pro-6000", "1g.24gb+me.all,2g.48gb", "needs 6 decoders; the GPU has 4"},
		{"vgpu", "1g.6gb", "SIMULATED NVIDIA RTXA6000-24Q has no profile 1g.6gb"},
		{"t4", "1g.10gb", "SIMULATED Tesla T4 cannot do MIG"},
	} {
		t.Run(c.profile+" "+c.layout, func(t *testing.T) {
			g := gpu(t, c.profile)
			before := *g
			require.ErrorContains(t, setLayout(t, g, c.layout), c.want)
			require.True(t, before == *g)
		})
	}
}

func TestMIGDevicesAreNamedAndNumberedByInstance(t *testing.T) {
	g := gpu(t, "a100-80gb")
	require.NoError(t, setLayout(t, g, "1g.10gb+me,3g.40gb:1c+2c,2g.20gb"))
	type device struct {
		name         string
		gi, ci, mode uint32
	}
	var got []device
	for i, ci := range g.Ci {
		if ci.Used != 0 {
			require.EqualValues(t, i, ci.Index)
			require.Regexp(t, `^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, state.Text(ci.Uuid[:]))
			got = append(got, device{state.Text(ci.Name[:]), ci.Gi, ci.Id, ci.Profile})
		}
	}
	require.Equal(t, []device{{"1c.3g.40gb", 2, 0, 0}, {"2c.3g.40gb", 2, 1, 1}, {"2g.20gb", 4, 0, 1}, {"1g.10gb+me", 7, 0, 0}}, got)
	DisableMIG(g)
	require.Empty(t, Layout(g))
	require.Zero(t, g.MigCurrent)
}

func TestParseLayoutRefusesInvalidLayouts(t *testing.T) {
	for _, text := range []string{"", ",", "1g", "1g.10gb,", "1g.10gb@", "1g.10gb:c", "1g.10gb;2g.20gb", "gpu"} {
		_, err := ParseLayout(text)
		require.ErrorContains(t, err, "is not PROFILE", "%q", text)
	}
}

// TestAnySequenceOfLayoutsKeepsInstancesApart sets random layouts one after the
// other, possible or not, and looks at what is there after each.
func TestAnySequenceOfLayoutsKeepsInstancesApart(t *testing.T) {
	models := []*state.GPU{gpu(t, "a100-80gb"), gpu(t, "h100-sxm"), gpu(t, "h200-sxm"), gpu(t, "b200"), gpu(t, "rtx-pro-6000")}
	rapid.Check(t, func(t *rapid.T) {
		g := new(state.GPU)
		*g = *rapid.SampledFrom(models).Draw(t, "model")
		var names []string
		for _, p := range g.GiProfile[:g.NGiProfiles] {
			names = append(names, state.Text(p.Name[:]))
		}
		for range rapid.IntRange(1, 5).Draw(t, "layouts") {
			before := *g
			var layout []Instance
			for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 8).Draw(t, "layout") {
				layout = append(layout, Instance{Profile: name, Start: -1})
			}
			if err := EnableMIG(g, layout); err != nil {
				if before != *g {
					t.Fatalf("refused (%v), but changed", err)
				}
				continue
			}
			if len(Layout(g)) != len(layout) {
				t.Fatalf("%v became %v", layout, Layout(g))
			}
			disjoint(t, g)
		}
	})
}

func disjoint(t *rapid.T, g *state.GPU) {
	slices, owner, ids := uint32(0), map[uint32]uint32{}, map[uint32]bool{}
	for _, gi := range g.Gi {
		if gi.Used == 0 {
			continue
		}
		p := g.GiProfile[gi.Profile]
		slices += p.Slices
		if ids[gi.Id] || gi.Id > 14 {
			t.Fatalf("GPU instance %d is there twice, or has an ID that no device node has", gi.Id)
		}
		ids[gi.Id] = true
		for s := gi.Start; s < gi.Start+p.Size; s++ {
			if other, taken := owner[s]; taken || s >= g.MigMemorySlices {
				t.Fatalf("memory slice %d belongs to GPU instances %d and %d", s, other, gi.Id)
			}
			owner[s] = gi.Id
		}
	}
	if slices > g.MigSlices {
		t.Fatalf("%d compute slices of %d", slices, g.MigSlices)
	}
}

func FuzzParseLayout(f *testing.F) {
	f.Add("1g.10gb,2g.20gb@4,3g.40gb:1c+2c,1g.10gb+me")
	f.Add("")
	a100 := gpu(f, "a100-80gb")
	f.Fuzz(func(t *testing.T, text string) {
		layout, err := ParseLayout(text)
		if err != nil {
			return
		}
		again, err := ParseLayout(layoutText(layout))
		require.NoError(t, err)
		require.Equal(t, layout, again)
		g := *a100
		if EnableMIG(&g, layout) == nil {
			require.Len(t, Layout(&g), len(layout))
		}
	})
}
