package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
)

// dryRunTimeout bounds --dry-run: a driver that hangs must not hang a terminal.
const dryRunTimeout = time.Minute

// printed is a device as --dry-run prints it.
type printed struct {
	Resource string   `json:"resource"`
	ID       string   `json:"id"`
	Index    int      `json:"index"`
	Product  string   `json:"product"`
	PCI      string   `json:"pci"`
	NUMANode int      `json:"numaNode"` // -1: unknown
	Healthy  bool     `json:"healthy"`
	Reason   string   `json:"reason,omitempty"`
	Message  string   `json:"message,omitempty"`
	CDI      []string `json:"cdiDevices"`
}

// printDevices prints what would be advertised, as the driver shows it now: what
// an earlier plugin remembers of the GPUs' health is left out.
func (o *options) printDevices(ctx context.Context, w io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	opened, err := o.open(o.place(), o.logger(io.Discard))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Source.Close()) }()
	snap, err := opened.Source.Snapshot(ctx)
	if err != nil {
		return err
	}
	devices := []printed{}
	for _, d := range plan.Devices(health.New(gpu.Fault{}).See(snap, time.Now())) {
		devices = append(devices, printed{
			Resource: plugin.Resource, ID: d.ID, Index: d.Index, Product: d.Product, PCI: string(d.PCI), NUMANode: d.NUMANode,
			Healthy: d.Healthy(), Reason: string(d.Fault.Reason), Message: d.Fault.Message,
			CDI: []string{cdi.GPUName(d.GPU)},
		})
	}
	if o.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(devices)
	}
	if len(devices) == 0 {
		_, err := fmt.Fprintln(w, "the driver shows no GPU on this node: nothing would be advertised")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tID\tINDEX\tPRODUCT\tPCI\tNUMA\tHEALTH")
	for _, d := range devices {
		state := "Healthy"
		if !d.Healthy {
			state = "Unhealthy: " + d.Reason + ": " + d.Message
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%d\t%s\n", d.Resource, d.ID, d.Index, d.Product, d.PCI, d.NUMANode, state)
	}
	return t.Flush()
}
