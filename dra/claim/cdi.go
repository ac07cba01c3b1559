package claim

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Specs finds devices in the CDI specifications of the host.
type Specs struct {
	Root *host.Root
	Dir  string // host path of the toolkit's specifications
	Kind string // "k8s.gpuready.io/gpu"
	// Toolkit returns the toolkit's state of this boot. The toolkit makes the device nodes, and
	// names a device when all that a container needs of it is there.
	Toolkit func() (nodestate.State, error)
	// DevDir is the host path of the device nodes if this process sees them, so that it can look for
	// itself; "": it does not.
	DevDir string
}

// Name returns the name by which a container runtime injects a device. It returns an error unless the
// toolkit's state of this boot lists the device, a specification has it, and the device nodes
// there exist. Nodes are checked only if this process sees the host's /dev.
func (s Specs) Name(id gpu.UUID) (string, error) {
	name := s.Kind + "=" + string(id)
	state, err := s.Toolkit()
	if err != nil {
		return "", fmt.Errorf("the toolkit's state: %w", err)
	}
	if state.Toolkit == nil || !slices.ContainsFunc(state.Toolkit.Specs, func(spec nodestate.Spec) bool {
		return spec.Kind == s.Kind && slices.Contains(spec.Devices, string(id))
	}) {
		text := "gpu-toolkit does not name " + name
		if state.Reason != "" {
			text += ": " + string(state.Reason) + ": " + state.Message
		}
		return "", fmt.Errorf("%s", text)
	}
	files, err := cdi.LoadKinds(s.Root, []string{s.Kind}, s.Dir)
	if err != nil {
		return "", err
	}
	seen := func(p string) bool { return s.DevDir != "" && strings.HasPrefix(path.Clean(p), s.DevDir+"/") }
	return name, cdi.CheckVisible(s.Root, files, name, seen)
}
