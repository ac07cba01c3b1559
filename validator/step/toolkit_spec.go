package step

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

const specWriter = "gpu-toolkit (DaemonSet nvidia-container-toolkit-daemonset) writes it anew within seconds; if not, see its log"

// checkSpec checks that the specification exists and can be read.
func checkSpec(node check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
	if len(driver.Units()) == 0 {
		return finding{}
	}
	ours := specPath(state)
	valid := 0
	for _, f := range files {
		switch {
		case f.Err != nil && (canonical(f.Path) == ours || f.Kind == cdi.KindGPU):
			return refuse(reasonSpecInvalid, fmt.Sprintf("runtimes ignore the CDI specification of kind %s: %v", cdi.KindGPU, f.Err), "remove the file; "+specWriter)
		case f.Kind == cdi.KindGPU:
			valid++
		}
	}
	if valid > 0 {
		return finding{}
	}
	if ours == "" {
		return refuse(reasonSpecMissing, fmt.Sprintf("there is no CDI specification of kind %s in %s", cdi.KindGPU, strings.Join(node.CDIDirs, ", ")), specWriter)
	}
	return refuse(reasonSpecMissing, fmt.Sprintf("the CDI specification %s of kind %s, which gpu-toolkit wrote, is gone", ours, cdi.KindGPU), specWriter)
}

// specPath returns the path of the specification that the toolkit reports, "" if it reports none.
func specPath(state nodestate.State) string {
	if state.Toolkit == nil {
		return ""
	}
	for _, s := range state.Toolkit.Specs {
		if s.Kind == cdi.KindGPU {
			return canonical(s.Path)
		}
	}
	return ""
}

// canonical returns a path below /run for one below /var/run, which is a link to /run today.
func canonical(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// checkConflicts finds other files that define our names. Runtimes refuse a name that two files
// of one directory define, and otherwise use that of the higher directory.
func checkConflicts(_ check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
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
		others := slices.DeleteFunc(paths, func(p string) bool { return canonical(p) == specPath(state) })
		remove := "nobody but gpu-toolkit writes this kind: remove " + strings.Join(others, ", ")
		switch {
		case same:
			return refuse(reasonConflict, both+": runtimes refuse a name that two files of one directory define", remove)
		case specPath(state) != "" && canonical(wins.Path) != specPath(state):
			return refuse(reasonConflict, both+", and runtimes take that of "+wins.Path+", which is not gpu-toolkit's", remove)
		case len(found.notes) == 0:
			found.notes = []string{both + "; runtimes take that of " + wins.Path + "; " + remove}
		}
	}
	return found
}
