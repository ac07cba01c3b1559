package settings

import (
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const page = "../../docs/configuration.md"

func TestThePageListsTheSettings(t *testing.T) {
	for _, section := range []struct{ name, content string }{
		{"settings", settingsTable()}, {"keys", keysTable(reflect.TypeFor[config.Config]())},
	} {
		golden.RequireSection(t, page, "<!-- "+section.name+": made by go generate ./deviceplugin/settings -->\n",
			"<!-- end of "+section.name+" -->\n", "\n"+section.content+"\n")
	}
}

// settingsTable describes each flag, and each variable without a flag.
func settingsTable() string {
	var rows [][]string
	(&Options{}).newFlagSet(io.Discard).VisitAll(func(f *pflag.Flag) {
		names := []string{golden.Code("--" + f.Name)}
		for _, alias := range slices.Sorted(maps.Keys(aliases)) {
			if aliases[alias] == f.Name {
				names = append(names, golden.Code("--"+alias))
			}
		}
		if f.Shorthand != "" {
			names = append(names, golden.Code("-"+f.Shorthand))
		}
		var variables []string
		for _, where := range []map[string]string{Environment, olderEnvironment} {
			if name := where[f.Name]; name != "" {
				variables = append(variables, golden.Code(name))
			}
		}
		_, usage := pflag.UnquoteUsage(f)
		usage, _, _ = strings.Cut(usage, " [$") // the variable
		rows = append(rows, []string{
			strings.Join(names, ", "), strings.Join(variables, ", "), golden.Code(filePaths[f.Name]),
			golden.Code(strings.Trim(f.DefValue, "[]")), golden.Code(examples[f.Name]), usage,
		})
	})
	for _, v := range xidVariables {
		rows = append(rows, []string{"", golden.Code(v.name), golden.Code(v.path), "", golden.Code(v.example), v.usage})
	}
	return golden.Table([]string{"flag", "variable", "in the file", "default", "example", "what it sets"}, rows)
}

// keysTable describes each key of the file that has no flag.
func keysTable(t reflect.Type) string {
	flags := map[string]bool{}
	for _, path := range filePaths {
		flags[path] = true
	}
	var rows [][]string
	described := map[reflect.Type]string{} // the path at which the keys of a type are
	var describe func(t reflect.Type, parent string)
	describe = func(t reflect.Type, parent string) {
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			path, below := parent+name, field.Type
			for below.Kind() == reflect.Pointer || below.Kind() == reflect.Slice {
				if below.Kind() == reflect.Slice {
					path += "[]"
				}
				below = below.Elem()
			}
			switch {
			case flags[strings.TrimSuffix(path, "[]")]:
			case below.Kind() != reflect.Struct || below == reflect.TypeFor[config.Duration]() || below == reflect.TypeFor[config.Replicable]():
				rows = append(rows, []string{golden.Code(path), values(field), field.Tag.Get("doc")})
			case described[below] != "":
				rows = append(rows, []string{golden.Code(path), "as " + golden.Code(described[below]), field.Tag.Get("doc")})
			default:
				described[below] = path
				if path != "flags" && path != "flags.plugin" && path != "imex" { // their keys have flags
					rows = append(rows, []string{golden.Code(path), "", field.Tag.Get("doc")})
				}
				describe(below, path+".")
			}
		}
	}
	describe(t, "")
	return golden.Table([]string{"key", "values", "what it sets"}, rows)
}

// values describes the values of a key.
func values(field reflect.StructField) string {
	t := field.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tag := func(key string) string { return field.Tag.Get(key) }
	switch {
	case tag("enum") != "":
		return "`" + strings.ReplaceAll(tag("enum"), " ", "`, `") + "`"
	case t == reflect.TypeFor[config.Duration]():
		return "duration"
	case t == reflect.TypeFor[config.Replicable]():
		return "`all`, number, list"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case tag("max") != "":
		return fmt.Sprintf("%s to %s", tag("min"), tag("max"))
	case t.Kind() == reflect.Int || t.Kind() == reflect.Uint64:
		return "number"
	case t.Kind() == reflect.Slice:
		return "list"
	}
	return "text"
}

func TestTheExamplesOfSettingsAreValid(t *testing.T) {
	named := maps.Clone(examples)
	(&Options{}).newFlagSet(io.Discard).VisitAll(func(f *pflag.Flag) {
		example, ok := named[f.Name]
		delete(named, f.Name)
		if f.Name == "cdi-feature-flags" {
			require.False(t, ok, "it is refused")
			return
		}
		require.NotEmpty(t, example, "--%s has no example", f.Name)
		args := []string{"--" + f.Name + "=" + example}
		switch f.Name {
		case "config-file":
			return // it would be read
		case "config", "default-config", "fallback-strategies", "node-label":
			args = append(args, "--config-dir=/etc/gpuready/configs")
		case "once":
			args = append(args, "--shadow")
		}
		_, err := Parse(Command{}, args, io.Discard)
		require.NoError(t, err, "%s: the example", f.Name)
	})
	require.Empty(t, named, "examples of no flag")
	for _, v := range xidVariables {
		_, err := health.ParseDisable(v.example, "")
		require.NoError(t, err, v.name)
	}
}
