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

// health is what may be said of a GPU's devices.
type health int

const (
	sound  health = iota
	sick          // must not be given to anyone
	unsure        // recovers when it was quiet for a while: either will do until all stands still
)

// part is what one device that is not shared stands for.
type part struct{ resource, id string }

// card is one GPU as it is. Whoever changes it holds truth.mu.
type card struct {
	index   int
	uuid    string
	parts   []part // the GPU itself, or its MIG devices
	health  health
	changed time.Time // when any of that was last made another
	story   []string  // what happened to it last, for a failure
}

// story is how much of it is kept.
const storyLength = 12

// truth is what the plugin ought to serve, and who was given what.
type truth struct {
	mu     sync.Mutex
	cards  []*card
	cardOf map[string]*card // by the ID of every device there ever was
	owner  map[part]string  // to pod. A kubelet does not know that a GPU of one resource is that of another
	shape  shape            // what the configuration in force makes of them
	calm   bool             // everything has stood still for long enough that nothing is unsure
}

func newTruth(s *state.State) *truth {
	t := &truth{cardOf: map[string]*card{}, owner: map[part]string{}, shape: plain}
	for i, g := range s.GPUs() {
		c := &card{index: i, uuid: state.Text(g.Uuid[:])}
		t.cards = append(t.cards, c)
		t.divide(c, g)
	}
	return t
}

// divide takes over how a GPU is divided; t.mu is held, but for a new truth.
func (t *truth) divide(c *card, g *state.GPU) {
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
		t.cardOf[p.id] = c
	}
}

// happened notes what was done to a card; t.mu is held.
func (c *card) happened(format string, args ...any) {
	c.changed = time.Now()
	c.story = append(c.story, c.changed.Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(c.story) > storyLength {
		c.story = c.story[1:]
	}
}

// free says whether nobody has anything of a card; t.mu is held.
func (t *truth) free(c *card) bool {
	for p := range t.owner {
		if t.cardOf[baseID(p.id)] == c {
			return false
		}
	}
	return true
}

// wrong says what of the resources that a kubelet has differs from what is true of
// a card; "" for nothing. t.mu is held.
func (t *truth) wrong(c *card, served []kubelettest.Resource) string {
	devices := t.devices(c)
	want := map[part]bool{}
	for _, p := range devices {
		want[p] = true
	}
	var why []string
	for _, r := range served {
		for _, d := range r.Devices {
			if t.cardOf[baseID(d.GetID())] != c {
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

// strangers are devices that are served and that no GPU ever was; t.mu is held.
func (t *truth) strangers(served []kubelettest.Resource) []string {
	var ids []string
	for _, r := range served {
		for _, d := range r.Devices {
			if t.cardOf[baseID(d.GetID())] == nil {
				ids = append(ids, r.Name+" "+d.GetID())
			}
		}
	}
	return ids
}

// baseID is the ID without the number of a replica.
func baseID(id string) string {
	base, _, _ := strings.Cut(id, "::")
	return base
}

// give notes that a pod was given devices at the end of an admission that began at
// a time. It returns which of them the pod cannot use, since its GPU has been
// changed meanwhile: a driver would refuse those, too. An error is what must never
// be. settle is how long a list may lag behind.
func (t *truth) give(pod string, given []part, began time.Time, settle time.Duration) (refused []part, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range given {
		c := t.cardOf[baseID(p.id)]
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
	for _, p := range given {
		t.owner[p] = pod
	}
	return nil, nil
}

// take notes that a pod has its devices no more. It is called before the kubelet
// may give them to the next.
func (t *truth) take(given []part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range given {
		delete(t.owner, p)
	}
}

// usable says whether devices are there, and nothing has happened to their GPUs for a
// while that could have made them unhealthy.
func (t *truth) usable(given []part, settle time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range given {
		c := t.cardOf[baseID(p.id)]
		if !slices.Contains(t.devices(c), p) || c.health != sound || time.Since(c.changed) < settle {
			return false
		}
	}
	return true
}

// broken is a device that nobody may be given, since long enough that the plugin
// knows; "" where there is none.
func (t *truth) broken(settle time.Duration) (resource, id string, c *card) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.cards {
		if devices := t.devices(c); c.health == sick && time.Since(c.changed) > settle && len(devices) > 0 {
			return devices[0].resource, devices[0].id, c
		}
	}
	return "", "", nil
}

// String tells what happened to the card.
func (c *card) String() string {
	return fmt.Sprintf("GPU %d (%s):\n    %s", c.index, c.uuid, strings.Join(c.story, "\n    "))
}
