package state

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/lab/golden"
)

// references are the cases with which the others are compared. The first has a whole golden
// file; each of the following is compared with those before it.
var references = []string{"container", "own-container", "every-injection", "nvidias-operands"}

// document is a rendered object of a case.
type document struct {
	in string // the case
	unstructured.Unstructured
}

func (d document) title() string { return d.GetKind() + " " + d.GetName() }

func documents(t *testing.T, in string, objects []Object) (all []document) {
	t.Helper()
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.Object)
		require.NoError(t, err)
		delete(fields, "status")
		// As decoded from text, so that equal values have equal types.
		var d document
		data, err := json.Marshal(fields)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &d.Object))
		d.in = in
		all = append(all, d)
	}
	return all
}

// whole formats a document as kubectl would apply it.
func (d document) whole(t *testing.T) string {
	t.Helper()
	data, err := yaml.Marshal(d.Object)
	require.NoError(t, err)
	return "---\n" + string(data)
}

// compared formats a document by its difference from the most similar one of the same kind and
// app, or whole if there is none.
func (d document) compared(t *testing.T, earlier []document) string {
	t.Helper()
	best := "\n=== " + d.title() + "\n" + d.whole(t)
	size := strings.Count(best, "\n")
	for _, other := range earlier {
		if other.GetKind() != d.GetKind() || other.GetLabels()["app"] != d.GetLabels()["app"] {
			continue
		}
		var lines []string
		difference("", other.Object, d.Object, &lines)
		text := fmt.Sprintf("\n=== %s, from %s of %s\n", d.title(), other.GetName(), other.in)
		if len(lines) == 0 {
			return fmt.Sprintf("\n=== %s, as in %s\n", d.title(), other.in)
		}
		if len(lines) < size {
			size, best = len(lines), text+strings.Join(lines, "\n")+"\n"
		}
	}
	return best
}

// lineLength is the length up to which an added or removed value is on one line.
const lineLength = 120

// difference appends the changes that lead from one value to another: "- path: value" and
// "+ path: value". What it does not show, such as the place of an added item in its list,
// changes the annotation gpuready.io/digest.
func difference(path string, from, to any, lines *[]string) {
	if fromFields, toFields := fields(from), fields(to); fromFields != nil && toFields != nil {
		// The order of a list counts, too.
		if _, is := from.([]any); is && !slices.Equal(shared(from, toFields), shared(to, fromFields)) {
			*lines = append(*lines, "+ "+path+": in the order "+compact(shared(to, toFields)))
		}
		keys := maps.Clone(fromFields)
		maps.Copy(keys, toFields)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			before, was := fromFields[key]
			after, is := toFields[key]
			switch {
			case was && is:
				difference(path+key, before, after, lines)
			case was:
				one("- ", path+key, before, lines)
			default:
				one("+ ", path+key, after, lines)
			}
		}
		return
	}
	if compact(from) != compact(to) {
		if !strings.HasSuffix(path, "digest") { // it says nothing to a reader
			one("- ", path, from, lines)
		}
		one("+ ", path, to, lines)
	}
}

// one appends an added or removed value. If it is long, an added one is shown field by field,
// and of a removed one, which is in the reference, only the path.
func one(sign, path string, value any, lines *[]string) {
	text, parts := compact(value), fields(value)
	if sign == "- " && len(text) > lineLength {
		*lines = append(*lines, sign+strings.TrimPrefix(path, "."))
		return
	}
	if len(parts) == 0 || len(text) <= lineLength {
		*lines = append(*lines, sign+strings.TrimPrefix(path, ".")+": "+text)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		one(sign, path+key, parts[key], lines)
	}
}

// fields returns the parts of an object by ".key", and those of a list by "[name]": the
// mountPath, name or key of an item, or its index if they are not unique. Of a value without
// parts it returns nil.
func fields(value any) map[string]any {
	all := map[string]any{}
	switch v := value.(type) {
	case map[string]any:
		for key, one := range v {
			all["."+key] = one
		}
		return all
	case []any:
		for i, key := range names(v) {
			all["["+key+"]"] = v[i]
		}
		return all
	}
	return nil
}

// names returns the name of each item of a list.
func names(list []any) []string {
	for _, by := range []string{"mountPath", "name", "key"} {
		var all []string
		for _, item := range list {
			object, _ := item.(map[string]any)
			if name, is := object[by].(string); is && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
		if len(all) == len(list) {
			return all
		}
	}
	all := make([]string, len(list))
	for i := range list {
		all[i] = fmt.Sprintf("%03d", i)
	}
	return all
}

// shared returns the names of a list's items that are among others, in the list's order.
func shared(list any, others map[string]any) (all []string) {
	items, _ := list.([]any)
	for _, name := range names(items) {
		if _, is := others["["+name+"]"]; is {
			all = append(all, name)
		}
	}
	return all
}

func compact(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // what was decoded from JSON always encodes
	return strings.TrimSpace(b.String())
}

// TestRenderMatchesGoldenFiles compares what each case deploys with its golden file: whole for
// the first of the references, as differences for the others.
//
// With -rendered=FOLDER it writes all cases there, whole, for checks outside of this package.
func TestRenderMatchesGoldenFiles(t *testing.T) {
	inputs := cases(t)
	order := slices.Clone(references)
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		if !slices.Contains(references, name) {
			order = append(order, name)
		}
	}
	var earlier []document
	for i, name := range order {
		objects, problems := render(t, inputs[name])
		var head, whole, differences strings.Builder
		for _, p := range problems {
			if p.Unserved {
				p.Reason = "unserved"
			}
			head.WriteString("# " + string(p.State) + ": " + string(p.Reason) + ": " + p.Message + "\n")
		}
		own := documents(t, name, objects)
		for n, d := range own {
			whole.WriteString(d.whole(t))
			differences.WriteString(d.compared(t, slices.Concat(earlier, own[:n])))
		}
		if *rendered != "" {
			require.NoError(t, os.WriteFile(filepath.Join(*rendered, name+".yaml"), []byte(whole.String()), 0o644))
		}
		file, have := name+".diff", head.String()+differences.String()
		if i == 0 {
			file, have = name+".yaml", head.String()+whole.String()
		}
		if i < len(references) {
			earlier = append(earlier, own...)
		}
		t.Run(name, func(t *testing.T) { golden.Require(t, "testdata/"+file, have) })
	}
}

// A policy names its RuntimeClass, and claims name the DeviceClasses. The operator gives no other
// object of the whole cluster a name, which somebody else might use.
func TestOnlyClassesBelongToTheWholeCluster(t *testing.T) {
	for name, in := range cases(t) {
		objects, _ := render(t, in)
		for _, d := range documents(t, name, objects) {
			if d.GetNamespace() == "" {
				require.Contains(t, []string{"RuntimeClass", "DeviceClass"}, d.GetKind(), "%s: %s", name, d.title())
			} else {
				require.Equal(t, in.Cluster.Namespace, d.GetNamespace(), "%s: %s", name, d.title())
			}
		}
	}
}
