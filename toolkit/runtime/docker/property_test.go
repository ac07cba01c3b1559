package docker

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tailscale/hujson"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// expected computes the meaning of a planned daemon.json on Go's maps.
func expected(t require.TestingT, text string, want runtime.Want) map[string]any {
	config := map[string]any{}
	text = strings.TrimPrefix(text, "\xef\xbb\xbf")
	if text = strings.TrimSpace(text); text != "" && text != "null" {
		require.NoError(t, json.Unmarshal([]byte(text), &config))
	}
	object := func(in map[string]any, key string) map[string]any {
		if in[key] == nil {
			in[key] = map[string]any{}
		}
		return in[key].(map[string]any)
	}
	for _, h := range want.Handlers {
		entry, field := object(object(config, runtimes), h.Name), "path"
		for key := range entry {
			if strings.EqualFold(key, field) {
				field = key
				break
			}
		}
		entry[field] = h.Program
	}
	if want.Default != "" {
		config[defaultRuntime] = want.Default
	}
	if want.CDI {
		object(config, features)[cdi] = true
	}
	return config
}

// repeatsKeys reports whether a key occurs twice in an object.
func repeatsKeys(file string) bool {
	d, err := parse(config, []byte(file))
	if err != nil || d.tree.Value == nil {
		return false
	}
	for v := range d.tree.All() {
		object, is := v.Value.(*hujson.Object)
		if !is {
			continue
		}
		seen := map[string]bool{}
		for _, m := range object.Members {
			if seen[text(m.Name)] {
				return true
			}
			seen[text(m.Name)] = true
		}
	}
	return false
}

// check checks Plan's guarantees for one file. It ignores directories.
func check(t require.TestingT, text string, want runtime.Want) {
	place := runtime.Place{Kind: runtime.Docker, Config: config, Version: "27.5.1"}
	p, err := Plan(texts{config: text}, place, want)
	if err != nil {
		r, ok := errors.AsType[*runtime.Refusal](err)
		require.True(t, ok, err)
		require.Equal(t, config, r.File)
		require.Empty(t, p)
		require.LessOrEqual(t, r.Line, 1+strings.Count(text, "\n"))
		return
	}
	result := string(p.Items[0].File.Data)
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") || repeatsKeys(text) {
		return // Go's maps do not show what dockerd reads
	}
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(result, "\xef\xbb\xbf")), &got))
	wanted := expected(t, text, want)
	for _, config := range []map[string]any{got, wanted} {
		delete(config, specDirs)
	}
	require.Equal(t, wanted, got)
	inserted := !strings.Contains(text, "null") && !slices.ContainsFunc(p.Edits, func(e runtime.Edit) bool { return e.Before != "" })
	if inserted && strings.TrimSpace(strings.TrimPrefix(text, "\xef\xbb\xbf")) != "" {
		require.True(t, subsequence(squeeze(text), squeeze(result)), "%q\n%q", text, result)
	}
	again, err := Plan(texts{config: result}, place, want)
	require.NoError(t, err)
	require.Empty(t, again.Edits)
	require.Equal(t, result, string(again.Items[0].File.Data))
}

// squeeze removes white space, which Plan rewrites in an object without keys.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// subsequence reports whether whole can be made from part by insertions only.
func subsequence(part, whole string) bool {
	for i := 0; i < len(whole) && part != ""; i++ {
		if whole[i] == part[0] {
			part = part[1:]
		}
	}
	return part == ""
}

func TestPlanChangesOnlyTheMeaningOfWantedKeys(t *testing.T) {
	space := rapid.SampledFrom([]string{"", " ", "\n", "\n  ", "\r\n\t", "\n\n    "})
	word := rapid.StringMatching(`[a-zA-Z."\\/é -]{0,5}`)
	value := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"null", "true", "1.50e+3", `"\u0041\/"`, "[ ]", "[1 ,\t2]", "{}", "{ \"a\" : [] }"}).Draw(t, "value")
	})
	object := func(t *rapid.T, members ...string) string {
		var b strings.Builder
		for i, m := range members {
			if i > 0 {
				b.WriteString(space.Draw(t, "before comma") + ",")
			}
			b.WriteString(space.Draw(t, "before key") + m)
		}
		return "{" + b.String() + space.Draw(t, "before end") + "}"
	}
	rapid.Check(t, func(t *rapid.T) {
		pair := func(key, value string) string {
			return quote(key) + space.Draw(t, "before colon") + ":" + space.Draw(t, "after colon") + value
		}
		some := func() (members []string) {
			for _, key := range rapid.SliceOfNDistinct(word, 0, 3, rapid.ID).Draw(t, "keys") {
				members = append(members, pair("x"+key, value.Draw(t, "other")))
			}
			return members
		}
		chance := func(name string) bool { return rapid.Bool().Draw(t, name) }
		members := some()
		if chance("runtimes") {
			entries := some()
			if chance("ours") {
				field := some()
				if chance("path") {
					field = append(field, pair(rapid.SampledFrom([]string{"path", "PATH"}).Draw(t, "field"), quote(word.Draw(t, "path"))))
				}
				entries = append(entries, pair("nvidia", object(t, field...)))
			}
			members = append(members, pair(runtimes, object(t, entries...)))
		}
		if chance("features") {
			flags := some()
			if chance("cdi") {
				flags = append(flags, pair(cdi, rapid.SampledFrom([]string{"true", "false"}).Draw(t, "flag")))
			}
			members = append(members, pair(features, object(t, flags...)))
		}
		members = append(members, scalars(t, space, pair)...)
		text := space.Draw(t, "start") + object(t, rapid.Permutation(members).Draw(t, "order")...) + space.Draw(t, "end")
		check(t, text, runtime.Want{
			CDI: chance("want CDI"), CDIDirs: rapid.SliceOf(rapid.SampledFrom([]string{"/etc/cdi", "/x"})).Draw(t, "want dirs"),
			Handlers: rapid.SampledFrom([][]runtime.Handler{nil, {nvidia}, {nvidia, {Name: `a."b`, Program: `/x"y`}}}).Draw(t, "want handlers"),
			Default:  rapid.SampledFrom([]string{"", "runc"}).Draw(t, "want default"),
		})
	})
}

// scalars draws the keys that are not objects.
func scalars(t *rapid.T, space *rapid.Generator[string], pair func(key, value string) string) (members []string) {
	if rapid.Bool().Draw(t, "default") {
		members = append(members, pair(defaultRuntime, `"runc"`))
	}
	if rapid.Bool().Draw(t, "dirs") {
		dirs := rapid.SliceOfN(rapid.SampledFrom([]string{`""`, `"/etc/cdi"`, `"/opt/cdi"`}), 0, 3).Draw(t, "spec dirs")
		members = append(members, pair(specDirs, "["+space.Draw(t, "in list")+strings.Join(dirs, space.Draw(t, "dirs")+",")+"]"))
	}
	return members
}

func FuzzPlan(f *testing.F) {
	for _, text := range []string{"", "{}", "{\n}\n", `{"runtimes":{"nvidia":{"path":"/x"}},"features":{"cdi":false}}`, "{\"a\":1,}", "// x\n{}",
		"\xef\xbb\xbf{\"cdi-spec-dirs\":[\"\"]}", `{"a":{"b":1,"b":2}}`, "{\r\n\t\"default-runtime\": \"runc\"\r\n}",
		`{"runtimes":null,"features":null}`, "null", `{"features":{"cdi":false},"features":{}}`, "\xff\xfe{\x00}\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { check(t, text, all) })
}
