package claim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Specs finds devices in the CDI specifications of the host.
type Specs struct {
	Root *host.Root
	Dir  string // host path of the toolkit's specifications
	Kind string // "k8s.gpuready.io/gpu"
	// Toolkit returns the toolkit's state of this boot. The toolkit makes the device nodes, and
	// names a device when all that a container needs of it is there.
	Toolkit func() (nodestate.State, error)
	// StatePath is the file of that state, as this process sees it. It is replaced when a device has got
	// its name.
	StatePath string
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
	return name, s.check(s.Kind, name)
}

// MPSName returns the name of the CDI device by which the containers of a GPU find its MPS control
// daemon. It returns an error unless a specification has it.
func (s Specs) MPSName(id gpu.UUID) (string, error) {
	name := cdi.KindMPS + "=" + string(id)
	return name, s.check(cdi.KindMPS, name)
}

// check returns an error unless a specification has the device, with all of it that this process sees.
func (s Specs) check(kind, name string) error {
	files, err := cdi.LoadKinds(s.Root, []string{kind}, s.Dir)
	if err != nil {
		return err
	}
	seen := func(p string) bool { return s.DevDir != "" && strings.HasPrefix(path.Clean(p), s.DevDir+"/") }
	return cdi.CheckVisible(s.Root, files, name, seen)
}

// namingLimit bounds the wait for the toolkit to name a device that was just created. It takes some
// tens of milliseconds, or seconds where the driver reports no event and creates no device node.
const namingLimit = 25 * time.Second

// Await is Name for a device that was just created: it waits until the toolkit has named it, and
// returns the last error of Name if that does not happen in time.
func (s Specs) Await(ctx context.Context, id gpu.UUID) (name string, err error) {
	if name, err = s.Name(id); err == nil {
		return name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, namingLimit)
	defer cancel()
	watchErr := record.Watch(ctx, []string{s.StatePath}, func() {
		if name, err = s.Name(id); err == nil {
			cancel()
		}
	})
	if err != nil && watchErr != nil && !errors.Is(watchErr, context.Canceled) && !errors.Is(watchErr, context.DeadlineExceeded) {
		err = errors.Join(err, watchErr)
	}
	return name, err
}
