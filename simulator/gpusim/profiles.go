package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

func profiles() command {
	return command{
		name:    "profiles",
		summary: "list the machines that can be simulated",
		text:    "GPUS is how many a machine has unless --gpus says otherwise, and the most that it can have.",
		example: "gpusim profiles\ngpusim profiles -o json",
		begin: func(c *call) func() error {
			c.outputFlag()
			return c.profiles
		},
	}
}

type profileLine struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	GPUs        int    `json:"gpus"`
	MaxGPUs     int    `json:"maxGPUs"`
	Product     string `json:"product"` // of the first GPU, as NVML says it
	MIG         bool   `json:"mig"`     // some GPU can do it
}

func (c *call) profiles() error {
	var lines []profileLine
	for _, name := range profile.Names() {
		p, err := profile.Get(name)
		if err != nil {
			return err
		}
		s, err := p.State(profile.Options{})
		if err != nil {
			return err
		}
		line := profileLine{Name: name, Description: p.Description, GPUs: p.Count, MaxGPUs: len(p.GPUs), Product: state.Text(s.Gpu[0].Name[:])}
		for _, g := range s.GPUs() {
			line.MIG = line.MIG || g.MigSupported != 0
		}
		lines = append(lines, line)
	}
	return c.print(lines, func(out io.Writer) {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "NAME\tGPUS\tMIG\tDESCRIPTION")
		for _, l := range lines {
			fmt.Fprintf(table, "%s\t%d of %d\t%s\t%s\n", l.Name, l.GPUs, l.MaxGPUs, yes(l.MIG), l.Description)
		}
		table.Flush() //nolint:errcheck // the terminal's or pipe's failure shows in the next write, too
	})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}
