// Package daemon keeps the proofs of a node true: it checks the layers again
// whenever what they depend on changes, and writes down what came out.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/voice"
)

// A layer that failed is checked again after this time even though nothing was
// seen to change: there are causes that no event tells of (a module that was
// loaded, a GPU that another program had filled). Each time it is doubled.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// Config is what a Daemon needs.
type Config struct {
	Node      check.Node
	Road      check.Road
	OutputDir string // of the proofs, as this process sees it
	Log       *slog.Logger
	Metrics   *Metrics
	Tell      func(voice.Facts) // told what is known whenever it changes; nil: nobody is
	News      <-chan struct{}   // a pod that proves something has come to its end; nil: none is run
	NodeNews  <-chan struct{}   // what the API server has of the Node is another; nil: nobody reads it
	Witness   Witness           // nil: none is asked for
}

// Witness shows people, by a pod of its own, that what layer cuda says is so.
type Witness interface {
	Proven(check.Driver) // layer cuda is
	Withdraw()           // it is not any more
	Result() *check.Outcome
	News() <-chan struct{} // of another result
}

// Daemon is the one writer of the proofs and of the validator's own state.
type Daemon struct {
	Config
	written map[readiness.Layer]string
	stand   map[readiness.Layer]check.Outcome // what is written, without what is pending
	names   map[gpu.UUID]string
	faults  map[gpu.UUID]gpu.Fault // of GPUs, as the driver saw them last
	known   []check.Outcome        // of the last check of all layers; nil: an earlier process's word stands
	retired bool
	state   nodestate.State // what the state file is to say
	unsaid  bool            // and does not yet
	failing string          // what failed at the last check, to know when to begin retries anew
	retry   time.Duration
	pending bool // whoever brings the proof will tell

	writing sync.Mutex // held while the above is used
	mu      sync.Mutex
	ready   error
}

var errStarting = errors.New("the layers have not been checked yet")

// New returns a Daemon that has not started.
func New(c Config) *Daemon {
	d := &Daemon{Config: c, written: map[readiness.Layer]string{}, stand: map[readiness.Layer]check.Outcome{}, names: map[gpu.UUID]string{},
		ready: errStarting, retry: firstRetry}
	d.state, d.unsaid = d.recall(), true
	d.Road.Driver = d.learn(c.Road.Driver)
	d.Road.End = d.early
	d.Road.Steps = append([]check.Step(nil), c.Road.Steps...)
	for i, s := range d.Road.Steps {
		if s.Layer == readiness.CUDA {
			d.Road.Steps[i].Check = d.shown(remember(s.Check))
		}
	}
	return d
}

// Ready says why the node is not ready, nil when all layers are proven or
// there is nothing to prove. It may be called from any goroutine.
func (d *Daemon) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready
}

func (d *Daemon) setReady(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = err
}

// Run works until ctx ends, and then leaves the proofs as they are: what was
// proven stays true without the daemon.
func (d *Daemon) Run(ctx context.Context) error {
	if !d.clearStale() {
		d.known = []check.Outcome{} // else what was said of this boot stands until it is known better
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	group.Go(func() error {
		return Watch(ctx, d.Node, func() {
			// What components say is news by itself: a check takes its time, and
			// one that asks a GPU that hangs takes minutes.
			d.tellAgain()
			select {
			case changed <- struct{}{}:
			default: // one is on its way already
			}
		})
	})
	group.Go(func() error { return d.loop(ctx, changed) })
	if d.Witness != nil {
		group.Go(func() error { return d.listen(ctx) })
	}
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (d *Daemon) loop(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-d.News:
		case <-d.NodeNews:
		case <-d.retryTimer():
		}
		outcomes := d.Road.Run(ctx, d.Node, nil)
		if ctx.Err() != nil {
			return ctx.Err() // a check that was cut off says nothing
		}
		d.record(outcomes)
	}
}

// retryTimer fires when it is time to look again, or never.
func (d *Daemon) retryTimer() <-chan time.Time {
	if d.failing == "" || d.pending {
		return nil
	}
	return time.After(d.retry)
}

// clearStale removes what an earlier boot, or somebody else, left. It says
// whether something is left that is of this boot.
func (d *Daemon) clearStale() (some bool) {
	for _, l := range readiness.Layers() {
		_, err := readiness.Read(d.OutputDir, l, d.Node.BootID)
		some = some || err == nil
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		d.Log.Info("removed what was left of an earlier time", "layer", l, "message", err.Error())
		if err := readiness.Clear(d.OutputDir, l); err != nil {
			d.Log.Error("cannot remove a stale proof", "layer", l, "message", err.Error())
		}
	}
	for _, l := range readiness.Optional() {
		if slices.ContainsFunc(d.Road.Steps, func(s check.Step) bool { return s.Layer == l }) {
			continue
		}
		if err := readiness.Clear(d.OutputDir, l); err != nil { // nobody asks for it any more
			d.Log.Error("cannot remove a stale proof", "layer", l, "message", err.Error())
		}
	}
	return some
}

// learn remembers how GPUs are called, also of one that is lost later, and what the
// driver finds wrong with them.
func (d *Daemon) learn(run func(context.Context, check.Node) (check.Driver, check.Outcome)) func(context.Context, check.Node) (check.Driver, check.Outcome) {
	return func(ctx context.Context, node check.Node) (check.Driver, check.Outcome) {
		driver, o := run(ctx, node)
		d.writing.Lock()
		defer d.writing.Unlock()
		names := check.Names(driver.GPUs)
		if len(d.names) < maxNames {
			all := maps.Clone(d.names) // the old one was handed over
			maps.Copy(all, names)
			names = all
		}
		d.names = names
		d.faults = map[gpu.UUID]gpu.Fault{}
		for _, g := range driver.GPUs {
			if g.Fault != (gpu.Fault{}) {
				d.faults[g.UUID] = g.Fault
			}
		}
		return driver, o
	}
}

// maxNames bounds the names that are remembered: MIG devices have new ones each
// time their GPU is divided.
const maxNames = 1024

// tellAgain hands over what is known.
func (d *Daemon) tellAgain() {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.known != nil {
		d.tellAll()
	}
}

// listen hands over what the witness finds: no layer is checked for it.
func (d *Daemon) listen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.Witness.News():
			d.tellAgain()
		}
	}
}

// shown has the witness told each time that layer cuda is found to be proven.
func (d *Daemon) shown(run func(context.Context, check.Node, check.Driver) check.Outcome) func(context.Context, check.Node, check.Driver) check.Outcome {
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		o := run(ctx, node, driver)
		if d.Witness != nil && o.Kind == check.Passed {
			d.Witness.Proven(driver)
		}
		return o
	}
}

func (d *Daemon) tellAll() {
	if d.Tell == nil || d.retired {
		return
	}
	f := voice.Facts{Outcomes: d.known, States: map[nodestate.Component]nodestate.State{}, Names: d.names, Faults: d.faults}
	for _, c := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin} {
		if s, err := d.Node.State(c); err == nil {
			f.States[c] = s
		}
	}
	if d.Witness != nil {
		f.Witness = d.Witness.Result()
	}
	d.Tell(f)
}

// early writes an outcome as soon as it is known: the layers above may take
// their time. What cannot be written is told by record.
func (d *Daemon) early(o check.Outcome) {
	d.writing.Lock()
	defer d.writing.Unlock()
	_ = d.write(d.standing(o))
	if d.Witness != nil && o.Layer == readiness.CUDA && o.Kind != check.Passed {
		d.Witness.Withdraw()
	}
}

// standing is the outcome to go by: what was proven holds while another proof is
// on its way.
func (d *Daemon) standing(o check.Outcome) check.Outcome {
	if before := d.stand[o.Layer]; o.Kind == check.Pending && before.Kind == check.Passed {
		return before
	}
	return o
}

// Retire makes reason the last word of this process, which ends so that its
// container is created anew.
func (d *Daemon) Retire(reason gpu.Reason, message string) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.retired {
		return
	}
	r := readiness.Refusal{BootID: d.Node.BootID, Reason: reason, Message: message, Action: "nothing: the kubelet creates the container anew"}
	if reason == check.ReasonInjection {
		// Nothing is proven from in here; one that finds out, in an endless
		// loop, why, is to be found in the cluster as well.
		d.known = []check.Outcome{{Layer: readiness.Driver, Kind: check.Failed, Refusal: &r}}
		if err := readiness.WriteNotReady(d.OutputDir, readiness.Driver, r); err != nil {
			d.Log.Error("cannot write down why this process ends", "message", err.Error())
		}
		d.tellAll()
	}
	d.retired = true
	if err := d.say(nodestate.State{Phase: nodestate.Waiting, Reason: reason, Message: message}); err != nil {
		d.Log.Error("cannot write down why this process ends", "message", err.Error())
	}
}

// record writes what came out wherever it differs from what is written.
func (d *Daemon) record(found []check.Outcome) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.retired {
		return
	}
	var wrong, failing []string
	var outcomes []check.Outcome
	d.pending = false
	for _, o := range found {
		d.Metrics.observe(o)
		d.pending = d.pending || o.Kind == check.Pending
		if o.Kind == check.Failed || o.Again {
			failing = append(failing, complaint(o))
		}
		o = d.standing(o)
		outcomes = append(outcomes, o)
		if err := d.write(o); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if err := d.writeState(outcomes); err != nil {
		wrong = append(wrong, err.Error())
	}
	if len(wrong) > 0 {
		failing = append(failing, wrong...)
	}
	d.known = outcomes
	d.tellAll()
	now := strings.Join(failing, "\n")
	if now != d.failing {
		for _, w := range wrong {
			d.Log.Error("cannot write down what was found", "message", w)
		}
		d.failing, d.retry = now, firstRetry
	} else {
		d.retry = min(2*d.retry, lastRetry)
	}
	switch failed := firstUnproven(outcomes); {
	case len(wrong) > 0:
		d.setReady(errors.New(strings.Join(wrong, "; ")))
	case failed != nil:
		d.setReady(fmt.Errorf("%s: %s: %s", failed.Layer, failed.Refusal.Reason, failed.Refusal.Message))
	default:
		d.setReady(nil)
	}
}

func (d *Daemon) write(o check.Outcome) error {
	now := signature(o)
	if d.retired || d.written[o.Layer] == now && d.stands(o) {
		return nil
	}
	news := d.written[o.Layer] != now
	var err error
	if o.Proof != nil {
		p := *o.Proof
		p.BootID = d.Node.BootID
		err = readiness.WriteReady(d.OutputDir, o.Layer, p)
	} else {
		r := *o.Refusal
		r.BootID = d.Node.BootID
		err = readiness.WriteNotReady(d.OutputDir, o.Layer, r)
	}
	if err != nil {
		delete(d.written, o.Layer)
		return err
	}
	d.written[o.Layer], d.stand[o.Layer] = now, o
	if news {
		d.tell(o)
	}
	return nil
}

// stands says whether what was written is still there.
func (d *Daemon) stands(o check.Outcome) bool {
	s, err := readiness.Read(d.OutputDir, o.Layer, d.Node.BootID)
	return err == nil && (s.Proof != nil) == (o.Proof != nil)
}

func (d *Daemon) tell(o check.Outcome) {
	if o.Kind == check.Absent && o.Layer != readiness.Driver {
		return // said once
	}
	log := d.Log.With("layer", o.Layer, "duration", o.Elapsed.Round(time.Millisecond))
	switch o.Kind {
	case check.Passed:
		log.Info("ready", "message", o.Proof.Summary, "simulated", o.Simulated(), "notes", strings.Join(o.Notes, "; "))
	case check.Failed:
		log.Warn("not ready", "reason", o.Refusal.Reason, "message", o.Refusal.Message, "action", o.Refusal.Action)
	default:
		log.Info("not ready", "reason", o.Refusal.Reason, "message", o.Refusal.Message)
	}
}

func (d *Daemon) writeState(outcomes []check.Outcome) error {
	s := nodestate.State{Phase: nodestate.Ready}
	if p := outcomes[0].Proof; p != nil {
		s.Driver = p.Driver
	}
	for _, o := range outcomes {
		if o.Kind == check.Passed {
			s.Message = "all layers are proven"
			continue
		}
		s.Phase, s.Reason = nodestate.Failed, o.Refusal.Reason
		s.Message = fmt.Sprintf("%s: %s; %s", o.Layer, o.Refusal.Message, o.Refusal.Action)
		if o.Kind == check.Absent || o.Kind == check.Pending {
			s.Phase, s.Message = nodestate.Waiting, o.Refusal.Message
		}
		break
	}
	return d.say(s)
}

func firstUnproven(outcomes []check.Outcome) *check.Outcome {
	for i, o := range outcomes {
		if o.Kind == check.Failed || o.Kind == check.Pending {
			return &outcomes[i]
		}
	}
	return nil
}

// complaint is what a failure has to have in common with the last for retries to
// slow down: not the message, in which a runtime names a new container each time.
func complaint(o check.Outcome) string {
	if o.Refusal == nil {
		return string(o.Layer)
	}
	return string(o.Layer) + " " + string(o.Refusal.Reason)
}

// signature is what makes one outcome another: all but when and how long.
func signature(o check.Outcome) string {
	if p := o.Proof; p != nil {
		driver := nodestate.DriverInfo{}
		if p.Driver != nil { // none is under an optional layer
			driver = *p.Driver
		}
		return fmt.Sprintf("ready %+v %s %s %d %v %q %q", driver, p.HostRoot, p.DevRoot, p.GPUs, p.Resources, p.Summary, o.Notes)
	}
	return fmt.Sprintf("not ready %s %q %q", o.Refusal.Reason, o.Refusal.Message, o.Refusal.Action)
}

// remember keeps the CUDA step from loading GPUs that pods use each time a
// state file changes: what was proven holds for the same driver files and GPUs.
func remember(run func(context.Context, check.Node, check.Driver) check.Outcome) func(context.Context, check.Node, check.Driver) check.Outcome {
	var proven string
	var last check.Outcome
	return func(ctx context.Context, node check.Node, driver check.Driver) check.Outcome {
		about := driver.Subject()
		if proven != "" && proven == about {
			return last
		}
		last, proven = run(ctx, node, driver), ""
		if last.Kind == check.Passed {
			proven = about
		}
		return last
	}
}
