package daemon

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// recordEarly writes an outcome as soon as it is known: the layers above may take their
// time. A failed write is logged by record.
func (d *Daemon) recordEarly(o check.Outcome) {
	d.writing.Lock()
	defer d.writing.Unlock()
	_ = d.write(d.proofs.EffectiveOutcome(o))
	if d.DriverPod != nil && o.Layer == readiness.CUDA && o.Kind != check.Passed {
		d.DriverPod.Withdraw()
	}
}

// record writes the outcomes of a check, wherever they differ from those written.
func (d *Daemon) record(found []check.Outcome) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.retired {
		return
	}
	var unwritten []string
	var outcomes []check.Outcome
	for _, o := range found {
		d.Metrics.observe(o)
		o = d.proofs.EffectiveOutcome(o)
		outcomes = append(outcomes, o)
		if err := d.write(o); err != nil {
			unwritten = append(unwritten, err.Error())
		}
	}
	if err := d.writeState(outcomes, unwritten...); err != nil {
		unwritten = append(unwritten, err.Error())
	}
	d.outcomes = outcomes
	d.backoff.update(found, len(unwritten) > 0)
	d.recordUnwritten(unwritten)
	d.publish()
	if d.unwritten != nil {
		d.setReady(fmt.Errorf("%s: %w", nodestate.ReasonNotWritable, d.unwritten))
		return
	}
	d.setReady(notReady(outcomes))
}

// recordUnwritten records the errors of writing the outcomes of a check, none if all are written.
func (d *Daemon) recordUnwritten(errs []string) {
	d.unwritten = nil
	if len(errs) > 0 {
		d.unwritten = errors.New(errs[0]) // the others have the same cause, as a rule
	}
	d.Metrics.unwritten.Set(float64(min(1, len(errs))))
	switch changed := d.fault.Record(d.unwritten); {
	case changed && d.unwritten != nil:
		d.Log.Error("cannot write the outcome of the check; it is tried again every few seconds", "reason", nodestate.ReasonNotWritable, "message", d.unwritten.Error())
	case changed:
		d.Log.Info("the outcomes of the checks are written again")
	}
}

// write writes an outcome and logs it if it differs from the last. The caller holds
// d.writing.
func (d *Daemon) write(o check.Outcome) error {
	if d.retired {
		return nil
	}
	news, err := d.proofs.WriteIfChanged(o)
	if news {
		d.logOutcome(o)
	}
	return err
}

func (d *Daemon) logOutcome(o check.Outcome) {
	if o.Kind == check.Absent && o.Layer != readiness.Driver {
		return // logged once, for the driver
	}
	log := d.Log.With("layer", o.Layer, "duration", o.Elapsed.Round(time.Millisecond))
	switch o.Kind {
	case check.Passed:
		log.Info("ready", "message", o.Proof.Summary, "simulated", o.Simulated(), "notes", strings.Join(o.Notes, "; "))
	case check.Failed:
		log.Warn("not ready", "reason", o.NotReady.Reason, "message", o.NotReady.Message, "action", o.NotReady.Action, "notes", strings.Join(o.Notes, "; "))
	default:
		log.Info("not ready", "reason", o.NotReady.Reason, "message", o.NotReady.Message)
	}
}

// writeState writes the validator's state after a check. unwritten are the errors of writing its
// proofs.
func (d *Daemon) writeState(outcomes []check.Outcome, unwritten ...string) error {
	s := nodestate.State{Phase: nodestate.Ready}
	if p := outcomes[0].Proof; p != nil {
		s.Driver = p.Driver
	}
	for _, o := range outcomes {
		if o.Kind == check.Passed {
			s.Message = "all layers are proven"
			if d.Note != "" {
				s.Message += "; " + d.Note
			}
			continue
		}
		s.Phase, s.Reason = nodestate.Failed, o.NotReady.Reason
		s.Message = fmt.Sprintf("%s: %s; %s", o.Layer, o.NotReady.Message, o.NotReady.Action)
		if o.Kind == check.Absent || o.Kind == check.Pending {
			s.Phase, s.Message = nodestate.Waiting, o.NotReady.Message
		}
		break
	}
	if len(unwritten) > 0 && s.Phase == nodestate.Ready {
		s.Phase, s.Reason, s.Message = nodestate.Degraded, nodestate.ReasonNotWritable, unwritten[0]
	}
	return d.setState(s)
}

// notReady returns why the node is not ready; nil: it is, or there is nothing to prove.
func notReady(outcomes []check.Outcome) error {
	for _, o := range outcomes {
		if o.Kind == check.Failed || o.Kind == check.Pending {
			return fmt.Errorf("%s: %s: %s", o.Layer, o.NotReady.Reason, o.NotReady.Message)
		}
	}
	return nil
}

// Retire writes reason as the last state of this process, which then ends so that its
// container is created anew.
func (d *Daemon) Retire(reason gpu.Reason, message string) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.retired {
		return
	}
	r := readiness.NotReady{Reason: reason, Message: message, Action: "nothing: the kubelet creates the container anew"}
	if reason == check.ReasonInjection {
		// Nothing can be proven in this container. The reason must show in the
		// cluster even if the process ends this way again and again.
		d.outcomes = []check.Outcome{{Layer: readiness.Driver, Kind: check.Failed, NotReady: &r}}
		if err := d.proofs.Write(readiness.Driver, d.outcomes[0]); err != nil {
			d.Log.Error("cannot write why this process ends", "message", err.Error())
		}
		d.publish()
	}
	d.retired = true
	if err := d.setState(nodestate.State{Phase: nodestate.Waiting, Reason: reason, Message: message}); err != nil {
		d.Log.Error("cannot write why this process ends", "message", err.Error())
	}
}
