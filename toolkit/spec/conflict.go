package spec

import (
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/cdi"
)

// Owner returns the path of another file than ours that defines a kind, "" if there is
// none. A file that runtimes cannot read counts if its kind can be recognized: it may be
// of a newer version.
func Owner(files []cdi.File, kind, ours string) string {
	for _, f := range files {
		if f.Kind == kind && f.Path != ours {
			return f.Path
		}
	}
	return ""
}

// Conflict describes the effect of another file, such as a copy of ours, on a kind that
// only we write. It returns "" if there is none. priority is that of our directory.
//
// Runtimes use the device of the last directory. If two files of one directory define it,
// they refuse every container that asks for it.
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
			return fmt.Sprintf("%s hides %s=%s of %s, which is the one kept up to date; remove that file", f.Path, kind, shared[0], ours)
		}
	}
	return ""
}
