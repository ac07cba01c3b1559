package claim

import (
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Specs finds devices in the CDI specifications of the host.
type Specs struct {
	Root *host.Root
	Dir  string // host path of the toolkit's specifications
	Kind string // "k8s.gpuready.io/gpu"
	// DevDir is the host path of the device nodes if this process sees them; "": it assumes that
	// they exist.
	DevDir string
}

// Name returns the name by which a container runtime injects a device. It returns an error if no
// specification has the device, or a device node that it names does not exist. This process does not
// see the libraries that a specification mounts.
func (s Specs) Name(id gpu.UUID) (string, error) {
	name := s.Kind + "=" + string(id)
	files, err := cdi.LoadKinds(s.Root, []string{s.Kind}, s.Dir)
	if err != nil {
		return "", err
	}
	seen := func(p string) bool { return s.DevDir != "" && strings.HasPrefix(path.Clean(p), s.DevDir+"/") }
	return name, cdi.CheckVisible(s.Root, files, name, seen)
}
