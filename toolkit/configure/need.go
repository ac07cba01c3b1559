// Package configure brings a container runtime to where it can give containers GPUs,
// if it is not there already: what is missing is found by asking it, written with
// the least change, taken in by a restart through its own door, and then proven by
// asking again. A runtime that does not come back as it was wanted gets its old
// configuration back.
package configure

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// Wishes are what the operator asks of the runtime.
type Wishes struct {
	CDI     bool           // CDI names are to be resolved
	CDIDir  string         // from this directory
	Handler engine.Handler // without a name: none is asked for
	Default bool           // and it is to be that of pods that name none
}

// Want is what the runtime has to be told; ok says whether that is anything. A
// runtime that already does all of it is left alone: it may owe that to files that
// are not ours.
func (w Wishes) Want(a cri.Answer, same func(a, b string) bool) (want engine.Want, ok bool) {
	dirs := len(a.CDIDirs) == 0 || slices.ContainsFunc(a.CDIDirs, func(d string) bool { return same(d, w.CDIDir) })
	if w.CDI && (a.CDI != nil && !*a.CDI || !dirs) {
		want.CDI, ok = true, true
		if want.CDIDirs = slices.Clone(a.CDIDirs); !dirs || len(a.CDIDirs) == 0 {
			want.CDIDirs = append(want.CDIDirs, w.CDIDir)
		}
	}
	if w.Handler.Name != "" {
		// That it has one of that name does not say that it is ours: the plan does.
		want.Handlers, ok = []engine.Handler{w.Handler}, true
		if w.Default {
			want.Default = w.Handler.Name
		}
	}
	return want, ok
}

// Lacks says in words what a runtime lacks after it was told what is wanted; none:
// it came back as it should.
func Lacks(before, after cri.Answer, want engine.Want, same func(a, b string) bool) []string {
	var lacks []string
	say := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
	for _, h := range before.Handlers {
		if !slices.Contains(after.Handlers, h) {
			say("it has no handler %q any more", h)
		}
	}
	for _, h := range want.Handlers {
		if !slices.Contains(after.Handlers, h.Name) {
			say("it has no handler %q", h.Name)
		}
	}
	if want.CDI && (after.CDI == nil || !*after.CDI) {
		say("it does not resolve CDI names")
	}
	for _, d := range want.CDIDirs {
		if len(after.CDIDirs) > 0 && !slices.ContainsFunc(after.CDIDirs, func(is string) bool { return same(is, d) }) {
			say("it does not read CDI specifications from %s", d)
		}
	}
	switch wanted := want.Default; {
	case wanted != "" && after.Default != "" && after.Default != wanted:
		say("its default handler is %q and not %q", after.Default, wanted)
	case wanted == "" && before.Default != "" && after.Default != before.Default:
		say("its default handler is %q and was %q", after.Default, before.Default)
	}
	return lacks
}

// keys names the keys that were changed, for a message.
func keys(edits []engine.Edit) string {
	var all []string
	for _, e := range edits {
		all = append(all, e.String())
	}
	return strings.Join(all, "; ")
}
