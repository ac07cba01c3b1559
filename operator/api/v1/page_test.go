package v1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	definition "github.com/gpuready/gpuready/operator/api/schema"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const (
	pagePath = "../../../docs/clusterpolicy.md"
	begin    = "<!-- fields: made by go generate ./operator/api/v1 -->\n"
	end      = "<!-- end of fields -->\n"
)

func TestThePageListsTheFields(t *testing.T) {
	golden.RequireSection(t, pagePath, begin, end, fieldsPage(load(t)))
}

// The policies and NVIDIADrivers in the pages' examples are accepted unchanged, and all is served.
func TestThePagesExamplesAreAccepted(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)
	policies, n := load(t), 0
	drivers, err := definition.LoadDriver()
	require.NoError(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for block := range strings.SplitSeq(string(text), "```") {
			all, ok := strings.CutPrefix(block, "yaml\n")
			for example := range strings.SplitSeq(all, "\n---\n") {
				switch {
				case ok && strings.Contains(example, "kind: ClusterPolicy\n"):
					p, err := policies.Admit(t.Context(), []byte(example))
					require.NoError(t, err, "%s: %s", page, example)
					require.Empty(t, p.Unserved(), "%s: %s", page, example)
				case ok && strings.Contains(example, "kind: NVIDIADriver\n"):
					d, err := drivers.AdmitDriver(t.Context(), []byte(example))
					require.NoError(t, err, "%s: %s", page, example)
					require.Empty(t, d.Unserved(), "%s: %s", page, example)
				default:
					continue
				}
				n++
			}
		}
	}
	require.Greater(t, n, 3)
}

// containers and pods return the fields that every container and every operand's pods have; the page
// explains them once.
func containers() []string { return jsonNames(reflect.TypeFor[v1.ContainerSpec]()) }
func pods() []string       { return jsonNames(reflect.TypeFor[v1.PodSpec]()) }

func fieldsPage(s *schematest.Schema) string {
	var b strings.Builder
	spec, types := s.Structural.Properties["spec"], reflect.TypeFor[v1.ClusterPolicySpec]()
	kept := v1.IgnoredFields()
	for _, name := range jsonNames(types) {
		if slices.ContainsFunc(kept, func(k v1.IgnoredField) bool { return k.Field == name }) {
			continue
		}
		part := spec.Properties[name]
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| field | value | by default | |\n|---|---|---|---|\n", name, sentence(part.Description))
		rows(&b, &part, typeOf(types, name), name, "")
	}
	exporter := spec.Properties["dcgmExporter"]
	for _, common := range []struct {
		title  string
		fields []string
	}{{"Images and containers", containers()}, {"Pods", pods()}} {
		fmt.Fprintf(&b, "\n### %s\n\nWhat operands have in common.\n\n| field | value | by default | |\n|---|---|---|---|\n", common.title)
		for _, name := range common.fields {
			property := exporter.Properties[name]
			row(&b, &property, name)
		}
	}
	b.WriteString("\n## Fields without effect\n\nThey are in the schema so that a policy for NVIDIA's operator is accepted as it is. Where one is set, `status.unserved` has it with the reason. [Compatibility](compatibility.md) lists all fields by release.\n\n| field | named when | why, and what to do |\n|---|---|---|\n")
	for _, k := range kept {
		when := "set"
		if k.Default != "" {
			when = "other than `" + k.Default + "`"
		}
		if len(k.When) > 0 {
			when = "`" + strings.Join(k.When, "` and `") + "`"
		}
		if k.Without != "" {
			when = "set without `" + k.Without + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Field, when, k.Why)
	}
	b.WriteString("\nSome settings leave other fields without an effect. One line names those of them that are set. Defaults are not named, nor what NVIDIA's chart renders for a disabled operand in any case, such as its image.\n\n| while | has no effect | why, and what to do |\n|---|---|---|\n")
	for _, o := range v1.Overrides() {
		when := slices.DeleteFunc(slices.Clone(o.When), func(condition string) bool {
			return strings.HasSuffix(condition, "!=false") || strings.HasSuffix(condition, "CRD!=true")
		})
		below := "`" + o.Within + "`"
		if len(o.Except) > 0 {
			below += ", all but " + quoted(o.Except, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", quoted(when, " and "), below, o.Why)
	}
	b.WriteString("\n")
	return b.String()
}

// quoted returns texts as code, joined.
func quoted(texts []string, by string) string {
	var all []string
	for _, text := range texts {
		if field, empty := strings.CutSuffix(text, "="); empty {
			text = field + "=\"\""
		}
		all = append(all, "`"+text+"`")
	}
	return strings.Join(all, by)
}

// rows writes the fields of a part. path is the part's path in spec; below is the path that the
// rows are relative to.
func rows(b *strings.Builder, s *schema.Structural, t reflect.Type, path, below string) {
	_, isContainer := s.Properties["imagePullPolicy"]
	_, hasPods := s.Properties["podSecurityContext"]
	hasPods = hasPods && isContainer
	var shared, ofPods []string
	for _, name := range jsonNames(t) {
		property := s.Properties[name]
		full, short := path+"."+name, below+name
		switch {
		case schematest.FindIgnored(full) != nil:
		case isContainer && slices.Contains(containers(), name):
			shared = append(shared, "`"+short+"`")
		case hasPods && slices.Contains(pods(), name):
			ofPods = append(ofPods, "`"+short+"`")
		case len(property.Properties) > 0:
			rows(b, &property, typeOf(t, name), full, short+".")
		default:
			row(b, &property, short)
		}
	}
	if len(shared) > 0 {
		fmt.Fprintf(b, "| %s | | | [images and containers](#images-and-containers) |\n", strings.Join(shared, ", "))
	}
	if len(ofPods) > 0 {
		fmt.Fprintf(b, "| %s | | | [pods](#pods) |\n", strings.Join(ofPods, ", "))
	}
}

func row(b *strings.Builder, s *schema.Structural, name string) {
	byDefault := ""
	if s.Default.Object != nil {
		byDefault = fmt.Sprintf("`%v`", s.Default.Object)
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, kindOf(s), byDefault, strings.ReplaceAll(sentence(s.Description), "|", `\|`))
}

func kindOf(s *schema.Structural) string {
	if v := s.ValueValidation; v != nil && len(v.Enum) > 0 {
		var values []string
		for _, e := range v.Enum {
			if e.Object != "" {
				values = append(values, fmt.Sprintf("`%v`", e.Object))
			}
		}
		return strings.Join(values, ", ")
	}
	switch {
	case s.XIntOrString:
		return "integer or string"
	case s.Items != nil:
		return "list"
	case s.Type == "object":
		return "map"
	}
	return s.Type
}

// sentence returns a description in one line.
func sentence(description string) string {
	return strings.Join(strings.Fields(description), " ")
}

// jsonNames lists the JSON names of a struct's fields, embedded ones' included, in order.
func jsonNames(t reflect.Type) []string {
	var names []string
	for field := range fieldsOf(t) {
		names = append(names, jsonName(field))
	}
	return names
}

func typeOf(t reflect.Type, name string) reflect.Type {
	for field := range fieldsOf(t) {
		if jsonName(field) == name {
			return indirect(field.Type)
		}
	}
	return nil
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func fieldsOf(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for f := range t.Fields() {
			if !f.Anonymous {
				if !yield(f) {
					return
				}
				continue
			}
			for inner := range fieldsOf(f.Type) {
				if !yield(inner) {
					return
				}
			}
		}
	}
}

func TestEveryFieldOfTheTypesIsInTheDefinition(t *testing.T) {
	var compare func(s *schema.Structural, typ reflect.Type, path string)
	compare = func(s *schema.Structural, typ reflect.Type, path string) {
		names := jsonNames(typ)
		require.Len(t, s.Properties, len(names), path)
		for _, name := range names {
			property, ok := s.Properties[name]
			require.True(t, ok, "%s.%s is not in the definition: go generate ./operator/api/v1", path, name)
			if len(property.Properties) > 0 {
				compare(&property, typeOf(typ, name), path+"."+name)
			}
		}
	}
	for part, typ := range map[string]reflect.Type{"spec": reflect.TypeFor[v1.ClusterPolicySpec](), "status": reflect.TypeFor[v1.ClusterPolicyStatus]()} {
		s := load(t).Structural.Properties[part]
		compare(&s, typ, part)
	}
}
