package v1_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// record adds the fields of a release of NVIDIA's operator to the history:
//
//	go test ./operator/api/v1 -run History -record v25.10.0=$HOME/src/gpu-operator
//
// The source is a checkout, the CustomResourceDefinition itself, or a list of fields, one a line, whose
// name ends in ".txt".
var record = flag.String("record", "", "add a release to "+historyPath+": RELEASE=SOURCE")

// A historyField is a field of NVIDIA's schema.
type historyField struct {
	// path is its path in spec. Items of a list have "[]", keys of a map "*": "driver.env[].name",
	// "daemonsets.labels.*".
	path string
	// first and last are the releases that it came and was last seen in: "v1.8.0".
	first, last string
}

// history is the fields of all recorded releases.
type history struct {
	releases []string       // from the oldest to the newest
	fields   []historyField // by path
}

// historyPath is the file of the recorded history.
const historyPath = "testdata/nvidia-fields.txt"

const releasesHeading = "# releases:"

// parseHistory decodes a history: a comment with the releases, then a line for each field.
func parseHistory(text string) (*history, error) {
	h := &history{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if names, ok := strings.CutPrefix(line, releasesHeading); ok {
			h.releases = strings.Fields(names)
			continue
		}
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("line %d: %q is no field with its first and its last release", i+1, line)
		}
		f := historyField{words[0], words[1], words[2]}
		for _, release := range words[1:] {
			if !slices.Contains(h.releases, release) {
				return nil, fmt.Errorf("line %d: %s is not among the releases in the first line", i+1, release)
			}
		}
		h.fields = append(h.fields, f)
	}
	return h, nil
}

// String encodes a history.
func (h *history) String() string {
	var b strings.Builder
	b.WriteString("# Fields of NVIDIA's ClusterPolicy, each with the first and the last release that has it.\n")
	b.WriteString(releasesHeading + " " + strings.Join(h.releases, " ") + "\n")
	for _, f := range h.fields {
		fmt.Fprintf(&b, "%s %s %s\n", f.path, f.first, f.last)
	}
	return b.String()
}

// kubernetes matches the fields of Kubernetes' own types, which a policy's schema need not know in
// detail.
var kubernetes = regexp.MustCompile(`(^|\.)(affinity|podSecurityContext|securityContext|valueFrom)\..*$`)

// add adds the fields of a release. Those of an affinity and the like count as one.
func (h *history) add(release string, paths []string) {
	if !slices.Contains(h.releases, release) {
		h.releases = append(h.releases, release)
		slices.SortFunc(h.releases, compareReleases)
	}
	for _, path := range paths {
		if kubernetes.MatchString(path) {
			continue
		}
		at := slices.IndexFunc(h.fields, func(f historyField) bool { return f.path == path })
		if at < 0 {
			h.fields = append(h.fields, historyField{path, release, release})
			continue
		}
		f := &h.fields[at]
		if compareReleases(release, f.first) < 0 {
			f.first = release
		}
		if compareReleases(release, f.last) > 0 {
			f.last = release
		}
	}
	slices.SortFunc(h.fields, func(a, b historyField) int { return cmp.Compare(a.path, b.path) })
}

// compareReleases orders releases: v1.11.1 comes after v1.9.0.
func compareReleases(a, b string) int { return slices.Compare(releaseNumbers(a), releaseNumbers(b)) }

func releaseNumbers(release string) (all []int) {
	for part := range strings.SplitSeq(strings.TrimPrefix(release, "v"), ".") {
		n, _ := strconv.Atoi(part) // what is no number is before all that are
		all = append(all, n)
	}
	return all
}

// describe tells in which releases a field, or any below it, is: "since v24.6.0",
// "v1.3.1 to v1.7.1". It returns "" for a field that NVIDIA's schema does not have.
func (h *history) describe(path string) string {
	first, last := "", ""
	for _, f := range h.fields {
		if f.path != path && !strings.HasPrefix(f.path, path+".") && !strings.HasPrefix(f.path, path+"[") {
			continue
		}
		if first == "" || compareReleases(f.first, first) < 0 {
			first = f.first
		}
		if last == "" || compareReleases(f.last, last) > 0 {
			last = f.last
		}
	}
	switch {
	case first == "":
		return ""
	case last == h.releases[len(h.releases)-1]:
		return "since " + first
	case first == last:
		return first
	}
	return first + " to " + last
}

func loadHistory(t *testing.T) *history {
	t.Helper()
	text, err := os.ReadFile(historyPath)
	require.NoError(t, err)
	h, err := parseHistory(string(text))
	require.NoError(t, err)
	return h
}

// definitionPaths returns the paths of the fields of spec in a CustomResourceDefinition of ClusterPolicy, of
// apiextensions.k8s.io/v1 or, as of early releases, v1beta1.
func definitionPaths(definition []byte) ([]string, error) {
	var crd struct {
		Spec struct {
			Validation definitionSchema
			Versions   []struct {
				Storage bool
				Schema  definitionSchema
			}
		}
	}
	if err := yaml.Unmarshal(definition, &crd); err != nil {
		return nil, err
	}
	all := crd.Spec.Validation.OpenAPIV3Schema
	for _, v := range crd.Spec.Versions {
		if v.Storage && v.Schema.OpenAPIV3Schema != nil {
			all = v.Schema.OpenAPIV3Schema
		}
	}
	if all == nil || len(all.Properties["spec"].Properties) == 0 {
		return nil, errors.New("it is no definition of a resource whose spec has a schema")
	}
	var paths []string
	for name, child := range all.Properties["spec"].Properties {
		paths = append(paths, child.paths(name)...)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

type definitionSchema struct{ OpenAPIV3Schema *property }

// property is the part of an OpenAPI schema that names fields.
type property struct {
	Properties           map[string]property
	Items                *property
	AdditionalProperties any
}

func (p property) paths(at string) []string {
	var all []string
	switch {
	case p.Items != nil:
		all = []string{at + "[]"}
		for name, child := range p.Items.Properties {
			all = append(all, child.paths(at+"[]."+name)...)
		}
	case len(p.Properties) == 0 && p.AdditionalProperties != nil && p.AdditionalProperties != false:
		all = []string{at + ".*"}
	default:
		all = []string{at}
		for name, child := range p.Properties {
			all = append(all, child.paths(at+"."+name)...)
		}
	}
	return all
}

// readDefinition returns the fields of a checkout, a definition or a list.
func readDefinition(source string) ([]string, error) {
	info, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if source, err = findDefinition(source); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(source, ".txt") {
		return strings.Fields(string(text)), nil
	}
	return definitionPaths(text)
}

// findDefinition returns the definition in a checkout.
func findDefinition(dir string) (found string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err == nil && !d.IsDir() && strings.HasPrefix(name, "nvidia.com_clusterpolicies") && strings.HasSuffix(name, ".yaml") && !strings.Contains(path, "vendor") {
			found = path
			return filepath.SkipAll
		}
		return err
	})
	if err == nil && found == "" {
		err = errors.New("there is no file nvidia.com_clusterpolicies*.yaml in it")
	}
	return found, err
}

const smallDefinition = `
spec:
  versions:
  - name: v1
    storage: true
    schema:
      openAPIV3Schema:
        properties:
          spec:
            properties:
              driver:
                properties:
                  version: {type: string}
                  labels: {type: object, additionalProperties: {type: string}}
                  env: {type: array, items: {properties: {name: {type: string}}}}
                  affinity: {properties: {nodeAffinity: {type: object}}}
              mig: {type: object, properties: {strategy: {type: string}}}
`

func TestFieldsOfADefinition(t *testing.T) {
	paths, err := definitionPaths([]byte(smallDefinition))
	require.NoError(t, err)
	require.Equal(t, []string{"driver", "driver.affinity", "driver.affinity.nodeAffinity", "driver.env[]", "driver.env[].name", "driver.labels.*", "driver.version", "mig", "mig.strategy"}, paths)
	_, err = definitionPaths([]byte("spec: {versions: []}"))
	require.ErrorContains(t, err, "no definition")
}

func TestReleasesAreAddedInAnyOrder(t *testing.T) {
	h := &history{}
	h.add("v1.11.0", []string{"driver", "driver.version", "driver.affinity.nodeAffinity"})
	h.add("v1.9.1", []string{"driver", "psp"})
	h.add("v25.3.0", []string{"driver", "driver.version"})
	require.Equal(t, []string{"v1.9.1", "v1.11.0", "v25.3.0"}, h.releases)
	require.Equal(t, []historyField{{"driver", "v1.9.1", "v25.3.0"}, {"driver.version", "v1.11.0", "v25.3.0"}, {"psp", "v1.9.1", "v1.9.1"}}, h.fields)
	require.Equal(t, "since v1.11.0", h.describe("driver.version"))
	require.Equal(t, "since v1.9.1", h.describe("driver"))
	require.Equal(t, "v1.9.1", h.describe("psp"))
	require.Empty(t, h.describe("driver.vers"))
	again, err := parseHistory(h.String())
	require.NoError(t, err)
	require.Equal(t, h, again)
}

func TestRecordedHistoryIsInOrder(t *testing.T) {
	h := loadHistory(t)
	if release, source, ok := strings.Cut(*record, "="); ok {
		require.True(t, strings.HasPrefix(release, "v"), release)
		paths, err := readDefinition(source)
		require.NoError(t, err)
		h.add(release, paths)
		require.NoError(t, os.WriteFile(historyPath, []byte(h.String()), 0o644))
	}
	recorded, err := os.ReadFile(historyPath)
	require.NoError(t, err)
	require.Equal(t, string(recorded), h.String(), "it is written with -record")
	require.True(t, slices.IsSortedFunc(h.releases, compareReleases))
	require.Contains(t, h.releases, "v1.8.0")
	require.Equal(t, "since v24.6.0", h.describe("hostPaths"))
	require.Equal(t, "v1.3.1 to v1.7.1", h.describe("toolkit.tolerations"))
	for _, line := range []string{"a", "a v1.0.0 v2.0.0"} {
		_, err := parseHistory(line)
		require.Error(t, err, line)
	}
}
