package daemon

import (
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/nri"
)

// injects says whether the toolkit is a plugin of the container runtime.
func (d *Daemon) injects() bool {
	return d.Config.Namespace != "" || len(d.Config.WorkloadNamespaces) > 0
}

// whom are those who are given GPUs.
func (d *Daemon) whom() string {
	switch {
	case len(d.Config.WorkloadNamespaces) == 0:
		return "agents"
	case d.Config.Namespace == "":
		return "workloads that ask"
	}
	return "agents and workloads that ask"
}

// prepareTable makes ready what workloads are given from now on if they ask: what lies
// there where a runtime that resolves names would look for it.
func (d *Daemon) prepareTable(state nodestate.State) {
	if len(d.Config.WorkloadNamespaces) == 0 {
		return
	}
	if state.Phase == nodestate.Waiting { // specifications may be those of an earlier driver
		d.table.Store(nri.Nothing("this node has no GPUs to give: " + string(state.Reason) + ": " + state.Message))
		return
	}
	files, err := cdi.Load(d.Root, cdiDirs(d.Config.CDIDir)...)
	if inotify.Exhausted(err) && d.table.Load() != nil {
		return // what is given stays as it is: nothing was learned
	}
	if err != nil {
		d.table.Store(nri.Nothing("CDI specifications: " + err.Error()))
		return
	}
	d.table.Store(nri.NewTable(d.Root, files))
}

// cdiDirs are where specifications lie, in rising order of precedence.
func cdiDirs(ours string) []string {
	dirs := []string{cdi.StaticDir, cdi.DynamicDir}
	if ours != cdi.StaticDir && ours != cdi.DynamicDir {
		dirs = append(dirs, ours)
	}
	return dirs
}

// maxLogged bounds how many names of a container's list are logged.
const maxLogged = 32

// tellResolved logs what became of a workload that asked for GPUs.
func (d *Daemon) tellResolved(r nri.Resolved) {
	log := d.log.With("namespace", r.Namespace, "pod", r.Pod, "container", r.Container)
	outcome := "unchanged"
	switch {
	case r.Err != nil:
		outcome = "refused"
		log.Warn("container may not start without the GPUs that it asks for", "message", r.Err)
	case r.Given:
		outcome = "given"
		log.Info("container is given GPUs", "devices", r.Devices[:min(len(r.Devices), maxLogged)])
	}
	for _, warning := range r.Warnings {
		log.Warn("not all that a container asks for is given", "message", warning)
	}
	d.metrics.resolved.WithLabelValues(outcome).Inc()
}

// missed are the containers that a state names, and how many there are. Agents lack
// nothing while there is nothing to give.
func missed(all []nri.Missed, offered bool) (names []string, count int) {
	for _, m := range all {
		if m.Agent && !offered {
			continue
		}
		if count++; count <= nodestate.MaxMissed {
			names = append(names, m.String())
		}
	}
	return names, count
}

// tellMissed logs each container that was missed, once.
func (d *Daemon) tellMissed(is *nodestate.Injection) {
	if is == nil {
		return
	}
	d.metrics.missed.Set(float64(is.MissedCount))
	told := map[string]bool{}
	for _, name := range is.Missed {
		if told[name] = true; !d.missed[name] {
			d.log.Warn("container runs without the GPUs that it should have been given: it was created while the toolkit could not give them; delete its pod, so that another is created", "container", name)
		}
	}
	d.missed = told
}
