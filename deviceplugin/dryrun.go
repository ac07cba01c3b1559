package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
)

// dryRunTimeout bounds devices: a driver that hangs must not hang a terminal.
const dryRunTimeout = time.Minute

// deviceList is the output of devices.
type deviceList struct {
	Devices []listedDevice  `json:"devices"`
	Left    []leftOutDevice `json:"leftOut"`
}

// listedDevice is a GPU or MIG device that would be advertised.
type listedDevice struct {
	Resource string   `json:"resource"`
	ID       string   `json:"id"`       // for replicas without their number
	Replicas int      `json:"replicas"` // number of devices for the kubelet; 1 if not shared
	Index    string   `json:"index"`    // "3", "3:0" for a MIG device
	Product  string   `json:"product"`
	Profile  string   `json:"profile,omitempty"`
	PCI      string   `json:"pci"`
	NUMANode int      `json:"numaNode"` // -1: unknown
	Healthy  bool     `json:"healthy"`
	Reason   string   `json:"reason,omitempty"`
	Message  string   `json:"message,omitempty"`
	CDI      []string `json:"cdiDevices"`
}

// leftOutDevice is a GPU or MIG device that would not be advertised.
type leftOutDevice struct {
	ID      string `json:"id"` // "": the driver does not report it
	Index   string `json:"index"`
	Product string `json:"product"`
	Profile string `json:"profile,omitempty"`
	PCI     string `json:"pci"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// runDevices runs the devices subcommand.
func (o *options) runDevices(ctx context.Context, stdout, stderr io.Writer) int {
	o, err := o.resolve()
	if err != nil {
		return fail(stderr, exitUsage, err)
	}
	if err := o.printDevices(ctx, stdout); err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

// printDevices prints what would be advertised.
func (o *options) printDevices(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	would, _, err := o.computePlan(ctx)
	if err != nil {
		return err
	}
	all := newDeviceList(would)
	if o.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return all.table(w)
}

// computePlan returns what would be advertised according to the driver now, without the
// health that an earlier plugin remembers.
func (o *options) computePlan(ctx context.Context) (would plan.Plan, snap gpu.Snapshot, err error) {
	opened, err := o.open(o.driverPlace(), o.logger(io.Discard), nil)
	if err != nil {
		return plan.Plan{}, gpu.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, opened.Source.Close()) }()
	if snap, err = opened.Source.Snapshot(ctx); err != nil {
		return plan.Plan{}, gpu.Snapshot{}, err
	}
	return plan.Compute(o.config, snap, health.New(gpu.Fault{}).ApplySnapshot(snap, time.Now())), snap, nil
}

func newDeviceList(p plan.Plan) deviceList {
	all := deviceList{Devices: []listedDevice{}, Left: []leftOutDevice{}}
	for _, r := range p.Resources {
		for _, d := range r.Devices {
			if d.Replica > 0 {
				continue
			}
			all.Devices = append(all.Devices, listedDevice{
				Resource: r.Name, ID: string(d.UUID()), Replicas: max(d.Replicas, 1), Index: d.IndexID(), Product: d.Product, Profile: d.MIG.Profile,
				PCI: string(d.PCI), NUMANode: d.NUMANode, Healthy: d.Healthy(), Reason: string(d.Fault.Reason), Message: d.Fault.Message,
				CDI: []string{cdi.GPUName(d.UUID())},
			})
		}
	}
	for _, l := range p.LeftOut {
		one := leftOutDevice{
			ID: string(l.GPU), Index: strconv.Itoa(l.Index), Product: l.Product, Profile: l.MIG.Profile, PCI: string(l.PCI),
			Reason: string(l.Reason), Message: l.Message,
		}
		if l.MIG != (gpu.MIGDevice{}) {
			one.ID, one.Index = string(l.MIG.UUID), one.Index+":"+strconv.Itoa(l.MIG.Index)
		}
		all.Left = append(all.Left, one)
	}
	return all
}

func (p deviceList) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	switch {
	case len(p.Devices) > 0:
		fmt.Fprintln(t, "RESOURCE\tID\tREPLICAS\tINDEX\tPRODUCT\tPROFILE\tPCI\tNUMA\tHEALTH")
	case len(p.Left) > 0:
		fmt.Fprintln(t, "nothing would be advertised")
	default:
		fmt.Fprintln(t, "the driver shows no GPU on this node: nothing would be advertised")
	}
	for _, d := range p.Devices {
		state := "Healthy"
		if !d.Healthy {
			state = "Unhealthy: " + d.Reason + ": " + d.Message
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\n", d.Resource, d.ID, d.Replicas, d.Index, d.Product, cmp.Or(d.Profile, "-"), d.PCI, d.NUMANode, state)
	}
	if err := t.Flush(); err != nil || len(p.Left) == 0 {
		return err
	}
	fmt.Fprintln(t, "\nLEFT OUT\tINDEX\tPRODUCT\tPROFILE\tPCI\tWHY")
	for _, l := range p.Left {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s: %s\n", cmp.Or(l.ID, "?"), l.Index, cmp.Or(l.Product, "?"), cmp.Or(l.Profile, "-"), l.PCI, l.Reason, l.Message)
	}
	return t.Flush()
}
