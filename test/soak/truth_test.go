package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/simulator/state"
)

// twoGPUs returns a truth with the GPUs a and b; b has one MIG device, m.
func twoGPUs(t *testing.T) *truth {
	t.Helper()
	s := &state.State{Ngpus: 2}
	require.NoError(t, state.SetText(s.Gpu[0].Uuid[:], "a"))
	require.NoError(t, state.SetText(s.Gpu[1].Uuid[:], "b"))
	s.Gpu[1].MigCurrent, s.Gpu[1].NGiProfiles = 1, 1
	require.NoError(t, state.SetText(s.Gpu[1].GiProfile[0].Name[:], "1g.10gb"))
	s.Gpu[1].Gi[0] = state.GI{Used: 1, Id: 7}
	s.Gpu[1].Ci[0] = state.CI{Used: 1, Gi: 7}
	require.NoError(t, state.SetText(s.Gpu[1].Ci[0].Uuid[:], "m"))
	return newTruth(s)
}

func list(name string, devices ...string) kubelettest.Resource {
	r := kubelettest.Resource{Name: name, Lists: 1, Registered: 1}
	for i := 0; i < len(devices); i += 2 {
		r.Devices = append(r.Devices, &v1beta1.Device{ID: devices[i], Health: devices[i+1]})
	}
	return r
}

const (
	mig = "nvidia.com/mig-1g.10gb"
	yes = v1beta1.Healthy
	no  = v1beta1.Unhealthy
)

func TestServedDevicesAreComparedWithTheTruth(t *testing.T) {
	gone := list(gpuResource, "a", yes)
	gone.Gone = true
	twice := shape{resource: "x", replicas: 2, without: -1}
	for name, c := range map[string]struct {
		health health
		shape  shape
		calm   bool
		served []kubelettest.Resource
		a, b   string
	}{
		"as it is":             {served: []kubelettest.Resource{list(gpuResource, "a", yes), list(mig, "m", yes)}},
		"shared":               {shape: twice, served: []kubelettest.Resource{list("x", "a::0", yes, "a::1", yes), list(mig, "m", yes)}},
		"shared less often":    {shape: twice, served: []kubelettest.Resource{list("x", "a::0", yes), list(mig, "m", yes)}, a: "a::1 of x is there and is not served"},
		"one replica left":     {shape: twice, health: sick, served: []kubelettest.Resource{list("x", "a::0", no, "a::1", yes), list(mig, "m", yes)}, a: "a::1 is served as healthy and is not"},
		"left out":             {shape: shape{what: "left out", resource: gpuResource}, served: []kubelettest.Resource{list(mig, "m", yes)}},
		"left out, and served": {shape: shape{what: "left out", resource: gpuResource}, served: []kubelettest.Resource{list(gpuResource, "a", yes), list(mig, "m", yes)}, a: "a of nvidia.com/gpu is served and is not there"},
		"nothing yet":          {a: "a of nvidia.com/gpu is there and is not served", b: "m of " + mig + " is there and is not served"},
		"nobody":               {served: []kubelettest.Resource{gone, list(mig, "m", yes)}, a: "nobody serves nvidia.com/gpu"},
		"sick, said":           {health: sick, served: []kubelettest.Resource{list(gpuResource, "a", no), list(mig, "m", yes)}},
		"sick, not said":       {health: sick, served: []kubelettest.Resource{list(gpuResource, "a", yes), list(mig, "m", yes)}, a: "a is served as healthy and is not"},
		"sound, not said":      {served: []kubelettest.Resource{list(gpuResource, "a", no), list(mig, "m", no)}, a: "a is served as unhealthy and is not", b: "m is served as unhealthy and is not"},
		"unsure":               {health: unsure, served: []kubelettest.Resource{list(gpuResource, "a", no), list(mig, "m", yes)}},
		"unsure, and it calms": {health: unsure, calm: true, served: []kubelettest.Resource{list(gpuResource, "a", no), list(mig, "m", yes)}, a: "a is served as unhealthy and is not"},
		"as it was before": {
			served: []kubelettest.Resource{list(gpuResource, "a", yes, "b", yes)},
			b:      "b of nvidia.com/gpu is served and is not there; m of " + mig + " is there and is not served",
		},
	} {
		t.Run(name, func(t *testing.T) {
			truth := twoGPUs(t)
			truth.gpuOf["b"] = truth.gpus[1] // it was whole before
			truth.gpus[0].health, truth.calm = c.health, c.calm
			if c.shape != (shape{}) {
				truth.shape = c.shape
			}
			require.Equal(t, c.a, truth.wrong(truth.gpus[0], c.served))
			require.Equal(t, c.b, truth.wrong(truth.gpus[1], c.served))
		})
	}
	require.Equal(t, []string{gpuResource + " x"}, twoGPUs(t).strangers([]kubelettest.Resource{list(gpuResource, "a", yes, "x", no)}))
}

func TestAllocationsAreChecked(t *testing.T) {
	const settle = time.Second
	now := time.Now()
	truth := twoGPUs(t)
	truth.shape = shape{resource: "x", replicas: 2, without: -1}
	refused, err := truth.allocate("p", []part{{"x", "a::0"}, {mig, "m"}}, now, settle)
	require.NoError(t, err)
	require.Empty(t, refused)
	require.False(t, truth.free(truth.gpus[0]))

	_, err = truth.allocate("q", []part{{"x", "a::1"}}, now, settle)
	require.NoError(t, err, "another replica")
	_, err = truth.allocate("q", []part{{mig, "m"}}, now, settle)
	require.ErrorContains(t, err, "m was given to pod q while pod p has it")
	_, err = truth.allocate("q", []part{{gpuResource, "x"}}, now, settle)
	require.ErrorContains(t, err, "which no GPU ever was")

	truth.release([]part{{"x", "a::0"}, {"x", "a::1"}, {mig, "m"}})
	truth.shape = plain
	require.True(t, truth.free(truth.gpus[0]))
	truth.gpus[0].health, truth.gpus[0].changed = sick, now.Add(-settle/2)
	_, err = truth.allocate("q", []part{{gpuResource, "a"}}, now, settle)
	require.NoError(t, err, "a list may lag behind for a moment")
	truth.release([]part{{gpuResource, "a"}})
	truth.gpus[0].changed = now.Add(-2 * settle)
	_, err = truth.allocate("q", []part{{gpuResource, "a"}}, now, settle)
	require.ErrorContains(t, err, "which is broken since")

	b := truth.gpus[1]
	b.parts, b.changed = []part{{gpuResource, "b"}}, now
	refused, err = truth.allocate("r", []part{{mig, "m"}}, now, settle)
	require.NoError(t, err)
	require.Equal(t, []part{{mig, "m"}}, refused, "its driver says that it is not there")
	require.True(t, truth.free(b))
	b.changed = now.Add(-2 * settle)
	_, err = truth.allocate("r", []part{{mig, "m"}}, now, settle)
	require.ErrorContains(t, err, "which is gone since")
}

func TestACheckFailsWhenSomethingIsWrongForTooLong(t *testing.T) {
	truth := twoGPUs(t)
	served := []kubelettest.Resource{list(gpuResource, "a", no), list(mig, "m", yes)}
	c := newCheck(truth, func() []kubelettest.Resource { return served }, time.Second)
	now := time.Now()
	require.NoError(t, c.once(now))
	require.True(t, c.wrong())
	require.NoError(t, c.once(now.Add(900*time.Millisecond)))
	truth.gpus[0].changed = now.Add(900 * time.Millisecond) // something else happens to it
	require.NoError(t, c.once(now.Add(1800*time.Millisecond)))
	require.ErrorContains(t, c.once(now.Add(2*time.Second)), "for 1s already: a is served as unhealthy and is not")

	served[0] = list(gpuResource, "a", yes)
	require.NoError(t, c.once(now.Add(3*time.Second)))
	require.False(t, c.wrong())
	require.Equal(t, 2100*time.Millisecond, c.most())
	served[0].Registered = 2
	require.ErrorContains(t, c.once(now), "nvidia.com/gpu was registered 2 times with one kubelet")
}

func TestGrowthIsReportedByKind(t *testing.T) {
	before := footprint{files: map[string]int{"socket": 3, "anon_inode:inotify": 1}, goroutines: 10}
	require.Empty(t, before.growthSince(before))
	after := footprint{files: map[string]int{"socket": 5, "anon_inode:inotify": 1}, goroutines: 12}
	require.Equal(t, "2 × socket, 2 goroutines", after.growthSince(before))
}
