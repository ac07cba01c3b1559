package prefer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// parts splits each GPU into several devices.
func parts(s gpu.Snapshot, replicas int) []prefer.Device {
	var devices []prefer.Device
	for _, d := range s.Devices {
		for r := range replicas {
			devices = append(devices, prefer.Device{ID: fmt.Sprintf("%s::%d", d.UUID, r), GPU: d.UUID})
		}
	}
	return devices
}

func names(devices []prefer.Device) []string {
	var out []string
	for _, d := range devices {
		out = append(out, d.ID)
	}
	return out
}

// free returns the available devices when that many replicas of each GPU are used.
func free(replicas int, taken ...int) []string {
	var out []string
	for i, n := range taken {
		for r := n; r < replicas; r++ {
			out = append(out, fmt.Sprintf("%s::%d", gputest.GPU(i), r))
		}
	}
	return out
}

// of returns how many of the devices belong to each of n GPUs.
func of(n int, chosen []string) []int {
	counts := make([]int, n)
	for _, id := range chosen {
		for i := range n {
			if strings.HasPrefix(id, string(gputest.GPU(i))) {
				counts[i]++
			}
		}
	}
	return counts
}

func TestSharedGPUsFollowThePolicy(t *testing.T) {
	s := gputest.Node("l40s", 4) // pairs 0-1 and 2-3
	one := func(g, r int) []string { return []string{fmt.Sprintf("%s::%d", gputest.GPU(g), r)} }
	for name, c := range map[string]struct {
		policy  prefer.Policy
		taken   []int
		include []string
		size    int
		want    []int
	}{
		"aligned: different GPUs that are near":       {policy: prefer.Aligned, taken: []int{3, 0, 1, 2}, size: 2, want: []int{0, 0, 1, 1}},
		"aligned: the least taken of equals":          {policy: prefer.Aligned, taken: []int{1, 1, 1, 0}, size: 1, want: []int{0, 0, 0, 1}},
		"aligned: a second share when all have one":   {policy: prefer.Aligned, taken: []int{0, 0, 0, 0}, size: 6, want: []int{2, 2, 1, 1}},
		"aligned: with the one that is given":         {policy: prefer.Aligned, taken: []int{0, 0, 0, 2}, include: one(3, 3), size: 2, want: []int{0, 0, 1, 1}},
		"aligned: one GPU is all there is":            {policy: prefer.Aligned, taken: []int{4, 4, 1, 4}, size: 3, want: []int{0, 0, 3, 0}},
		"packed: fills up":                            {policy: prefer.Packed, taken: []int{0, 1, 3, 2}, size: 2, want: []int{0, 0, 1, 1}},
		"packed: stays where it began":                {policy: prefer.Packed, taken: []int{0, 0, 0, 0}, size: 3, want: []int{3, 0, 0, 0}},
		"packed: what is given counts":                {policy: prefer.Packed, taken: []int{0, 0, 0, 0}, include: one(2, 0), size: 3, want: []int{0, 0, 3, 0}},
		"distributed: evenly":                         {policy: prefer.Distributed, taken: []int{0, 0, 0, 0}, size: 6, want: []int{2, 2, 1, 1}},
		"distributed: the least taken, even the same": {policy: prefer.Distributed, taken: []int{3, 3, 0, 3}, size: 3, want: []int{0, 0, 3, 0}},
		"spread: different ones, though more taken":   {policy: prefer.Spread, taken: []int{3, 3, 0, 3}, size: 3, want: []int{1, 0, 1, 1}},
		"spread: not the one that is given":           {policy: prefer.Spread, taken: []int{0, 2, 2, 2}, include: one(0, 0), size: 2, want: []int{1, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := prefer.New(prefer.NewTopology(s), parts(s, 4), prefer.Options{Policy: c.policy}).
				Prefer(free(4, c.taken...), c.include, c.size)
			require.NoError(t, err)
			require.Equal(t, c.want, of(4, got))
		})
	}
}

// The reference's choice among shared GPUs (greedyAlloc in its
// internal/rm/allocate.go): the same number of each GPU, up to GPUs that are
// equal for its policy.
func TestSharesAreAsEvenAsTheReferences(t *testing.T) {
	for _, policy := range []prefer.Policy{prefer.Distributed, prefer.Packed, prefer.Spread} {
		rapid.Check(t, func(t *rapid.T) {
			const replicas = 5
			s := gputest.Node("l40s", 4)
			taken := rapid.SliceOfN(rapid.IntRange(0, replicas), 4, 4).Draw(t, "taken")
			available := free(replicas, taken...)
			size := rapid.IntRange(0, len(available)).Draw(t, "size")
			got, err := prefer.New(prefer.NewTopology(s), parts(s, replicas), prefer.Options{Policy: policy}).Prefer(available, nil, size)
			require.NoError(t, err)
			choosePreferred := of(4, got)

			theirs := make([]int, 4)
			for range size {
				key := func(g int) [2]int {
					t, p := taken[g]+theirs[g], theirs[g]
					return map[prefer.Policy][2]int{prefer.Distributed: {t, p}, prefer.Packed: {-t, p}, prefer.Spread: {p, t}}[policy]
				}
				next := -1
				for g := range 4 {
					k := key(g)
					if taken[g]+theirs[g] == replicas {
						continue
					}
					if next >= 0 {
						if n := key(next); slices.Compare(k[:], n[:]) >= 0 {
							continue
						}
					}
					next = g
				}
				theirs[next]++
			}
			level := func(picks []int) []string {
				var out []string
				for g, n := range picks {
					out = append(out, fmt.Sprintf("%d+%d", taken[g], n))
				}
				slices.Sort(out)
				return out
			}
			require.Equal(t, level(theirs), level(choosePreferred))
		})
	}
}

func TestStrictNeverChoosesAGPUTwice(t *testing.T) {
	s := gputest.Node("l40s", 4)
	for _, policy := range []prefer.Policy{prefer.Aligned, prefer.Packed, prefer.Distributed, prefer.Spread} {
		c := prefer.New(prefer.NewTopology(s), parts(s, 4), prefer.Options{Policy: policy, Strict: true})
		got, err := c.Prefer(free(4, 3, 0, 4, 2), nil, 3)
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 0, 1}, of(4, got))

		_, err = c.Prefer(free(4, 3, 0, 4, 2), nil, 4)
		require.EqualError(t, err, "4 devices of different GPUs were requested, but only 3 GPUs have one available")
		_, err = c.Prefer(free(4, 3, 0, 4, 2), free(4, 4, 2), 3)
		require.EqualError(t, err, "2 of the devices to include are parts of "+string(gputest.GPU(1))+", and a container gets only one of each GPU")
	}
}

// Strict applies to unhealthy devices too, and to those of a lost GPU.
func TestStrictAppliesToUnhealthyDevices(t *testing.T) {
	s := gputest.Node("l40s", 4)
	devices := parts(s, 2)
	for i := range devices {
		devices[i].LastResort = devices[i].GPU == gputest.GPU(1)
	}
	s.Devices = s.Devices[1:]
	c := prefer.New(prefer.NewTopology(s), devices, prefer.Options{Strict: true})
	got, err := c.Prefer(append(free(2, 0, 0, 0, 0), "stranger"), nil, 5)
	require.NoError(t, err)
	require.Equal(t, []int{1, 1, 1, 1}, of(4, got))
	require.Contains(t, got, "stranger")
	_, err = c.Prefer(free(2, 0, 0, 0, 0), nil, 5)
	require.ErrorContains(t, err, "only 4 GPUs have one available")
}

// MIG devices of a GPU have names of their own.
func TestMIGDevicesFollowTheirGPU(t *testing.T) {
	s := gputest.Node("a100-mig", 8)
	var devices []prefer.Device
	for _, d := range s.Devices {
		for _, m := range d.MIG {
			devices = append(devices, prefer.Device{ID: string(m.UUID), GPU: d.UUID})
		}
	}
	for policy, distinct := range map[prefer.Policy]int{prefer.Aligned: 4, prefer.Packed: 1, prefer.Distributed: 4, prefer.Spread: 4} {
		got, err := prefer.New(prefer.NewTopology(s), devices, prefer.Options{Policy: policy}).Prefer(names(devices), nil, 4)
		require.NoError(t, err)
		on := map[gpu.UUID]bool{}
		for _, d := range devices {
			if slices.Contains(got, d.ID) {
				on[d.GPU] = true
			}
		}
		require.Len(t, on, distinct)
	}
}
