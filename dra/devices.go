package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/dra/claim"
	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/dra/plugin"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

const devicesUsage = `Print the devices that gpu-dra-driver publishes for this node, by the state of gpu-device-plugin now.

Usage:
  gpu-dra-driver devices [flags]

Examples:
  gpu-dra-driver devices
  gpu-dra-driver devices -o json | jq '.devices[].attributes.productName'
`

// deviceList is the output of devices -o json.
type deviceList struct {
	Driver  string               `json:"driver"`
	Pool    string               `json:"pool"`
	Why     string               `json:"why,omitempty"` // there is no device
	Devices []resourceapi.Device `json:"devices"`
}

func printDevices(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("devices", devicesUsage, stdout)
	output := ""
	o.flags.StringVarP(&output, "output", "o", "table", "table or json")
	if err := o.read(args); err != nil {
		return err
	}
	if output != "table" && output != "json" {
		return program.UsageErrorf("--output %q: want table or json", output)
	}
	inv, err := o.readInventory()
	if err != nil {
		return err
	}
	if output == "json" {
		list := deviceList{Driver: inventory.Driver, Pool: o.nodeName, Why: inv.Why.String(), Devices: []resourceapi.Device{}}
		for _, d := range inv.Devices {
			list.Devices = append(list.Devices, d.API)
		}
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	return writeTable(stdout, inv)
}

// readInventory reads the device plugin's state.
func (o *options) readInventory() (inventory.Inventory, error) {
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return inventory.Inventory{}, err
	}
	s, err := nodestate.ReadBoot(filepath.Join("/", o.hostRoot, o.stateDir, string(nodestate.DevicePlugin)), boot)
	if nodestate.IsAbsent(err) {
		return inventory.New(nodestate.State{}, inventory.Problem{}, nil), nil
	}
	if err != nil {
		return inventory.Inventory{}, fmt.Errorf("%w; next: see the log of gpu-device-plugin", err)
	}
	record := claim.Store{Path: filepath.Join(plugin.Config{KubeletDir: o.kubeletDir}.DataDir(), "checkpoint.json"), BootID: boot}
	own, _, err := record.Own(s)
	if errors.Is(err, fs.ErrPermission) {
		return inventory.Inventory{}, fmt.Errorf("%w; next: run it as root", err)
	}
	if err != nil {
		return inventory.Inventory{}, err
	}
	return inventory.New(s, inventory.Problem{}, readPCIeRoot, own...), nil
}

// writeTable prints the devices for people.
func writeTable(w io.Writer, inv inventory.Inventory) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(inv.Devices) == 0 {
		fmt.Fprintln(t, "no device is published: "+cmp.Or(inv.Why.String(), "this node has no GPU"))
		return t.Flush()
	}
	fmt.Fprintln(t, "DEVICE\tUUID\tPRODUCT\tPROFILE\tMEMORY\tSHARES\tHEALTH")
	for _, d := range inv.Devices {
		text := func(name resourceapi.QualifiedName) string {
			if a := d.API.Attributes[name]; a.StringValue != nil {
				return *a.StringValue
			}
			return "-"
		}
		capacity := func(name resourceapi.QualifiedName) string {
			c, found := d.API.Capacity[name]
			if !found {
				return "-"
			}
			return c.Value.String()
		}
		health := "Healthy"
		if d.Fault.Health == nodestate.Unhealthy {
			health = fmt.Sprintf("Unhealthy: %s: %s", d.Fault.Reason, d.Fault.Message)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, d.UUID, text("productName"), text("profile"), capacity("memory"), capacity(inventory.CapacityShares), health)
	}
	return t.Flush()
}
