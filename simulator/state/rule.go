package state

import (
	"fmt"
	"slices"
	"time"
)

// Rules returns what gpusim refuse said of NVML's calls.
func (s *State) Rules() []Rule { return s.Rule[:min(s.Nrules, MaxRules)] }

// SetRules has calls of NVML answer with a code (0: what they answer else) after a delay, where their first
// argument is a handle of the GPU with this index (None: any). With neither it ends what was said before of
// these calls and this GPU; without calls, of all calls, and without a GPU, of all GPUs.
func (s *State) SetRules(calls []string, gpu, code uint32, delay time.Duration) error {
	kept := slices.DeleteFunc(slices.Clone(s.Rules()), func(r Rule) bool {
		return (len(calls) == 0 || slices.Contains(calls, Text(r.Call[:]))) && (gpu == None || r.Gpu == gpu)
	})
	if code != 0 || delay != 0 {
		for _, call := range calls {
			r := Rule{Gpu: gpu, Code: code, Delay: uint64(delay)}
			if len(call) >= len(r.Call) {
				return fmt.Errorf("call: %.100q is longer than a name of NVML's", call)
			}
			copy(r.Call[:], call)
			kept = append(kept, r)
		}
	}
	if len(kept) > MaxRules {
		return fmt.Errorf("%d calls are refused; at most %d can be", len(kept), MaxRules)
	}
	s.Rule = [MaxRules]Rule{}
	s.Nrules = uint32(copy(s.Rule[:], kept))
	return nil
}
