package injection

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

const writer = "gpu-toolkit (DaemonSet nvidia-container-toolkit-daemonset) writes it anew within seconds; if not, see its log"

// present looks whether the specification is there and can be read.
func present(node check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
	if len(driver.Units()) == 0 {
		return finding{}
	}
	ours := own(state)
	valid := 0
	for _, f := range files {
		switch {
		case f.Err != nil && (clean(f.Path) == ours || f.Kind == cdi.KindGPU):
			return refuse(ReasonSpecInvalid, fmt.Sprintf("runtimes ignore the CDI specification of kind %s: %v", cdi.KindGPU, f.Err), "remove the file; "+writer)
		case f.Kind == cdi.KindGPU:
			valid++
		}
	}
	if valid > 0 {
		return finding{}
	}
	if ours == "" {
		return refuse(ReasonSpecMissing, fmt.Sprintf("there is no CDI specification of kind %s in %s", cdi.KindGPU, strings.Join(node.CDIDirs, ", ")), writer)
	}
	return refuse(ReasonSpecMissing, fmt.Sprintf("the CDI specification %s of kind %s, which gpu-toolkit wrote, is gone", ours, cdi.KindGPU), writer)
}

// own is the path of the specification that the toolkit says it has written, "" where
// it says nothing of it.
func own(state nodestate.State) string {
	if state.Toolkit == nil {
		return ""
	}
	for _, s := range state.Toolkit.Specs {
		if s.Kind == cdi.KindGPU {
			return clean(s.Path)
		}
	}
	return ""
}

// clean is a path under one name where /var/run is a link to /run, as it is by now.
func clean(p string) string {
	p = path.Clean(p)
	if rest, is := strings.CutPrefix(p, "/var/run/"); is {
		return "/run/" + rest
	}
	return p
}

// conflicts looks for another file that claims our names. Runtimes refuse a name that
// two files of one directory define, and take that of the higher directory else.
func conflicts(_ check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
	var found finding
	for _, u := range driver.Units() {
		var claims []cdi.File
		for _, f := range files {
			if f.Kind == cdi.KindGPU && slices.Contains(f.Devices(), string(u.UUID)) {
				claims = append(claims, f)
			}
		}
		if len(claims) < 2 {
			continue
		}
		paths := make([]string, len(claims))
		for i, f := range claims {
			paths[i] = f.Path
		}
		both := fmt.Sprintf("%s is claimed by %s", cdi.GPUName(u.UUID), strings.Join(paths, " and "))
		wins := slices.MaxFunc(claims, func(a, b cdi.File) int { return a.Priority - b.Priority })
		same := slices.ContainsFunc(claims, func(f cdi.File) bool { return f.Priority == wins.Priority && f.Path != wins.Path })
		others := slices.DeleteFunc(paths, func(p string) bool { return clean(p) == own(state) })
		remove := "nobody but gpu-toolkit writes this kind: remove " + strings.Join(others, ", ")
		switch {
		case same:
			return refuse(ReasonConflict, both+": runtimes refuse a name that two files of one directory define", remove)
		case own(state) != "" && clean(wins.Path) != own(state):
			return refuse(ReasonConflict, both+", and runtimes take that of "+wins.Path+", which is not gpu-toolkit's", remove)
		case len(found.notes) == 0:
			found.notes = []string{both + "; runtimes take that of " + wins.Path + "; " + remove}
		}
	}
	return found
}
