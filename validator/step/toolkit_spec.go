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

// specRemedy is the remedy for a specification that is missing or invalid.
const specRemedy = "gpu-toolkit (DaemonSet nvidia-container-toolkit-daemonset) writes it anew within seconds; if not, see its log"

// checkSpec checks that there is a valid CDI specification of the GPUs, and none that is invalid.
// On a node without GPUs it checks nothing.
func checkSpec(node check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
	if len(driver.Units()) == 0 {
		return finding{}
	}
	ours := specPath(state)
	valid := 0
	for _, f := range files {
		switch {
		case f.Err != nil && (canonical(f.Path) == ours || f.Kind == cdi.KindGPU):
			return refuse(reasonSpecInvalid, fmt.Sprintf("runtimes ignore the CDI specification of kind %s: %v", cdi.KindGPU, f.Err), "remove the file; "+specRemedy)
		case f.Kind == cdi.KindGPU:
			valid++
		}
	}
	if valid > 0 {
		return finding{}
	}
	if ours == "" {
		return refuse(reasonSpecMissing, fmt.Sprintf("there is no CDI specification of kind %s in %s", cdi.KindGPU, strings.Join(node.CDIDirs, ", ")), specRemedy)
	}
	return refuse(reasonSpecMissing, fmt.Sprintf("the CDI specification %s of kind %s, which gpu-toolkit wrote, is gone", ours, cdi.KindGPU), specRemedy)
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

// canonical cleans a path, and replaces /var/run by /run, to which it is a link today. So two names
// of one file compare as equal.
func canonical(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// checkConflicts finds GPUs whose CDI name several files define. Runtimes refuse a name that two
// files of one directory define, and otherwise use the file in the directory of higher priority. So
// it is only a note if that is gpu-toolkit's file, or if the toolkit reports none. There is one
// note at most, however many GPUs there are.
func checkConflicts(_ check.Node, driver check.Driver, state nodestate.State, files []cdi.File) finding {
	var found finding
	ours := specPath(state)
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
		conflict := fmt.Sprintf("%s is claimed by %s", cdi.GPUName(u.UUID), strings.Join(paths, " and "))
		winner := slices.MaxFunc(claims, func(a, b cdi.File) int { return a.Priority - b.Priority })
		tied := slices.ContainsFunc(claims, func(f cdi.File) bool { return f.Priority == winner.Priority && f.Path != winner.Path })
		others := slices.DeleteFunc(paths, func(p string) bool { return canonical(p) == ours })
		remove := "nobody but gpu-toolkit writes this kind: remove " + strings.Join(others, ", ")
		switch {
		case tied:
			return refuse(reasonConflict, conflict+": runtimes refuse a name that two files of one directory define", remove)
		case ours != "" && canonical(winner.Path) != ours:
			return refuse(reasonConflict, conflict+", and runtimes take that of "+winner.Path+", which is not gpu-toolkit's", remove)
		case len(found.notes) == 0:
			found.notes = []string{conflict + "; runtimes take that of " + winner.Path + "; " + remove}
		}
	}
	return found
}
