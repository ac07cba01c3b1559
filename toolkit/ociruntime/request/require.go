package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// truth is the known truth value of a condition.
type truth int

const (
	unmet truth = iota
	unknown
	met
)

// branches are the driver branches with the newest CUDA version of each, from the table
// "CUDA Toolkit and Corresponding Driver Versions" of the CUDA Toolkit's release notes.
var branches = []struct{ driver, cuda string }{
	{"384", "9.0"}, {"390", "9.1"}, {"396", "9.2"}, {"410", "10.0"}, {"418", "10.1"}, {"440", "10.2"},
	{"450", "11.0"}, {"455", "11.1"}, {"460", "11.2"}, {"465", "11.3"}, {"470", "11.4"}, {"495", "11.5"},
	{"510", "11.6"}, {"515", "11.7"}, {"520", "11.8"}, {"525", "12.0"}, {"530", "12.1"}, {"535", "12.2"},
	{"545", "12.3"}, {"550", "12.4"}, {"555", "12.5"}, {"560", "12.6"}, {"565", "12.7"}, {"570", "12.8"},
	{"575", "12.9"}, {"580", "13.0"}, {"590", "13.1"},
}

// check returns an error if the driver does not meet the requirements: conditions such as
// "cuda>=12.4". A comma means and, a space means or. Unknown properties are not a reason to
// refuse: the GPU's brand or architecture, and the CUDA version of a driver newer than this
// program. version is the driver's, "" if unknown.
func check(requirements []string, version string) error {
	var errs []error
	for i, r := range requirements {
		if len(errs) == maxErrors {
			errs = append(errs, fmt.Errorf("and perhaps more of the other %d", len(requirements)-i))
			break
		}
		ok, err := either(r, version)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("requirement %s of the image: %w; NVIDIA_DISABLE_REQUIRE=true ignores it", quote(r), err))
		case ok == unmet:
			errs = append(errs, fmt.Errorf("the image requires %s, and this node has %s; upgrade the driver, use an image for an older CUDA, or set NVIDIA_DISABLE_REQUIRE=true", record.Clean(r, maxQuoted), describeDriver(version)))
		}
	}
	return Brief(errors.Join(errs...))
}

func describeDriver(version string) string {
	text := "driver " + version
	if cuda, exact := cudaOf(version); exact {
		text += " with CUDA " + cuda
	}
	return text
}

func either(requirement, version string) (truth, error) {
	best := unmet
	any := false
	for term := range strings.FieldsSeq(requirement) {
		all := met
		for condition := range strings.SplitSeq(term, ",") {
			if condition == "" {
				continue
			}
			one, err := holds(condition, version)
			if err != nil {
				return unmet, err
			}
			all = min(all, one)
			any = true
		}
		best = max(best, all)
	}
	if !any {
		return met, nil
	}
	return best, nil
}

func holds(condition, version string) (truth, error) {
	at := strings.IndexAny(condition, "<>=!")
	if at < 0 {
		return unmet, fmt.Errorf("%s is not a condition such as cuda>=12.4", quote(condition))
	}
	property, rest := condition[:at], condition[at:]
	var operator string
	for _, o := range []string{"!=", "<=", ">=", "=", "<", ">"} {
		if strings.HasPrefix(rest, o) {
			operator = o
			break
		}
	}
	if operator == "" {
		return unmet, fmt.Errorf("%s has no operator of =, !=, <, <=, > and >=", quote(condition))
	}
	if property != "cuda" && property != "driver" || version == "" {
		return unknown, nil
	}
	wanted, err := numbers(rest[len(operator):])
	if err != nil {
		return unmet, err
	}
	if property == "driver" {
		actual, err := numbers(version)
		if err != nil {
			return unknown, nil //nolint:nilerr // a version that is not understood is not known
		}
		return compare(slices.Compare(actual, wanted), operator, true), nil
	}
	cuda, exact := cudaOf(version)
	actual, err := numbers(cuda)
	if err != nil {
		return unknown, nil //nolint:nilerr // a driver older than the table
	}
	return compare(slices.Compare(actual, wanted[:min(2, len(wanted))]), operator, exact), nil
}

// compare evaluates a comparison. If order is that of a lower bound, the result is unknown
// unless a higher version has the same result.
func compare(order int, operator string, exact bool) truth {
	holds := map[string]bool{
		"=": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0,
	}[operator]
	stays := order >= 0 && (operator == ">" || operator == ">=")
	switch {
	case !exact && (!holds || !stays):
		return unknown
	case holds:
		return met
	}
	return unmet
}

// cudaOf returns the newest CUDA version of a driver. For a driver newer than all known
// ones, exact is false and the version is a lower bound.
func cudaOf(version string) (cuda string, exact bool) {
	actual, err := numbers(version)
	if err != nil {
		return "", false
	}
	for i, b := range branches {
		major, _ := strconv.Atoi(b.driver) // a number, see above
		if actual[0] >= major {
			// There is no branch between these, but there will be newer ones.
			cuda, exact = b.cuda, i < len(branches)-1 || actual[0] < major+5
		}
	}
	return cuda, exact
}

// numbers parses a version: 550, 12.4, 580.95.05.
func numbers(version string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%s is no version", quote(version))
		}
		list = append(list, int(n))
	}
	// 550 and 550.0 are the same.
	for len(list) > 1 && list[len(list)-1] == 0 {
		list = list[:len(list)-1]
	}
	return list, nil
}
