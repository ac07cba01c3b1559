// Package history lists the fields of NVIDIA's ClusterPolicy with the releases of NVIDIA's operator
// that have them. Its command record adds a release.
package history

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Field is a field of NVIDIA's schema.
type Field struct {
	// Path is its path in spec. Items of a list have "[]", keys of a map "*": "driver.env[].name",
	// "daemonsets.labels.*".
	Path string
	// First and Last are the releases that it came and was last seen in: "v1.8.0".
	First, Last string
}

// History is the fields of all recorded releases.
type History struct {
	Releases []string // from the oldest to the newest
	Fields   []Field  // by path
}

//go:embed fields.txt
var recorded string

// Load returns the recorded history.
func Load() (*History, error) { return Parse(recorded) }

const releasesHeading = "# releases:"

// Parse decodes a history: a comment with the releases, then a line for each field.
func Parse(text string) (*History, error) {
	h := &History{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if names, ok := strings.CutPrefix(line, releasesHeading); ok {
			h.Releases = strings.Fields(names)
			continue
		}
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("line %d: %q is no field with its first and its last release", i+1, line)
		}
		f := Field{words[0], words[1], words[2]}
		for _, release := range words[1:] {
			if !slices.Contains(h.Releases, release) {
				return nil, fmt.Errorf("line %d: %s is not among the releases in the first line", i+1, release)
			}
		}
		h.Fields = append(h.Fields, f)
	}
	return h, nil
}

// String encodes a history.
func (h *History) String() string {
	var b strings.Builder
	b.WriteString("# Fields of NVIDIA's ClusterPolicy, each with the first and the last release that has it.\n")
	b.WriteString(releasesHeading + " " + strings.Join(h.Releases, " ") + "\n")
	for _, f := range h.Fields {
		fmt.Fprintf(&b, "%s %s %s\n", f.Path, f.First, f.Last)
	}
	return b.String()
}

// kubernetes matches the fields of Kubernetes' own types, which a policy's schema need not know in
// detail.
var kubernetes = regexp.MustCompile(`(^|\.)(affinity|podSecurityContext|securityContext|valueFrom)\..*$`)

// Add adds the fields of a release. Those of an affinity and the like count as one.
func (h *History) Add(release string, paths []string) {
	if !slices.Contains(h.Releases, release) {
		h.Releases = append(h.Releases, release)
		slices.SortFunc(h.Releases, Compare)
	}
	for _, path := range paths {
		if kubernetes.MatchString(path) {
			continue
		}
		at := slices.IndexFunc(h.Fields, func(f Field) bool { return f.Path == path })
		if at < 0 {
			h.Fields = append(h.Fields, Field{path, release, release})
			continue
		}
		f := &h.Fields[at]
		if Compare(release, f.First) < 0 {
			f.First = release
		}
		if Compare(release, f.Last) > 0 {
			f.Last = release
		}
	}
	slices.SortFunc(h.Fields, func(a, b Field) int { return cmp.Compare(a.Path, b.Path) })
}

// Compare orders releases: v1.11.1 comes after v1.9.0.
func Compare(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func numbers(release string) (all []int) {
	for part := range strings.SplitSeq(strings.TrimPrefix(release, "v"), ".") {
		n, _ := strconv.Atoi(part) // what is no number is before all that are
		all = append(all, n)
	}
	return all
}

// Describe tells in which releases a field, or any below it, is: "since v24.6.0",
// "v1.3.1 to v1.7.1". It returns "" for a field that NVIDIA's schema does not have.
func (h *History) Describe(path string) string {
	first, last := "", ""
	for _, f := range h.Fields {
		if f.Path != path && !strings.HasPrefix(f.Path, path+".") && !strings.HasPrefix(f.Path, path+"[") {
			continue
		}
		if first == "" || Compare(f.First, first) < 0 {
			first = f.First
		}
		if last == "" || Compare(f.Last, last) > 0 {
			last = f.Last
		}
	}
	switch {
	case first == "":
		return ""
	case last == h.Releases[len(h.Releases)-1]:
		return "since " + first
	case first == last:
		return first
	}
	return first + " to " + last
}
