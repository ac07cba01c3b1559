package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

// addOutput adds the flag -o.
func (o *options) addOutput(to *string) {
	o.StringVarP(to, "output", "o", "table", "table or json")
}

func checkOutput(format string) error {
	if format != "table" && format != "json" {
		return program.UsageErrorf("--output %q: want table or json", format)
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

const checkUsage = `Print what gpu-driver run would load on this node, in which order and with which
parameters, and whether the kernel would reject it. Nothing is changed.

Examples:
  gpu-driver check
  gpu-driver check -o json
`

// plan is the output of check: the modules to load, and obstacles.
type plan struct {
	Kernel  string    `json:"kernel"`
	Version string    `json:"version"`
	Kind    string    `json:"kind"`
	Why     string    `json:"why"`
	GPUs    []string  `json:"gpus"`
	Trust   trust     `json:"trust"`
	Modules []planned `json:"modules"`
	Doubt   string    `json:"doubt,omitempty"`   // why the kernel may refuse one of them
	Refusal string    `json:"refusal,omitempty"` // reason
	Message string    `json:"message,omitempty"`
	InUse   string    `json:"inUse,omitempty"`
	Unbind  []string  `json:"unbind,omitempty"`  // GPUs that are taken from other drivers
	Passed  string    `json:"passed,omitempty"`  // GPUs that stay with virtual machines
	Daemons []string  `json:"daemons,omitempty"` // those of the driver that run, with why
}

type trust struct {
	SecureBoot bool     `json:"secureBoot"`
	Enforced   bool     `json:"signaturesEnforced"`
	Lockdown   string   `json:"lockdown"`
	Keys       []string `json:"keys,omitempty"`
}

type planned struct {
	Name       string `json:"name"`
	File       string `json:"file"`
	Parameters string `json:"parameters,omitempty"`
	Signer     string `json:"signer"`
}

func checkCommand(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("check", checkUsage, stdout)
	o.addSurvey()
	format := ""
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), o.RefuseArgs(), checkOutput(format)); err != nil {
		return err
	}
	p, err := o.makePlan()
	if e, ok := errors.AsType[*kernel.Error](err); ok {
		p.Refusal, p.Message = string(e.Reason), e.Message
	} else if err != nil {
		return err
	}
	if format == "json" {
		if err := writeJSON(stdout, p); err != nil {
			return err
		}
	} else {
		p.printPlan(stdout)
	}
	return withReasonCode(err)
}

// makePlan surveys the node. If the driver cannot be loaded, the plan holds the findings until
// then.
func (o *options) makePlan() (plan, error) {
	s, closeAll, err := o.openSurvey()
	if err != nil {
		return plan{}, err
	}
	defer closeAll()
	p := plan{GPUs: []string{}, Modules: []planned{}}
	t := s.System.ReadTrust()
	p.Trust = trust{t.SecureBoot, t.Enforced, t.Lockdown, nil}
	for _, k := range t.Keys {
		p.Trust.Keys = append(p.Trust.Keys, k.Name)
	}
	p.Kernel, err = kernel.Host.Release()
	if err == nil {
		err = s.CheckGPU()
	}
	if err != nil {
		return p, err
	}
	found, err := s.Snapshot()
	for _, g := range found.GPUs {
		p.GPUs = append(p.GPUs, fmt.Sprintf("%s 10de:%04x", g.Address, g.Device))
	}
	for _, r := range s.System.FindRivals(found.GPUs) {
		text := r.Address + " from " + r.Driver
		if r.Held != "" {
			text += ": not now, " + r.Held
		}
		p.Unbind = append(p.Unbind, text)
	}
	p.Passed = found.Passed
	p.Version, p.Kind, p.Why = found.Version, string(found.Kind), found.Why
	if err != nil {
		return p, err
	}
	steps, err := found.Plan(nil)
	if err != nil {
		return p, err
	}
	for _, step := range steps {
		words := make([]string, len(step.Params))
		for i, param := range step.Params {
			words[i] = param.String()
		}
		signer := "-"
		if step.Ours {
			signer = step.Module.Signature.String()
		}
		p.Modules = append(p.Modules, planned{step.Module.Name, step.Module.String(), strings.Join(words, " "), signer})
		if step.Ours && err == nil {
			err = t.Check(step.Module)
		}
		if p.Doubt == "" {
			p.Doubt = t.MayRejectReason(step.Module)
		}
	}
	if busy := s.System.CheckUnused(); busy != nil {
		p.InUse = busy.Error()
	}
	planned, daemonsErr := s.PlanDaemons()
	if err == nil {
		err = daemonsErr
	}
	for _, d := range planned.Daemons {
		need := "wanted"
		if d.Required {
			need = "required"
		}
		p.Daemons = append(p.Daemons, fmt.Sprintf("%s (%s): %s", d.Name, need, d.Why))
	}
	return p, err
}

func (p plan) printPlan(w io.Writer) {
	fmt.Fprintf(w, "kernel   %s\n", p.Kernel)
	if p.Version != "" {
		fmt.Fprintf(w, "driver   %s, %s modules: %s\n", p.Version, p.Kind, p.Why)
	}
	fmt.Fprintf(w, "trust    %s\n", p.Trust)
	if p.InUse != "" {
		fmt.Fprintf(w, "in use   %s\n", p.InUse)
	}
	for _, text := range p.Unbind {
		fmt.Fprintf(w, "take     %s\n", text)
	}
	if p.Passed != "" {
		fmt.Fprintf(w, "leave    %s\n", p.Passed)
	}
	if len(p.Modules) > 0 {
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "MODULE\tFILE\tPARAMETERS\tSIGNED BY")
		for _, m := range p.Modules {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", m.Name, m.File, m.Parameters, m.Signer)
		}
		_ = t.Flush()
	}
	for i, d := range p.Daemons {
		fmt.Fprintf(w, "%s%-8s %s\n", map[bool]string{true: "\n"}[i == 0], "daemon", d)
	}
	if p.Doubt != "" {
		fmt.Fprintf(w, "\ndoubt    %s\n", p.Doubt)
	}
}

// String describes whose modules the kernel loads.
func (t trust) String() string {
	var words []string
	if t.SecureBoot {
		words = append(words, "Secure Boot is on")
	}
	if t.Enforced {
		words = append(words, "only signed modules are loaded")
	}
	if t.Lockdown != "" && t.Lockdown != "none" {
		words = append(words, "lockdown is "+t.Lockdown)
	}
	if len(words) == 0 {
		return "the kernel loads unsigned modules"
	}
	return fmt.Sprintf("%s; %d keys are trusted", strings.Join(words, ", "), len(t.Keys))
}

const statusUsage = `Print the driver's state: its phase, the reason if it is not ready, its version and root. The
exit code is 4 if the driver is not ready.

Examples:
  gpu-driver status
  gpu-driver status -o json
`

func statusCommand(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("status", statusUsage, stdout)
	o.addState()
	format := ""
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), o.RefuseArgs(), checkOutput(format)); err != nil {
		return err
	}
	s, err := o.readState()
	if err != nil {
		return err
	}
	if format == "json" {
		err = writeJSON(stdout, s)
	} else {
		fmt.Fprintf(stdout, "phase    %s\n", s.Phase)
		switch {
		case s.Reason != "":
			fmt.Fprintf(stdout, "reason   %s: %s\n", s.Reason, s.Message)
		case s.Message != "":
			fmt.Fprintf(stdout, "note     %s\n", s.Message)
		}
		if d := s.Driver; d != nil {
			fmt.Fprintf(stdout, "driver   %s at %s%s\n", d.Version, d.Root, map[bool]string{true: " (SIMULATED)"}[d.Simulated])
		}
	}
	if err == nil && s.Phase != nodestate.Ready {
		err = program.WithExitCode(exitNotReady, program.ErrReported)
	}
	return err
}

const probeUsage = `Exit with 0 if the driver is ready, or if this node has no GPU and needs none. Otherwise
exit with 4 and write the reason to standard error.

Examples:
  gpu-driver probe
`

func probeCommand(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("probe", probeUsage, stdout)
	o.addState()
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	s, err := o.readState()
	quiet := s.Phase == nodestate.Waiting && s.Reason == kernel.ReasonNoDevice
	if err == nil && s.Phase != nodestate.Ready && !quiet {
		err = program.WithExitCode(exitNotReady, fmt.Errorf("%s: %s: %s", s.Phase, s.Reason, s.Message))
	}
	return err
}

// readState reads the driver's state. A state that was never published is not an error.
func (o *options) readState() (nodestate.State, error) {
	s, err := nodestate.Read(filepath.Join(o.stateDir, string(nodestate.Driver)))
	if nodestate.IsAbsent(err) {
		return s, program.WithExitCode(exitNotReady, fmt.Errorf("no driver has published its state since this node was booted: %w", err))
	}
	return s, err
}

const modinfoUsage = `Print the information in kernel modules: version, kernel, licence, signer, dependencies,
firmware and parameters.

Examples:
  gpu-driver modinfo nvidia.ko.xz
  gpu-driver modinfo -o json /driver/lib/modules/*/nvidia*.ko
`

func modinfoCommand(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("modinfo", modinfoUsage, stdout)
	format := ""
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), checkOutput(format)); err != nil {
		return err
	}
	if o.NArg() == 0 {
		return program.UsageErrorf("modinfo of which file? Name one or more modules")
	}
	all := []kernel.Info{}
	for _, file := range o.Args() {
		i, err := readModule(file)
		if err != nil {
			return err
		}
		all = append(all, i)
	}
	if format == "json" {
		return writeJSON(stdout, all)
	}
	for n, i := range all {
		if n > 0 {
			fmt.Fprintln(stdout)
		}
		printInfo(stdout, o.Arg(n), i)
	}
	return nil
}

func readModule(file string) (kernel.Info, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return kernel.Info{}, err
	}
	root, err := host.Open(filepath.Dir(file))
	if err != nil {
		return kernel.Info{}, err
	}
	defer func() { _ = root.Close() }()
	m, err := kernel.ReadModule(root, filepath.Base(file))
	return m.Info, err
}

func printInfo(w io.Writer, file string, i kernel.Info) {
	for _, line := range [][2]string{
		{"file", file}, {"name", i.Name}, {"description", i.Description}, {"version", i.Version}, {"kernel", i.Vermagic}, {"license", i.License},
		{"build ID", i.BuildID}, {"signed by", i.Signature.String()}, {"depends", strings.Join(i.Depends, " ")}, {"firmware", strings.Join(i.Firmware, " ")},
	} {
		if line[1] != "" {
			fmt.Fprintf(w, "%-12s %s\n", line[0], line[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Params)) {
		fmt.Fprintf(w, "%-12s %s (%s)\n", "parameter", name, i.Params[name])
	}
}
