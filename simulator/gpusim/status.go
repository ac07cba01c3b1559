package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
)

func status() command {
	return command{
		name:    "status",
		summary: "show a driver root and the state of its GPUs",
		text: `
The numbers of the GPUs are those that --gpu takes. They are NVML's indexes, too,
unless a GPU is gone: then NVML's move down, and these do not.`,
		example: "gpusim status --root /tmp/driver\ngpusim status -o json | jq -r '.gpus[] | select(.lost) | .uuid'",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.outputFlag()
			return c.status
		},
	}
}

type driverStatus struct {
	Root        string          `json:"root"`
	Profile     string          `json:"profile"`
	Driver      string          `json:"driver"` // version of the libraries
	Module      string          `json:"module"` // of the kernel module
	CUDA        string          `json:"cuda"`
	DeviceNodes string          `json:"deviceNodes"` // "nodes", or "files" that stand in for them
	Events      uint64          `json:"events"`      // so far
	InitError   string          `json:"initError,omitempty"`
	EventError  string          `json:"eventError,omitempty"`
	MIGError    string          `json:"migError,omitempty"`
	InitCost    string          `json:"initCost,omitempty"` // as gpusim cost takes it
	CallCost    string          `json:"callCost,omitempty"`
	Refused     []refusedStatus `json:"refused,omitempty"` // as gpusim refuse takes it
	GPUs        []gpuStatus     `json:"gpus"`
}

type refusedStatus struct {
	Call  string `json:"call"`
	GPU   *int   `json:"gpu,omitempty"`
	Code  string `json:"code,omitempty"`
	Delay string `json:"delay,omitempty"`
}

type gpuStatus struct {
	Index       int         `json:"index"`
	UUID        string      `json:"uuid"`
	Name        string      `json:"name"`
	PCI         string      `json:"pci"`
	Minor       uint32      `json:"minor"`
	NUMANode    int32       `json:"numaNode"`
	MemoryBytes uint64      `json:"memoryBytes"`
	Lost        string      `json:"lost,omitempty"`
	Recovery    uint32      `json:"recoveryAction,omitempty"` // nvmlDeviceGpuRecoveryAction_t
	Corrected   uint64      `json:"eccCorrected,omitempty"`   // volatile, of all locations
	Uncorrected uint64      `json:"eccUncorrected,omitempty"`
	Memfault    string      `json:"memfault,omitempty"`
	WrongEvery  uint64      `json:"wrongEvery,omitempty"`
	PCIeGen     uint32      `json:"pcieGen,omitempty"` // to which the link has fallen
	PCIeWidth   uint32      `json:"pcieWidth,omitempty"`
	Throttle    []string    `json:"throttle,omitempty"`
	LinksDown   []uint32    `json:"linksDown,omitempty"`
	Fabric      string      `json:"fabric,omitempty"` // as gpusim fabric takes it
	Load        uint32      `json:"load,omitempty"`   // percent
	ComputeMode string      `json:"computeMode,omitempty"`
	Processes   []uint32    `json:"processes,omitempty"` // PIDs
	MIG         bool        `json:"mig"`
	MIGDevices  []migStatus `json:"migDevices,omitempty"`
}

type migStatus struct {
	Index           uint32 `json:"index"`
	UUID            string `json:"uuid"`
	Profile         string `json:"profile"`
	GPUInstance     uint32 `json:"gpuInstance"`
	ComputeInstance uint32 `json:"computeInstance"`
}

func (c *call) status() error {
	r := c.driver()
	m, err := r.Manifest()
	if err != nil {
		return err
	}
	f, err := r.Open()
	if err != nil {
		return err
	}
	var s state.State
	f.Read(&s)
	d := describe(&s, m)
	d.Root, d.Events = *c.root, f.EventCount()
	if err := f.Close(); err != nil {
		return err
	}
	return c.print(d, d.text)
}

func describe(s *state.State, m *root.Manifest) *driverStatus {
	d := &driverStatus{
		Profile: state.Text(s.Profile[:]), Driver: m.Version, Module: state.Text(s.ModuleVersion[:]),
		CUDA: fmt.Sprintf("%d.%d", s.CudaVersion/1000, s.CudaVersion%1000/10), DeviceNodes: "nodes",
	}
	if m.Plain {
		d.DeviceNodes = "files"
	}
	if s.InitError != 0 {
		d.InitError = state.ErrorName(s.InitError)
	}
	if s.EventError != 0 {
		d.EventError = state.ErrorName(s.EventError)
	}
	if s.MigError != 0 {
		d.MIGError = state.ErrorName(s.MigError)
	}
	if p := priceOf(s); p != (price{}) {
		d.InitCost, d.CallCost = p.init.String(), p.call.String()
	}
	for _, r := range s.Rules() {
		line := refusedStatus{Call: state.Text(r.Call[:])}
		if r.Gpu != state.None {
			line.GPU = new(int(r.Gpu))
		}
		if r.Code != 0 {
			line.Code = state.ErrorName(r.Code)
		}
		if r.Delay != 0 {
			line.Delay = time.Duration(r.Delay).String()
		}
		d.Refused = append(d.Refused, line)
	}
	for i, g := range s.GPUs() {
		line := gpuStatus{
			Index: i, UUID: state.Text(g.Uuid[:]), Name: state.Text(g.Name[:]), PCI: g.Pci.Address(), Minor: g.Minor,
			NUMANode: g.NumaNode, MemoryBytes: g.MemoryTotal, Lost: state.LostWay(g.Lost), Recovery: g.RecoveryAction,
			Corrected: sum(g.EccVolatile[0]), Uncorrected: sum(g.EccVolatile[1]), MIG: g.MigCurrent != 0,
			WrongEvery: g.WrongEvery, PCIeGen: g.PcieGenLimit, PCIeWidth: g.PcieWidthLimit, Throttle: state.ThrottleNames(g.Throttle), Load: g.Load,
			ComputeMode: state.ComputeModeName(g.ComputeMode), Fabric: g.DescribeFabric(),
		}
		for _, p := range g.Proc {
			if p.Used != 0 {
				line.Processes = append(line.Processes, p.Pid)
			}
		}
		if g.MemfaultKind != state.MemfaultNone {
			line.Memfault = state.MemfaultName(g.MemfaultKind)
		}
		for l := range g.Nlinks {
			if g.LinksDown>>l&1 != 0 {
				line.LinksDown = append(line.LinksDown, l)
			}
		}
		for _, ci := range g.Ci {
			if ci.Used != 0 {
				line.MIGDevices = append(line.MIGDevices, migStatus{ci.Index, state.Text(ci.Uuid[:]), state.Text(ci.Name[:]), ci.Gi, ci.Id})
			}
		}
		d.GPUs = append(d.GPUs, line)
	}
	return d
}

func sum(counters [state.ECCLocations]uint64) (total uint64) {
	for _, n := range counters {
		total += n
	}
	return total
}

// text prints the status as a table.
func (d *driverStatus) text(out io.Writer) {
	fmt.Fprintf(out, "%s: simulated driver %s, CUDA %s, machine %s\n", d.Root, d.Driver, d.CUDA, d.Profile)
	if d.Module != d.Driver {
		fmt.Fprintf(out, "the kernel module is %s: NVML answers with a version mismatch\n", d.Module)
	}
	if d.InitError != "" {
		fmt.Fprintf(out, "nvmlInit fails: %s\n", d.InitError)
	}
	if d.EventError != "" {
		fmt.Fprintf(out, "calls about events fail: %s\n", d.EventError)
	}
	if d.MIGError != "" {
		fmt.Fprintf(out, "creating compute instances fails: %s\n", d.MIGError)
	}
	if d.InitCost != "" {
		fmt.Fprintf(out, "nvmlInit takes %s, every other call of NVML %s\n", d.InitCost, d.CallCost)
	}
	for _, r := range d.Refused {
		fmt.Fprint(out, r.Call)
		if r.GPU != nil {
			fmt.Fprintf(out, " of GPU %d", *r.GPU)
		}
		if r.Delay != "" {
			fmt.Fprintf(out, " takes %s", r.Delay)
		}
		if r.Code != "" {
			fmt.Fprintf(out, " answers %s", r.Code)
		}
		fmt.Fprintln(out)
	}
	if d.DeviceNodes == "files" {
		fmt.Fprintln(out, "plain files stand in for the device nodes")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GPU\tUUID\tPCI\tNUMA\tSTATE\tNAME")
	for _, g := range d.GPUs {
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\n", g.Index, g.UUID, g.PCI, g.NUMANode, g.condition(), g.Name)
		for _, m := range g.MIGDevices {
			fmt.Fprintf(table, " %d.%d\t%s\tGI %d CI %d\t\t\tMIG %s\n", g.Index, m.Index, m.UUID, m.GPUInstance, m.ComputeInstance, m.Profile)
		}
	}
	table.Flush() //nolint:errcheck // the terminal's or pipe's failure shows in the next write, too
}

// condition describes in a few words what is wrong with the GPU.
func (g gpuStatus) condition() string {
	var parts []string
	if g.Lost != "" {
		parts = append(parts, "lost ("+g.Lost+")")
	}
	if g.Uncorrected > 0 {
		parts = append(parts, fmt.Sprintf("ECC %d uncorrected", g.Uncorrected))
	} else if g.Corrected > 0 {
		parts = append(parts, fmt.Sprintf("ECC %d corrected", g.Corrected))
	}
	if g.Memfault != "" {
		parts = append(parts, "memory fault ("+g.Memfault+")")
	}
	if g.WrongEvery > 0 {
		parts = append(parts, fmt.Sprintf("computes wrong (1 in %d)", g.WrongEvery))
	}
	if g.PCIeGen > 0 || g.PCIeWidth > 0 {
		parts = append(parts, "slow PCIe link")
	}
	if g.Throttle != nil {
		parts = append(parts, "clocks held down ("+strings.Join(g.Throttle, ", ")+")")
	}
	if n := len(g.LinksDown); n > 0 {
		parts = append(parts, fmt.Sprintf("%d NVLinks down", n))
	}
	if g.Fabric != "" {
		parts = append(parts, "fabric ("+g.Fabric+")")
	}
	if g.Recovery != 0 {
		parts = append(parts, "needs reset")
	}
	if g.ComputeMode != "" {
		parts = append(parts, g.ComputeMode)
	}
	if n := len(g.Processes); n > 0 {
		parts = append(parts, fmt.Sprintf("%d processes", n))
	}
	if g.MIG {
		parts = append(parts, "MIG")
	}
	if parts == nil {
		return "ok"
	}
	return strings.Join(parts, ", ")
}
