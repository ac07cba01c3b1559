package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/suggest"
)

// Step loads one module.
type Step struct {
	Module Module
	Params []Param
	Ours   bool // the module is from the driver's files, not the kernel's own
	// Optional marks a module without which the driver is expected to work.
	Optional bool
}

// Inputs holds all inputs of PlanSteps.
type Inputs struct {
	Wanted   []string // names, in the order in which they are loaded
	Optional []string // names that are loaded first if the kernel has them
	Files    Files    // of the driver
	Tree     *Tree    // of the kernel
	Options  Options
	Loaded   map[string]Loaded
	Release  string // of the running kernel
}

// PlanSteps returns the modules to load, in order: the dependencies of the wanted ones, from the
// driver's files or else from the kernel's own, then the wanted ones. It skips modules that are
// loaded already or built in. It returns an error if any module cannot be loaded.
func PlanSteps(in Inputs) ([]Step, error) {
	p := planner{Inputs: in, needs: map[string][]string{}}
	for _, name := range in.Optional {
		if in.Tree.Path(name) != "" {
			_ = p.addModule(NormalizeName(name), nil, true) // skipped if it cannot be planned
		}
	}
	for _, name := range in.Wanted {
		if err := p.addModule(NormalizeName(name), nil, false); err != nil {
			return nil, err
		}
	}
	return p.steps, nil
}

type planner struct {
	Inputs
	needs map[string][]string // dependencies of each planned module
	steps []Step
}

// markRequired marks a planned module and its dependencies as required.
func (p *planner) markRequired(name string) {
	i := slices.IndexFunc(p.steps, func(s Step) bool { return s.Module.Name == name })
	if i < 0 || !p.steps[i].Optional {
		return
	}
	p.steps[i].Optional = false
	for _, need := range p.needs[name] {
		p.markRequired(need)
	}
}

// addModule appends a module after its dependencies. chain holds the modules that require it.
func (p *planner) addModule(name string, chain []string, optional bool) error {
	if _, loaded := p.Loaded[name]; loaded || p.Tree.IsBuiltin(name) {
		return nil
	}
	if _, planned := p.needs[name]; planned {
		if !optional {
			p.markRequired(name)
		}
		return nil
	}
	if slices.Contains(chain, name) {
		return newError(ReasonDependencyMissing, name, nil, "the modules %s depend on each other in a circle", strings.Join(append(chain, name), ", "))
	}
	m, ours, err := p.findModule(name, chain)
	if err != nil {
		return err
	}
	chain = append(slices.Clone(chain), name)
	// Soft dependencies are loaded if they exist.
	for _, soft := range append(slices.Clone(m.SoftBefore), p.Options.Before[name]...) {
		if _, ok := p.Files[soft]; (ok || p.Tree.Path(soft) != "") && !slices.Contains(chain, soft) {
			_ = p.addModule(soft, chain, true) // skipped if it cannot be planned
		}
	}
	needs := m.Depends
	if !ours {
		needs = p.Tree.Dependencies(name)
	}
	for _, need := range needs {
		if err := p.addModule(need, chain, optional); err != nil {
			return err
		}
	}
	params := p.Options.Params[name]
	if ours {
		if err := CheckParams(m.Info, params); err != nil {
			return err
		}
	}
	p.needs[name] = needs
	p.steps = append(p.steps, Step{m, params, ours, optional})
	return nil
}

// findModule returns a module from the driver's files, or else from the kernel's own.
func (p *planner) findModule(name string, chain []string) (m Module, ours bool, err error) {
	if m, ours = p.Files[name]; ours {
		return m, true, CheckRelease(m, p.Release)
	}
	at := p.Tree.Path(name)
	if at == "" {
		return m, false, newError(ReasonDependencyMissing, name, nil, "%s", p.describeMissing(name, chain))
	}
	return Module{Info{Name: name}, p.Tree.Root, at}, false, nil
}

// describeMissing names a missing module and the modules that require it.
func (p *planner) describeMissing(name string, chain []string) string {
	if len(chain) == 0 {
		return fmt.Sprintf("the driver's image has no module %s for kernel %s", name, p.Release)
	}
	return fmt.Sprintf("module %s needs %s, which neither the driver's image nor %s has; install the package with the kernel's extra modules (kernel-modules-extra, linux-modules-extra), or mount the host's /lib/modules",
		chain[len(chain)-1], name, p.Tree.Root.Path(p.Tree.Dir))
}

// CheckConf rejects files of parameters for modules that the driver does not have: a misspelt
// file name would be silently ignored.
func CheckConf(o Options, files Files) error {
	for module, file := range o.Configured {
		if _, known := files[module]; !known {
			return newError(ReasonParameterUnknown, module, nil, "%s: the driver has no module %s%s", file, module, suggest.Hint(module, slices.Sorted(maps.Keys(files))))
		}
	}
	return nil
}

// LoadSteps loads modules in order. It stops at the first that fails.
func (s System) LoadSteps(ctx context.Context, steps []Step, log *slog.Logger) error {
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		begun := time.Now()
		if err := s.Load(step.Module, step.Params); err != nil {
			if step.Optional {
				log.Warn("a module that the driver may use cannot be loaded", "module", step.Module.Name, "err", err)
				continue
			}
			return err
		}
		words := make([]string, len(step.Params))
		for i, p := range step.Params {
			words[i] = p.String()
		}
		log.Info("module loaded", "module", step.Module.Name, "file", step.Module.String(), "parameters", strings.Join(words, " "),
			"took", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

// DriverModules lists the driver's modules in the order in which they can be unloaded: each
// before the modules that it uses.
var DriverModules = []string{"nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_vgpu_vfio", "nvidia"}

// UnloadAll unloads the driver's loaded modules. It stops at a module that a process or another
// module uses; modules before it stay unloaded.
func (s System) UnloadAll(ctx context.Context, log *slog.Logger) error {
	loaded, err := s.ReadLoaded()
	if err != nil {
		return err
	}
	for _, name := range DriverModules {
		if _, ok := loaded[name]; !ok {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		begun := time.Now()
		if err := s.Unload(name); err != nil {
			return err
		}
		log.Info("module unloaded", "module", name, "took", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

// CheckUnused returns an error if a process or another module uses one of the driver's
// modules. Callers check that before they unload the first module, so that a driver in use
// stays complete.
func (s System) CheckUnused() error {
	loaded, err := s.ReadLoaded()
	if err != nil {
		return err
	}
	for _, name := range DriverModules {
		l, ok := loaded[name]
		if !ok {
			continue
		}
		if err := checkHolders(l); err != nil {
			return err
		}
		if l.References > len(l.Holders) {
			return s.explainUsers(name, nil)
		}
	}
	return nil
}

// checkHolders returns an error if a module of somebody else uses a module of the driver.
func checkHolders(l Loaded) error {
	others := slices.DeleteFunc(slices.Clone(l.Holders), func(holder string) bool { return slices.Contains(DriverModules, holder) })
	if len(others) == 0 {
		return nil
	}
	return newError(ReasonInUse, l.Name, nil, "module %s is in use by the module %s of somebody else; unload that first", l.Name, strings.Join(others, ", "))
}

// CheckUsedOnlyBy returns an error if a process or module uses the driver besides the processes own and those
// that they started, or if that is not known.
func (s System) CheckUsedOnlyBy(own []int) error {
	loaded, err := s.ReadLoaded()
	if err != nil {
		return err
	}
	for _, name := range DriverModules {
		if err := checkHolders(loaded[name]); err != nil {
			return err
		}
	}
	users, err := s.findDriverUsers(own)
	switch {
	case len(users) > 0:
		return newError(ReasonInUse, "nvidia", nil, "module nvidia is in use by %s; end it first", describeUsers(users))
	case err != nil:
		return fmt.Errorf("find the processes that use the driver: %w", err)
	case !s.seesNode():
		return newError(ReasonInUse, "nvidia", nil, "it is not known who uses module nvidia; run this container with hostPID: true")
	}
	return nil
}
