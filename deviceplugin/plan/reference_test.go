package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// reference returns what the reference (github.com/NVIDIA/k8s-device-plugin, v0.20.0)
// advertises with a configuration file and no flags: the number of devices by name, or
// the error with which it ends. The code is ours. The errors quote the reference's
// messages, mostly shortened, so that the golden files show what its users see. It
// decodes the file as the reference does, which skips unknown keys and discards
// resources, rename and devices (api/config/v1/config.go,
// DisableResourceNamingInConfig).
func reference(file []byte, s gpu.Snapshot) (map[string]int, error) {
	var c struct {
		Version string
		Flags   struct{ MigStrategy *string }
		Sharing struct{ TimeSlicing, MPS *referenceSharing }
		Imex    struct{ ChannelIDs []int }
		// Decoded and then discarded.
		Resources struct {
			GPUs, MIG []struct{ Pattern, Name string }
		}
	}
	if err := yaml.Unmarshal(file, &c); err != nil {
		return nil, fmt.Errorf("unmarshal error")
	}
	strategy := "none"
	if c.Flags.MigStrategy != nil {
		strategy = *c.Flags.MigStrategy
	}
	shared := c.Sharing.TimeSlicing
	if c.Sharing.MPS != nil { // api/config/v1/sharing.go: MPS before time-slicing
		shared = c.Sharing.MPS
	}
	if err := errors.Join(
		errorIf(c.Version != "" && c.Version != "v1", "unknown version"),
		c.Sharing.TimeSlicing.check(), c.Sharing.MPS.check(),
		errorIf(strategy != "none" && strategy != "single" && strategy != "mixed", "unknown MIG strategy"), // cmd/nvidia-device-plugin/main.go
		errorIf(c.Sharing.MPS != nil && strategy == "mixed", "mixed is not supported with MPS"),
		errorIf(len(c.Imex.ChannelIDs) > 1 || len(c.Imex.ChannelIDs) == 1 && c.Imex.ChannelIDs[0] != 0, "invalid IMEX channel IDs"),
	); err != nil {
		return nil, err
	}
	names, err := referenceNames(strategy, s)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, name := range names {
		counts[name]++
	}
	return shared.apply(counts), nil
}

func errorIf(wrong bool, what string) error {
	if wrong {
		return errors.New(what)
	}
	return nil
}

// referenceNames names each device: internal/rm/device_map.go.
func referenceNames(strategy string, s gpu.Snapshot) ([]string, error) {
	var whole, divided []string
	profiles := map[string]bool{}
	for _, d := range s.Devices {
		if !d.MIGEnabled || strategy == "none" {
			whole = append(whole, "nvidia.com/gpu")
			continue
		}
		if len(d.MIG) == 0 {
			return nil, errors.New("at least one device with migEnabled=true was not configured correctly")
		}
		for _, m := range d.MIG {
			profiles[m.Profile] = true
			switch {
			case strategy == "single":
				divided = append(divided, "nvidia.com/gpu")
			case strings.Contains(m.Profile, "c."):
				return nil, errors.New("MIG profile does not match any resource patterns")
			default:
				divided = append(divided, "nvidia.com/mig-"+strings.ReplaceAll(m.Profile, "+", "."))
			}
		}
	}
	return append(whole, divided...), errors.Join(
		errorIf(strategy == "single" && len(profiles) > 1, "more than one MIG device type present on node"),
		errorIf(strategy == "single" && len(whole) > 0 && len(divided) > 0, "all devices on the node must be configured with the same migEnabled value"),
	)
}

type referenceSharing struct {
	RenameByDefault bool
	Resources       []struct {
		Name     string
		Rename   string
		Devices  json.RawMessage
		Replicas int
	}
}

// check returns the errors of api/config/v1/replicas.go.
func (r *referenceSharing) check() error {
	if r == nil {
		return nil
	}
	var all []error
	all = append(all, errorIf(len(r.Resources) == 0, "no resources specified"))
	for _, one := range r.Resources {
		all = append(all, errorIf(one.Name == "", "no resource name specified"), errorIf(one.Replicas < 2, "number of replicas must be >= 2"))
	}
	return errors.Join(all...)
}

// apply shares all devices of each resource, once for each entry that names it.
func (r *referenceSharing) apply(counts map[string]int) map[string]int {
	if r == nil {
		return counts
	}
	after, shared := map[string]int{}, map[string]int{}
	named := map[string]bool{}
	for _, one := range r.Resources {
		name := "nvidia.com/" + strings.TrimPrefix(one.Name, "nvidia.com/")
		named[name] = true
		if counts[name] > 0 {
			as := name
			if r.RenameByDefault {
				as += ".shared"
			}
			// Replicas of the same device have the same IDs: the larger number counts.
			shared[as] = max(shared[as], counts[name]*one.Replicas)
		}
	}
	for name, n := range counts {
		if !named[name] {
			after[name] = n
		}
	}
	maps.Copy(after, shared)
	return after
}
