package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

// devicesTimeout bounds devices: a driver that hangs must not hang a terminal.
const devicesTimeout = time.Minute

// deviceList is the output of devices.
type deviceList struct {
	Serve   string          `json:"serve"` // plugin or dra: who would offer the devices to pods
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

// devicesCommand prints what would be advertised.
func (c *commands) devicesCommand(ctx context.Context, args []string) error {
	return c.runMode(ctx, settings.PrintDevices, args)
}

func (c *commands) printDevices(ctx context.Context, o *settings.Options) error {
	o, err := o.Resolve()
	if err != nil {
		return c.fail(program.Usage, err)
	}
	ctx, cancel := context.WithTimeout(ctx, devicesTimeout)
	defer cancel()
	advertised, _, err := computePlan(ctx, o)
	if err != nil {
		return c.fail(program.Failed, err)
	}
	all := newDeviceList(o.Serve, advertised)
	if o.Output == "json" {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(all)
	} else {
		err = all.writeTable(c.stdout)
	}
	if err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

// computePlan returns what would be advertised according to the driver now. Faults that a running
// plugin has recorded do not count.
func computePlan(ctx context.Context, o *settings.Options) (advertised plan.Plan, snap gpu.Snapshot, err error) {
	opened, err := openDriver(driver.Place{HostRoot: o.HostRoot, Root: *o.Config.Flags.NvidiaDriverRoot}, nil, slog.New(slog.DiscardHandler), nil, false)
	if err != nil {
		return plan.Plan{}, gpu.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, opened.Source.Close()) }()
	if snap, err = opened.Source.Snapshot(ctx); err != nil {
		return plan.Plan{}, gpu.Snapshot{}, err
	}
	return plan.Compute(o.Config, snap, health.New(gpu.Fault{}).ApplySnapshot(snap, time.Now())), snap, nil
}

// newDeviceList returns a plan in the form to print.
func newDeviceList(serve string, p plan.Plan) deviceList {
	all := deviceList{Serve: serve, Devices: []listedDevice{}, Left: []leftOutDevice{}}
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
		device := leftOutDevice{
			ID: string(l.GPU), Index: strconv.Itoa(l.Index), Product: l.Product, Profile: l.MIG.Profile, PCI: string(l.PCI),
			Reason: string(l.Reason), Message: l.Message,
		}
		if l.MIG != (gpu.MIGDevice{}) {
			device.ID, device.Index = string(l.MIG.UUID), device.Index+":"+strconv.Itoa(l.MIG.Index)
		}
		all.Left = append(all.Left, device)
	}
	return all
}

// writeTable prints the list for people.
func (p deviceList) writeTable(w io.Writer) error {
	if p.Serve == nodestate.ServeDRA {
		fmt.Fprint(w, "With --serve=dra the kubelet gets none of these; gpu-dra-driver devices prints what it offers.\n\n")
	}
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
