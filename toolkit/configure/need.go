package configure

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Wishes are the abilities that the operator wants.
type Wishes struct {
	CDI     bool            // the runtime resolves CDI names
	CDIDir  string          // from this directory
	Handler runtime.Handler // the wanted handler, without a name if there is none
	Default bool            // the handler is the default for pods that name none
}

// Want returns the abilities to configure; ok reports whether there are any. A runtime
// that already has all of them is left alone, since other files than ours may provide
// them.
func (w Wishes) Want(a runtime.Info, same func(a, b string) bool) (want runtime.Want, ok bool) {
	dirs := len(a.CDIDirs) == 0 || slices.ContainsFunc(a.CDIDirs, func(d string) bool { return same(d, w.CDIDir) })
	if w.CDI && (a.CDI != nil && !*a.CDI || !dirs) {
		want.CDI, ok = true, true
		if want.CDIDirs = slices.Clone(a.CDIDirs); !dirs || len(a.CDIDirs) == 0 {
			want.CDIDirs = append(want.CDIDirs, w.CDIDir)
		}
	}
	if w.Handler.Name != "" {
		// A handler of that name need not be ours, so the plan checks that.
		want.Handlers, ok = []runtime.Handler{w.Handler}, true
		if w.Default {
			want.Default = w.Handler.Name
		}
	}
	return want, ok
}

// missing describes the abilities that a runtime lacks after it was configured. It returns
// none if the runtime is as wanted.
func missing(before, after runtime.Info, want runtime.Want, same func(a, b string) bool) []string {
	var lacks []string
	add := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
	for _, h := range before.Handlers {
		if !slices.Contains(after.Handlers, h) {
			add("it has no handler %q any more", h)
		}
	}
	for _, h := range want.Handlers {
		if !slices.Contains(after.Handlers, h.Name) {
			add("it has no handler %q", h.Name)
		} else if program := after.Programs[h.Name]; program != "" && program != h.Program && !same(program, h.Program) {
			add("its handler %q runs %s", h.Name, program)
		}
	}
	if want.CDI && (after.CDI == nil || !*after.CDI) {
		add("it does not resolve CDI names")
	}
	for _, d := range want.CDIDirs {
		if len(after.CDIDirs) > 0 && !slices.ContainsFunc(after.CDIDirs, func(is string) bool { return same(is, d) }) {
			add("it does not read CDI specifications from %s", d)
		}
	}
	switch wanted := want.Default; {
	case wanted != "" && after.Default != "" && after.Default != wanted:
		add("its default handler is %q and not %q", after.Default, wanted)
	case wanted == "" && before.Default != "" && after.Default != before.Default:
		add("its default handler is %q and was %q", after.Default, before.Default)
	}
	return lacks
}

// keys lists the edits for a message.
func keys(edits []runtime.Edit) string {
	var all []string
	for _, e := range edits {
		all = append(all, e.String())
	}
	return strings.Join(all, "; ")
}
