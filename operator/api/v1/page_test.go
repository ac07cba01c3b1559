package v1_test

import (
	"cmp"
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
	golden.RequireSection(t, pagePath, begin, end, fieldsPage(load(t), loadHistory(t)))
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

// tableHead begins the table of a part.
const tableHead = "| field | value | by default | NVIDIA's releases | |\n|---|---|---|---|---|\n"

// page collects the tables of a policy's fields.
type page struct {
	strings.Builder
	schema  *schematest.Schema
	history *history
}

func fieldsPage(s *schematest.Schema, h *history) string {
	b := page{schema: s, history: h}
	fmt.Fprintf(&b, "\nReleases: %s.\n", strings.Join(h.releases, ", "))
	spec, types := s.Structural.Properties["spec"], reflect.TypeFor[v1.ClusterPolicySpec]()
	for _, name := range jsonNames(types) {
		if schematest.FindIgnored(name) != nil {
			continue
		}
		part := spec.Properties[name]
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n%s", name, sentence(part.Description), tableHead)
		b.fields(&part, typeOf(types, name), name, "")
		b.ignored(name)
	}
	exporter := spec.Properties["dcgmExporter"]
	for _, common := range []struct {
		title  string
		fields []string
	}{{"Images and containers", containers()}, {"Pods", pods()}} {
		fmt.Fprintf(&b, "\n### %s\n\nWhat operands have in common.\n\n| field | value | |\n|---|---|---|\n", common.title)
		for _, name := range common.fields {
			property := exporter.Properties[name]
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, kindOf(&property), b.explain(&property, "dcgmExporter."+name))
		}
	}
	b.WriteString("\n## Fields without effect\n\nNone of the fields of these parts has an effect. Where a part asks for something, " +
		"`status.unserved` has it with the reason.\n\n" +
		"| part and fields, by NVIDIA's releases | named when | why, and what to do |\n|---|---|---|\n")
	for _, name := range jsonNames(types) {
		if k := schematest.FindIgnored(name); k != nil {
			fmt.Fprintf(&b, "| `%s`: %s | `%s` | %s |\n", name, b.byRelease(name), strings.Join(k.When, "` and `"), k.Why)
		}
	}
	b.WriteString("\nSome settings leave other fields without an effect. One line of `status.unserved` names those of them that are set. " +
		"Defaults are not named, nor what NVIDIA's chart renders for a disabled operand in any case, such as its image.\n\n" +
		"| while | has no effect | why, and what to do |\n|---|---|---|\n")
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

// releases returns the releases of NVIDIA's operator that have a field.
func (b *page) releases(path string) string {
	return cmp.Or(b.history.describe(path), "none")
}

// group joins names that have the same key. Groups are in the order of their first names.
type group struct{ key, names string }

func appendToGroup(groups []group, key, name string) []group {
	if i := slices.IndexFunc(groups, func(g group) bool { return g.key == key }); i >= 0 {
		groups[i].names += ", `" + name + "`"
		return groups
	}
	return append(groups, group{key, "`" + name + "`"})
}

// byRelease lists the fields of a part that has no effect.
func (b *page) byRelease(part string) string {
	var groups []group
	for _, path := range b.schema.Fields() {
		if name, below := strings.CutPrefix(path, part+"."); below {
			groups = appendToGroup(groups, b.releases(path), name)
		}
	}
	var all []string
	for _, g := range groups {
		all = append(all, g.names+" ("+g.key+")")
	}
	return strings.Join(all, "; ")
}

// ignored writes the fields of a part that have no effect.
func (b *page) ignored(part string) {
	var groups []group
	for _, path := range b.schema.Fields() {
		name, below := strings.CutPrefix(path, part+".")
		k := schematest.FindIgnored(path)
		if !below || k == nil {
			continue
		}
		named := ""
		switch {
		case k.Default != "":
			named = ", named only if other than `" + k.Default + "`"
		case len(k.When) > 0:
			named = ", named only with `" + strings.Join(k.When, "` and `") + "`"
		}
		groups = appendToGroup(groups, b.releases(path)+" | **no effect**"+named+": "+k.Why, name)
	}
	for _, g := range groups {
		fmt.Fprintf(b, "| %s | | | %s |\n", g.names, g.key)
	}
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

// fields writes the fields of a part that have an effect. path is the part's path in spec; below is the
// path that the rows are relative to.
func (b *page) fields(s *schema.Structural, t reflect.Type, path, below string) {
	_, isContainer := s.Properties["imagePullPolicy"]
	_, hasPods := s.Properties["podSecurityContext"]
	hasPods = hasPods && isContainer
	var shared []group
	for _, name := range jsonNames(t) {
		property := s.Properties[name]
		full, short := path+"."+name, below+name
		switch {
		case schematest.FindIgnored(full) != nil:
		case isContainer && slices.Contains(containers(), name):
			shared = appendToGroup(shared, b.releases(full)+" | [images and containers](#images-and-containers)", short)
		case hasPods && slices.Contains(pods(), name):
			shared = appendToGroup(shared, b.releases(full)+" | [pods](#pods)", short)
		case len(property.Properties) > 0:
			b.fields(&property, typeOf(t, name), full, short+".")
		default:
			byDefault := ""
			if property.Default.Object != nil {
				byDefault = fmt.Sprintf("`%v`", property.Default.Object)
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", short, kindOf(&property), byDefault, b.releases(full), b.explain(&property, full))
		}
	}
	for _, g := range shared {
		fmt.Fprintf(b, "| %s | | | %s |\n", g.names, g.key)
	}
}

// explain returns a field's description, and which values are refused.
func (b *page) explain(s *schema.Structural, path string) string {
	text := sentence(s.Description)
	for _, f := range v1.IgnoredFields() {
		if f.Field == path && f.Without != "" {
			text += " Without `" + f.Without + "` it has no effect: " + f.Why + "."
		}
	}
	for _, refused := range refusals(b.schema, path) {
		text += " Refused " + refused + "."
	}
	return strings.ReplaceAll(text, "|", `\|`)
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
