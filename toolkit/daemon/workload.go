package daemon

import (
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/nri"
)

// injects reports whether the toolkit is a plugin of the container runtime.
func (d *Daemon) injects() bool {
	return d.Config.Namespace != "" || len(d.Config.WorkloadNamespaces) > 0
}

// recipients names the kinds of containers that receive GPUs, for the log.
func (d *Daemon) recipients() string {
	switch {
	case len(d.Config.WorkloadNamespaces) == 0:
		return "agents"
	case d.Config.Namespace == "":
		return "workloads that request GPUs"
	}
	return "agents and workloads that request GPUs"
}

// prepareTable prepares the table for workloads from the specifications in the
// directories in which a runtime resolves names.
func (d *Daemon) prepareTable(state nodestate.State) {
	if len(d.Config.WorkloadNamespaces) == 0 {
		return
	}
	if state.Phase == nodestate.Waiting { // specifications may be those of an earlier driver
		d.table.Store(nri.EmptyTable("this node has no GPUs to give: " + string(state.Reason) + ": " + state.Message))
		return
	}
	files, err := cdi.Load(d.Root, d.CDIDirs()...)
	if inotify.Exhausted(err) && d.table.Load() != nil {
		return // keep the current table: the specifications cannot be read now
	}
	if err != nil {
		d.table.Store(nri.EmptyTable("CDI specifications: " + err.Error()))
		return
	}
	d.table.Store(nri.NewTable(d.Root, files))
}

// maxLogged limits the number of a container's devices that are logged.
const maxLogged = 32

// logResolved logs the outcome for a workload that requested GPUs.
func (d *Daemon) logResolved(r nri.Resolved) {
	log := d.log.With("namespace", r.Namespace, "pod", r.Pod, "container", r.Container)
	outcome := "unchanged"
	switch {
	case r.Err != nil:
		outcome = "refused"
		log.Warn("container may not start without the GPUs that it requests", "message", r.Err)
	case r.Given:
		outcome = "given"
		log.Info("container is given GPUs", "devices", r.Devices[:min(len(r.Devices), maxLogged)])
	}
	for _, warning := range r.Warnings {
		log.Warn("container does not receive all devices that it requests", "message", warning)
	}
	d.metrics.resolved.WithLabelValues(outcome).Inc()
}

// missed returns the containers that a state names, and their number. Agents do not count
// as missed while there is no offer.
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

// logMissed logs each missed container once.
func (d *Daemon) logMissed(i *nodestate.Injection) {
	if i == nil {
		return
	}
	d.metrics.missed.Set(float64(i.MissedCount))
	logged := map[string]bool{}
	for _, name := range i.Missed {
		if logged[name] = true; !d.missed[name] {
			d.log.Warn("container runs without the GPUs that it should have: the toolkit was not connected when it was created; delete its pod, so that another is created", "container", name)
		}
	}
	d.missed = logged
}
