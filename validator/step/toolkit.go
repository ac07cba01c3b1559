package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer, besides those of the toolkit itself.
const (
	reasonToolkitSilent       gpu.Reason = "ToolkitSilent"
	reasonToolkitStateInvalid gpu.Reason = "ToolkitStateInvalid"
	reasonToolkitNotReady     gpu.Reason = "ToolkitNotReady"
	reasonOtherDriver         gpu.Reason = "SpecsOfAnotherDriver"
	reasonSpecMissing         gpu.Reason = "CDISpecMissing"
	reasonSpecInvalid         gpu.Reason = "CDISpecInvalid"
	reasonConflict            gpu.Reason = "CDINameConflict"
	reasonUnresolved          gpu.Reason = "CDINameUnresolvable"
	reasonIncomplete          gpu.Reason = "CDISpecIncomplete"
	reasonUnreadable          gpu.Reason = "CDIDirectoryUnreadable"
	reasonRuntime             gpu.Reason = "RuntimeWithoutCDI"
	reasonHandler             gpu.Reason = "HandlerMissing"
)

// checkToolkit checks layer toolkit: a container that requests a GPU or MIG device by its CDI
// name would start. The name resolves, every file named in the specification is on the host,
// and the toolkit reports that it is ready, for the driver that is loaded now.
//
// In a container with only some folders of the host it looks only for files below those.
// Layer plugin proves the others, by starting a container with a GPU.
func checkToolkit(_ context.Context, node check.Node, driver check.Driver) check.Outcome {
	node.DriverRoot = driver.Info.Root
	state, err := node.State(nodestate.Toolkit)
	if failed := toolkitNotReady(state, err); failed != nil {
		return *failed
	}
	if d := state.Driver; d != nil && d.Version != driver.Info.Version {
		return check.Fail(reasonOtherDriver,
			fmt.Sprintf("the toolkit's CDI specs are for driver %s, but %s is loaded", d.Version, driver.Info.Version),
			"it follows an upgrade by itself within seconds; if not, see the log of gpu-toolkit")
	}
	files, err := cdi.Load(node.Root, node.CDIDirs...)
	if err != nil {
		return check.Fail(reasonUnreadable, err.Error(), "make the CDI directories readable for this process")
	}
	var notes []string
	again := false
	for _, verify := range []func(check.Node, check.Driver, nodestate.State, []cdi.File) finding{checkSpec, checkConflicts, checkNames, checkRuntime, checkHandlers} {
		f := verify(node, driver, state, files)
		if f.failed != nil {
			return *f.failed
		}
		notes, again = append(notes, f.notes...), again || f.again
	}
	units := len(driver.Units())
	o := check.NewPass(readiness.Proof{
		Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: units,
		Summary: fmt.Sprintf("%d CDI names of kind %s resolve", units, cdi.KindGPU),
	}, notes...)
	o.Retry = again
	return o
}

// finding is the result of one check of this layer.
type finding struct {
	failed *check.Outcome
	notes  []string
	again  bool // check again soon, since it may change
}

func refuse(reason gpu.Reason, message, action string) finding {
	return finding{failed: failed(reason, message, action)}
}

// checkNames checks that each GPU and MIG device has a CDI name that resolves to existing files.
func checkNames(node check.Node, driver check.Driver, _ nodestate.State, files []cdi.File) finding {
	units := driver.Units()
	var unresolved, incomplete []string
	for _, u := range units {
		switch err := cdi.CheckVisible(node.Root, files, cdi.GPUName(u.UUID), node.Visible); {
		case errors.Is(err, cdi.ErrUnresolvable):
			unresolved = append(unresolved, err.Error())
		case err != nil:
			incomplete = append(incomplete, err.Error())
		}
	}
	if len(unresolved) > 0 {
		return refuse(reasonUnresolved, firstOf(unresolved, len(units)), "gpu-toolkit writes the specs, and follows new GPUs and MIG devices within seconds; if not, see its log")
	}
	if len(incomplete) > 0 {
		return refuse(reasonIncomplete, firstOf(incomplete, len(units)),
			"restart gpu-toolkit so that it writes the specs anew; if files of the driver are missing, install it again")
	}
	return finding{}
}

func toolkitRuntime(s nodestate.State) *nodestate.Runtime {
	if s.Toolkit == nil {
		return nil
	}
	return s.Toolkit.Runtime
}

// toolkitNotReady returns the failure shown by the toolkit's state; nil if it is ready.
func toolkitNotReady(s nodestate.State, err error) *check.Outcome {
	switch {
	case nodestate.IsAbsent(err):
		return failed(reasonToolkitSilent, "the toolkit has reported nothing since the node booted", "start gpu-toolkit on this node (DaemonSet nvidia-container-toolkit-daemonset)")
	case errors.Is(err, nodestate.ErrUnwritten):
		return unwritten("gpu-toolkit", err)
	case err != nil:
		return failed(reasonToolkitStateInvalid, err.Error(), "restart gpu-toolkit, which writes the file anew")
	case s.Phase != nodestate.Ready && s.Phase != nodestate.Degraded:
		return failed(cmp.Or(s.Reason, reasonToolkitNotReady), fmt.Sprintf("the toolkit says %s: %s", s.Phase, s.Message), "see the log of gpu-toolkit")
	}
	return nil
}

// firstOf returns the first of several findings, and their number.
func firstOf(all []string, of int) string {
	const shown = 3
	if len(all) <= shown {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and so on for %d of %d GPUs", strings.Join(all[:shown], "; "), len(all), of)
}
