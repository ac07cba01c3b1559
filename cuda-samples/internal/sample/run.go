package sample

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

// Run is one run of a sample. A run that exceeds its time limit goes on in the background;
// its output from then on is neither printed nor reported.
type Run struct {
	// Driver is libcuda, set by Open, for samples that use devices besides the one of --device.
	Driver *driver.Driver

	device  string // the value of --device
	release func() error
	last    time.Time // the end of the last phase

	mu     sync.Mutex // guards the following fields
	out    io.Writer
	report *Report
	done   float64 // the share of the work that is done, 0 to 1
	what   string  // what runs now
}

// Open opens the driver and makes the context of the requested device current on the calling
// thread, until the sample's Run returns. It records the phases init and context.
func (r *Run) Open() (*driver.Device, error) {
	var err error
	if r.Driver, err = driver.Open(); err != nil {
		return nil, err
	}
	cuda, err := r.Driver.Version()
	if err != nil {
		return nil, err
	}
	r.update(func(p *Report) { p.Simulated, p.CUDA = r.Driver.Simulated(), cuda })
	d, err := r.Driver.Find(r.device)
	if err != nil {
		return nil, err
	}
	r.update(func(p *Report) { p.Device, p.UUID, p.PCI, p.Capability = d.Name, d.UUID, d.PCI, d.Capability() })
	r.EndPhase("init")
	if r.release, err = d.Use(); err != nil {
		return nil, err
	}
	r.EndPhase("context")
	return d, nil
}

// close releases the device, and joins the error of that to err.
func (r *Run) close(err error) error {
	if r.release == nil {
		return err
	}
	return errors.Join(err, r.release())
}

// Simulated reports, after Open, whether the driver is a simulator without a GPU. Speeds
// then mean nothing, and default sizes have to be small.
func (r *Run) Simulated() bool { return r.Driver != nil && r.Driver.Simulated() }

// Printf prints for people. With -o json it prints nothing.
func (r *Run) Printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

// EndPhase ends a part of the work and records its seconds. Phases with the same name are
// summed up.
func (r *Run) EndPhase(name string) {
	now := time.Now()
	r.update(func(p *Report) { p.Seconds[name] += now.Sub(r.last).Seconds() })
	r.last = now
}

// Progress sets how much of the run is done, 0 to 1, and what runs now ("summing 1000
// elements"). It may be called often: the framework shows the latest values once a second.
func (r *Run) Progress(done float64, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done, r.what = done, what
}

func (r *Run) progress() (float64, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done, r.what
}

// Field adds a field of the sample's own to the report: "elements", 50000.
func (r *Run) Field(name string, value any) { r.update(func(p *Report) { p.own[name] = value }) }

// Note prints a line about skipped work, with the reason, and adds it to the report.
func (r *Run) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Printf("%s\n", text)
	r.update(func(p *Report) { p.Notes = append(p.Notes, text) })
}

// Figure prints a speed and adds it to the report. With a simulated driver the
// value is 0, since speeds mean nothing there. The unit is B/s or FLOP/s; peak is 0 where it is unknown.
func (r *Run) Figure(name string, value float64, unit string, peak float64) {
	f := Figure{Name: name, Value: value, Unit: unit, Peak: peak}
	if r.Simulated() {
		f.Value, f.Peak = 0, 0
	}
	r.Printf("%s\n", f)
	r.update(func(p *Report) { p.Figures = append(p.Figures, f) })
}

// Peer adds a link between devices to the report. With a simulated driver its value is 0.
func (r *Run) Peer(p Peer) {
	if r.Simulated() {
		p.Value = 0
	}
	r.update(func(report *Report) { report.Peers = append(report.Peers, p) })
}

func (r *Run) update(change func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.report)
}

// abandon discards further output and returns the report so far.
func (r *Run) abandon() *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out = io.Discard
	return r.report.clone()
}
