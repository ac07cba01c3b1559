package spec

import (
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/cdi"
)

// Owner returns the path of a file, not ours, that defines a kind; "" if there is
// none. A file that runtimes cannot read counts
// if its kind can be made out: it may be a newer version's.
func Owner(files []cdi.File, kind, ours string) string {
	for _, f := range files {
		if f.Kind == kind && f.Path != ours {
			return f.Path
		}
	}
	return ""
}

// Conflict says what another file does to a kind that only we write, a copy of our
// file for example; "" if none does anything. priority is that of our directory.
//
// Runtimes take a device from the directory that comes last; where two files of one
// directory have it they refuse every container that asks for it.
func Conflict(files []cdi.File, kind, ours string, priority int, devices []string) string {
	for _, f := range files {
		if f.Kind != kind || f.Path == ours || f.Err != nil || f.Priority < priority {
			continue
		}
		shared := slices.DeleteFunc(f.Devices(), func(name string) bool { return !slices.Contains(devices, name) })
		switch {
		case len(shared) == 0:
		case f.Priority == priority:
			return fmt.Sprintf("%s defines %s=%s as %s does: runtimes refuse every container that asks for it; remove that file", f.Path, kind, shared[0], ours)
		default:
			return fmt.Sprintf("%s hides %s=%s of %s, which is what is kept up to date; remove that file", f.Path, kind, shared[0], ours)
		}
	}
	return ""
}
