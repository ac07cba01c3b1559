package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/simulator/state"
)

const gpuResource = "nvidia.com/gpu"

// health is the expected health of a GPU's devices.
type health int

const (
	sound  health = iota
	sick          // must not be allocated
	unsure        // recovers after a quiet time: either health is accepted until everything has settled
)

// part identifies one device, without its replicas.
type part struct{ resource, id string }

// gpuState is one GPU's true state. truth.mu must be held to change it.
type gpuState struct {
	index   int
	uuid    string
	parts   []part // the GPU itself, or its MIG devices
	health  health
	changed time.Time // when any of that last changed
	history []string  // its last events, for a failure message
}

// historyLength limits the history of one GPU.
const historyLength = 12

// truth is the state that the plugin should serve, and the allocations.
type truth struct {
	mu    sync.Mutex
	gpus  []*gpuState
	gpuOf map[string]*gpuState // by the ID of every device that ever existed
	owner map[part]string      // pod of each device. A kubelet does not know that two resources share a GPU
	shape shape                // from the current configuration
	calm  bool                 // quiet for so long that nothing is unsure
}

func newTruth(s *state.State) *truth {
	t := &truth{gpuOf: map[string]*gpuState{}, owner: map[part]string{}, shape: plain}
	for i, g := range s.GPUs() {
		c := &gpuState{index: i, uuid: state.Text(g.Uuid[:])}
		t.gpus = append(t.gpus, c)
		t.divide(c, g)
	}
	return t
}

// divide records how a GPU is divided; t.mu must be held, except for a new truth.
func (t *truth) divide(c *gpuState, g *state.GPU) {
	c.parts = nil
	if g.MigCurrent == 0 {
		c.parts = []part{{gpuResource, c.uuid}}
	} else {
		for _, ci := range g.Ci {
			if ci.Used == 0 {
				continue
			}
			i := slices.IndexFunc(g.Gi[:], func(gi state.GI) bool { return gi.Used != 0 && gi.Id == ci.Gi })
			profile := state.Text(g.GiProfile[g.Gi[i].Profile].Name[:])
			c.parts = append(c.parts, part{"nvidia.com/mig-" + profile, state.Text(ci.Uuid[:])})
		}
	}
	for _, p := range c.parts {
		t.gpuOf[p.id] = c
	}
}

// record adds an event to a GPU's history; t.mu must be held.
func (c *gpuState) record(format string, args ...any) {
	c.changed = time.Now()
	c.history = append(c.history, c.changed.Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(c.history) > historyLength {
		c.history = c.history[1:]
	}
}

// free reports whether no pod has anything of a GPU; t.mu must be held.
func (t *truth) free(c *gpuState) bool {
	for p := range t.owner {
		if t.gpuOf[baseID(p.id)] == c {
			return false
		}
	}
	return true
}

// wrong describes how a kubelet's resources differ from the true state of a GPU, or returns "";
// t.mu must be held.
func (t *truth) wrong(c *gpuState, served []kubelettest.Resource) string {
	devices := t.devices(c)
	want := map[part]bool{}
	for _, p := range devices {
		want[p] = true
	}
	var why []string
	for _, r := range served {
		for _, d := range r.Devices {
			if t.gpuOf[baseID(d.GetID())] != c {
				continue
			}
			p := part{r.Name, d.GetID()}
			switch {
			case !slices.Contains(devices, p):
				why = append(why, fmt.Sprintf("%s of %s is served and is not there", p.id, p.resource))
				continue
			case r.Gone || r.Lists == 0:
				why = append(why, fmt.Sprintf("nobody serves %s", p.resource))
			}
			delete(want, p)
			healthy := d.GetHealth() == v1beta1.Healthy
			switch {
			case c.health == sick && healthy:
				why = append(why, p.id+" is served as healthy and is not")
			case c.health == sound && !healthy, c.health == unsure && !healthy && t.calm:
				why = append(why, p.id+" is served as unhealthy and is not")
			}
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(want), func(a, b part) int { return strings.Compare(a.id, b.id) }) {
		why = append(why, fmt.Sprintf("%s of %s is there and is not served", p.id, p.resource))
	}
	return strings.Join(why, "; ")
}

// strangers returns served devices that no GPU ever had; t.mu must be held.
func (t *truth) strangers(served []kubelettest.Resource) []string {
	var ids []string
	for _, r := range served {
		for _, d := range r.Devices {
			if t.gpuOf[baseID(d.GetID())] == nil {
				ids = append(ids, r.Name+" "+d.GetID())
			}
		}
	}
	return ids
}

// baseID returns the ID without the number of the replica.
func baseID(id string) string {
	base, _, _ := strings.Cut(id, "::")
	return base
}

// allocate records that a pod got devices from an admission that began at a time. It returns the
// devices that the pod cannot use because their GPU has changed since; a driver would refuse them
// too. An error is a violation. settle is how long a list may lag behind.
func (t *truth) allocate(pod string, parts []part, began time.Time, settle time.Duration) (refused []part, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range parts {
		c := t.gpuOf[baseID(p.id)]
		if c == nil {
			return nil, fmt.Errorf("pod %s was given %s, which no GPU ever was", pod, p.id)
		}
		stale := began.Sub(c.changed) > settle // the plugin had the time to know
		there := slices.Contains(t.devices(c), p)
		switch {
		case stale && !there:
			return nil, fmt.Errorf("pod %s was given %s, which is gone since %v\n%s", pod, p.id, c.changed.Format(time.TimeOnly), c)
		case stale && c.health == sick:
			return nil, fmt.Errorf("pod %s was given %s, which is broken since %v\n%s", pod, p.id, c.changed.Format(time.TimeOnly), c)
		case !there:
			refused = append(refused, p)
		case t.owner[p] != "":
			return nil, fmt.Errorf("%s was given to pod %s while pod %s has it\n%s", p.id, pod, t.owner[p], c)
		}
	}
	if refused != nil {
		return refused, nil
	}
	for _, p := range parts {
		t.owner[p] = pod
	}
	return nil, nil
}

// release records that a pod no longer has its devices. It must be called before the kubelet may
// allocate them again.
func (t *truth) release(parts []part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range parts {
		delete(t.owner, p)
	}
}

// usable reports whether devices exist, and no recent event of their GPUs could have made them
// unhealthy.
func (t *truth) usable(parts []part, settle time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range parts {
		c := t.gpuOf[baseID(p.id)]
		if !slices.Contains(t.devices(c), p) || c.health != sound || time.Since(c.changed) < settle {
			return false
		}
	}
	return true
}

// broken returns a device that must not be allocated, broken for long enough that the plugin knows
// it; "" if there is none.
func (t *truth) broken(settle time.Duration) (resource, id string, c *gpuState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.gpus {
		if devices := t.devices(c); c.health == sick && time.Since(c.changed) > settle && len(devices) > 0 {
			return devices[0].resource, devices[0].id, c
		}
	}
	return "", "", nil
}

// String returns the GPU's state and history.
func (c *gpuState) String() string {
	return fmt.Sprintf("GPU %d (%s):\n    %s", c.index, c.uuid, strings.Join(c.history, "\n    "))
}
