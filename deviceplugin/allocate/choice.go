package allocate

import (
	"fmt"
	"slices"
	"strings"

	spec "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// A configuration may list several device list strategies, and NVIDIA's device plugin uses all of
// them: the container runtime picks the one that it knows. A runtime that knows two gives a
// container its GPUs twice, and one that knows none gives it nothing. So the strategies in use are
// chosen by what the node serves, according to the toolkit's state. A node serves a strategy if its
// container runtime acts on it, so that the container gets its GPUs.

// A support describes whether a node serves a strategy.
type support int

const (
	unserved support = iota
	unknown
	served
)

// runtimeInfo holds the facts about the container runtime in the toolkit's state.
type runtimeInfo struct {
	resolvesCDI bool     // true: surely; false: not known
	handlers    []string // handlers that give a container the GPUs that a variable or a mount names; nil: not known
	byDefault   string   // the handler of pods that name none; "": not known
	ours        string   // the toolkit's handler
	accepts     []string // strategies that the toolkit's handler follows; nil: not known
}

// runtimeInfoFrom returns the runtimeInfo for the toolkit's state.
func runtimeInfoFrom(t *nodestate.ToolkitInfo) (i runtimeInfo) {
	r := t.Runtime
	if r == nil || r.Name == "" {
		return i
	}
	i = runtimeInfo{resolvesCDI: r.CDI != nil && *r.CDI, handlers: r.GPUHandlers, byDefault: r.DefaultHandler, ours: t.Handler, accepts: t.HandlerAccepts}
	if r.CDI == nil && r.Name == "cri-o" {
		i.resolvesCDI = true // CRI-O has no switch for it
	}
	if i.handlers != nil && i.ours != "" && slices.Contains(r.Handlers, i.ours) && !slices.Contains(i.handlers, i.ours) {
		i.handlers = append(slices.Clone(i.handlers), i.ours)
	}
	return i
}

// onlyOurs reports whether the toolkit's handler is the only one that gives GPUs.
func (i runtimeInfo) onlyOurs() bool {
	return len(i.handlers) > 0 && !slices.ContainsFunc(i.handlers, func(h string) bool { return h != i.ours })
}

// supports reports whether the node serves a strategy: served, unserved with the reason, or unknown if the
// toolkit's state does not tell. Annotations with another prefix are read by NVIDIA's runtime alone.
func (n Naming) supports(strategy string, p config.PluginFlags) (support, string) {
	r := n.runtime
	switch {
	case strategy == config.ListAnnotations && p.CDIAnnotationPrefix != nil && *p.CDIAnnotationPrefix != spec.AnnotationPrefix:
		if r.handlers == nil || len(r.handlers) > 0 && !r.onlyOurs() {
			return unknown, ""
		}
		return unserved, fmt.Sprintf("only NVIDIA's container runtime reads annotations that begin with %s, and the node does not have it", *p.CDIAnnotationPrefix)
	case strategy == config.ListCDI || strategy == config.ListAnnotations:
		switch {
		case n.noCDI != "":
			return unserved, n.noCDI
		case r.resolvesCDI:
			return served, ""
		}
		return unknown, ""
	case r.handlers == nil:
		return unknown, ""
	}
	by := map[string]string{config.ListVariable: "NVIDIA_VISIBLE_DEVICES", config.ListMounts: "mounts"}[strategy]
	switch {
	case len(r.handlers) == 0:
		return unserved, "the container runtime has no handler that gives GPUs by " + by
	case r.onlyOurs() && r.accepts != nil && !slices.Contains(r.accepts, strategy):
		return unserved, fmt.Sprintf("the handler %s does not accept requests by %s", r.ours, by)
	}
	return served, ""
}

// A Choice lists the strategies by which containers get their devices on this node.
type Choice struct {
	Strategies []string // in use
	// Remarks lists the configured strategies that are not in use, each with the reason, and
	// those in use that do not reach every pod.
	Remarks []nodestate.Setting
	Problem string // why nothing on the node serves any strategy; "": something does, or may

	instead bool // the node serves no configured strategy as it is configured: another is used
}

// Choose chooses, in this order:
//
//  1. of the configured strategies, those of the best way that the node serves;
//  2. all configured strategies of which it is not known whether the node serves them, as
//     NVIDIA's device plugin uses all;
//  3. the best way that the node serves, although it is not configured so;
//  4. the configured strategies, with a Problem.
func (n Naming) Choose(p config.PluginFlags) Choice {
	configured := p.Strategies()
	why, serves := map[string]string{}, map[string]support{}
	for _, s := range configured {
		serves[s], why[s] = n.supports(s, p)
	}
	with := func(want support, among ...string) (list []string) {
		for _, s := range configured {
			if serves[s] == want && slices.Contains(among, s) {
				list = append(list, s)
			}
		}
		return list
	}
	c := Choice{}
	for _, way := range ways { // from the best
		if c.Strategies == nil {
			c.Strategies = with(served, way...)
		}
	}
	if c.Strategies == nil {
		c.Strategies = with(unknown, slices.Concat(ways...)...)
	}
	for _, way := range ways { // no configured strategy can work
		if c.Strategies == nil {
			if can, _ := n.supports(way[0], config.PluginFlags{}); can == served {
				c.Strategies, c.instead = way, true
			}
		}
	}
	if c.Strategies == nil {
		c.Strategies = configured
		c.Problem = n.problemOf(configured, why)
		return c
	}
	c.explain(configured, why, n.runtime)
	return c
}

// ways are the strategies from the best way to the worst. CDI names and annotations are one way:
// a runtime that resolves both gives each device once, and a kubelet before 1.29 drops the names.
var ways = [][]string{{config.ListCDI, config.ListAnnotations}, {config.ListMounts}, {config.ListVariable}}

// problemOf describes why nothing serves the configured strategies.
func (n Naming) problemOf(configured []string, why map[string]string) string {
	var all []string
	for _, s := range configured {
		if text := s + ": " + why[s]; !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	if n.noCDI != "" && !slices.Contains(configured, config.ListCDI) {
		all = append(all, config.ListCDI+": "+n.noCDI)
	}
	return "nothing on this node gives containers their GPUs: " + strings.Join(all, "; ")
}

// explain fills in Remarks.
func (c *Choice) explain(configured []string, why map[string]string, r runtimeInfo) {
	add := func(strategy, message string) {
		c.Remarks = append(c.Remarks, nodestate.Setting{Name: "deviceListStrategy=" + strategy, Message: message})
	}
	use := strings.Join(c.Strategies, ", ")
	for _, s := range configured {
		switch {
		case c.instead: // cdi-annotations with another prefix may be among those in use
			add(s, why[s]+"; "+use+" is used instead: write that, or remove the setting")
		case slices.Contains(c.Strategies, s):
		case why[s] != "":
			add(s, why[s]+"; "+use+" is used: nothing has to be done")
		default:
			add(s, "not needed: containers get their GPUs by "+use+", and would get them twice")
		}
	}
	byHandler := slices.Contains(c.Strategies, config.ListMounts) || slices.Contains(c.Strategies, config.ListVariable)
	if byHandler && len(r.handlers) > 0 && r.byDefault != "" && !slices.Contains(r.handlers, r.byDefault) {
		add(use, fmt.Sprintf("only pods of a RuntimeClass with the handler %s get their GPUs, since the runtime's default is %s; make it the default, or use %s",
			strings.Join(r.handlers, " or "), r.byDefault, config.ListCDI))
	}
}

// Config returns the configuration with the chosen strategies, or the configured one itself if
// it has these.
func (c Choice) Config(configured *config.Config) *config.Config {
	if slices.Equal(c.Strategies, configured.Flags.Plugin.Strategies()) {
		return configured
	}
	chosen := *configured
	chosen.Flags.Plugin.DeviceListStrategy = c.Strategies
	if c.instead {
		chosen.Flags.Plugin.CDIAnnotationPrefix = nil // the one that runtimes read
	}
	return &chosen
}
