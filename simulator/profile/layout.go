package profile

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// Instance is one GPU instance of a MIG layout.
type Instance struct {
	Profile string   // "3g.40gb"
	Start   int      // memory slice where it begins; -1: wherever it fits
	Compute []uint32 // slices of its compute instances; empty: one with all
}

// maxLayout bounds the text of a layout; the longest that fits a GPU is shorter.
const maxLayout = 1024

var itemForm = regexp.MustCompile(`^([0-9]g\.[0-9]{1,4}gb(?:[+-][a-z.]{1,8})?)(?:@([0-9]))?(?::([0-9]c(?:\+[0-9]c)*))?$`)

// ParseLayout reads a MIG layout: instances separated by commas, each
// PROFILE[@START][:CI+CI…], as in "3g.40gb:1c+2c,1g.10gb@6".
func ParseLayout(text string) ([]Instance, error) {
	if len(text) > maxLayout {
		return nil, fmt.Errorf("layout: %d characters are too many", len(text))
	}
	var layout []Instance
	for item := range strings.SplitSeq(text, ",") {
		m := itemForm.FindStringSubmatch(strings.TrimSpace(item))
		if m == nil {
			return nil, fmt.Errorf("layout: %q is not PROFILE[@START][:CI+CI], such as 1g.10gb, 3g.40gb@4 or 3g.40gb:1c+2c", item)
		}
		instance := Instance{Profile: m[1], Start: -1}
		if m[2] != "" {
			instance.Start = int(m[2][0] - '0')
		}
		if m[3] != "" {
			for ci := range strings.SplitSeq(m[3], "+") {
				instance.Compute = append(instance.Compute, uint32(ci[0]-'0'))
			}
		}
		layout = append(layout, instance)
	}
	return layout, nil
}

// String writes the instance as ParseLayout reads it.
func (i Instance) String() string {
	var b strings.Builder
	b.WriteString(i.Profile)
	if i.Start >= 0 {
		b.WriteString("@" + strconv.Itoa(i.Start))
	}
	for n, slices := range i.Compute {
		b.WriteString(map[bool]string{true: ":", false: "+"}[n == 0] + strconv.Itoa(int(slices)) + "c")
	}
	return b.String()
}

// Layout returns the MIG layout of the GPU: its instances by ID of the GPU instance.
func Layout(g *state.GPU) []Instance {
	var layout []Instance
	for _, gi := range sortedInstances(g) {
		p := &g.GiProfile[gi.Profile]
		instance := Instance{Profile: state.Text(p.Name[:]), Start: int(gi.Start)}
		for _, ci := range g.Ci {
			if ci.Used != 0 && ci.Gi == gi.Id {
				instance.Compute = append(instance.Compute, ci.Slices)
			}
		}
		if len(instance.Compute) == 1 && instance.Compute[0] == p.Slices {
			instance.Compute = nil
		}
		layout = append(layout, instance)
	}
	return layout
}
