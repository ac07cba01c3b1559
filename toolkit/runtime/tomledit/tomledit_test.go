package tomledit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSetKeepsOtherBytes(t *testing.T) {
	tests := map[string]struct {
		in    string
		path  []string
		value any
		out   string
	}{
		"a value, with its comment and spacing": {
			"a=1\nb\t =  false   # why\nc=2\n", []string{"b"}, true, "a=1\nb\t =  true   # why\nc=2\n"},
		"a key of a table, after the others": {
			"[t]\n  a = 1 # x\n\n[u]\n", []string{"t", "b"}, "v", "[t]\n  a = 1 # x\n  b = \"v\"\n\n[u]\n"},
		"a key of a table without keys": {
			"[t]\n[u]\n", []string{"t", "b"}, true, "[t]\nb = true\n[u]\n"},
		"quoted keys with dots": {
			"[plugins.'a.b']\nx = 1\n", []string{"plugins", "a.b", "x"}, int64(2), "[plugins.'a.b']\nx = 2\n"},
		"a table after its brothers, indented as they are": {
			"[r]\n  [r.a]\n    t = 1\n    [r.a.o]\n      s = true\n\n# of x\n[x]\n", []string{"r", "b", "t"}, true,
			"[r]\n  [r.a]\n    t = 1\n    [r.a.o]\n      s = true\n\n  [r.b]\n    t = true\n\n# of x\n[x]\n"},
		"line ends of Windows": {
			"a = 1\r\n[t]\r\nb = 1\r\n", []string{"t", "c"}, true, "a = 1\r\n[t]\r\nb = 1\r\nc = true\r\n"},
		"no line end at the end": {
			"[t]\nb = 1", []string{"t", "c"}, true, "[t]\nb = 1\nc = true\n"},
		"an empty document":            {"", []string{"a", "b"}, true, "[a]\nb = true\n"},
		"a key of the root":            {"# c\na = 1\n[t]\n", []string{"b"}, true, "# c\na = 1\nb = true\n[t]\n"},
		"a first key of the root":      {"[t]\n", []string{"b"}, true, "b = true\n[t]\n"},
		"a key in an inline table":     {"t = { a = 1, b = [] } # c\n", []string{"t", "a"}, int64(2), "t = { a = 2, b = [] } # c\n"},
		"a new key in an inline table": {"t = { a = 1 } # c\n", []string{"t", "b", "c"}, true, "t = { a = 1, b.c = true } # c\n"},
		"an empty inline table":        {"t = {}\n", []string{"t", "b"}, true, "t = { b = true }\n"},
		"dotted keys":                  {"[t]\n  a.b = 1\nz = 2\n", []string{"t", "a", "c"}, true, "[t]\n  a.b = 1\n  a.c = true\nz = 2\n"},
		"dotted keys of the root":      {"a.b.c = 1\nz = 2\n", []string{"a", "d", "e"}, true, "a.b.c = 1\na.d.e = true\nz = 2\n"},
		"a list that grows": {
			"l = [ 'a', # first\n  'b', # second\n]\n", []string{"l"}, []string{"a", "b", "c"}, "l = [ 'a', # first\n  'b', \"c\", # second\n]\n"},
		"another list":         {"l = ['a']# c\n", []string{"l"}, []string{"b"}, "l = [\"b\"]# c\n"},
		"what is so already":   {"l = [ 'a' ]\n", []string{"l"}, []string{"a"}, "l = [ 'a' ]\n"},
		"beside list of table": {"[[l]]\na = 1\n[[l]]\na = 2\n[t]\nb = 1\n", []string{"t", "b"}, int64(2), "[[l]]\na = 1\n[[l]]\na = 2\n[t]\nb = 2\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc, err := Parse([]byte(tt.in))
			require.NoError(t, err)
			doc, err = doc.Set(tt.value, tt.path...)
			require.NoError(t, err)
			require.Equal(t, tt.out, string(doc.Bytes()))
			again, err := doc.Set(tt.value, tt.path...)
			require.NoError(t, err)
			require.Equal(t, tt.out, string(again.Bytes()))
		})
	}
}

func TestImpossibleEditsAreRefusedWithTheirPosition(t *testing.T) {
	tests := map[string]struct {
		in           string
		path         []string
		line, column int
	}{
		"below a list":        {"a = 1\n  x = []\n", []string{"x", "y"}, 2, 3},
		"below a number":      {"[x]\ny = 1\n", []string{"x", "y", "z"}, 2, 1},
		"in a list of tables": {"\n[[x]]\ny = 1\n", []string{"x", "y"}, 2, 1},
		"a table":             {"[x.y]\n[x]\n", []string{"x"}, 2, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc, err := Parse([]byte(tt.in))
			require.NoError(t, err)
			_, err = doc.Set("v", tt.path...)
			at, ok := errors.AsType[*Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, []int{tt.line, tt.column}, []int{at.Line, at.Column}, at.Message)
		})
	}
}

func TestParseErrorsHaveLineAndColumn(t *testing.T) {
	for in, want := range map[string][]int{
		"a = 1\nb = = 2\n":       {2, 5},
		"a = 1\n\n[t\nb = 1\n":   {3, 3},
		"a = 1\na = 2\n":         {2, 1},
		"[a]\nb = 1\n[a]\nc=1\n": {3, 2},
	} {
		_, err := Parse([]byte(in))
		at, ok := errors.AsType[*Error](err)
		require.True(t, ok, in)
		require.Equal(t, want[0], at.Line, "%q: %v", in, err)
		require.Positive(t, at.Column, "%q: %v", in, err)
	}
}

var keys = []string{"a", "b", "c.d", "e f", ""}

// document draws lines that are often a valid document, in odd spacing.
func document(t *rapid.T) string {
	key := func(label string) string {
		parts := rapid.SliceOfN(rapid.SampledFrom(keys), 1, 3).Draw(t, label)
		return strings.ReplaceAll(Key(parts...), ".", rapid.SampledFrom([]string{".", " . ", "."}).Draw(t, "dot"))
	}
	values := []string{"true", "1", "'x'", `"y\t"`, "[]", "[ 1, 2 ]", "[ 'p',\n 'q', # c\n]", "{}", "{ a = 1 }", "{ b.a = 1, c = { a = [] } }", "1979-05-27", "nan", `"""m
n"""`}
	eol := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "eol")
	var b strings.Builder
	for range rapid.IntRange(0, 8).Draw(t, "lines") {
		indent := rapid.SampledFrom([]string{"", "  ", "\t"}).Draw(t, "indent")
		after := rapid.SampledFrom([]string{"", "  # note [x] = 1", " "}).Draw(t, "after")
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			b.WriteString(indent + "# comment" + eol)
		case 1, 2:
			b.WriteString(indent + "[ " + key("table") + "]" + after + eol)
		case 3:
			if rapid.Bool().Draw(t, "list") {
				b.WriteString(indent + "[[" + key("table") + "]]" + after + eol)
			}
		default:
			b.WriteString(indent + key("key") + " \t= " + rapid.SampledFrom(values).Draw(t, "value") + after + eol)
		}
	}
	if rapid.Bool().Draw(t, "cut") {
		return strings.TrimSuffix(b.String(), eol)
	}
	return b.String()
}

func TestSetChangesOnlyTheKey(t *testing.T) {
	done := 0
	rapid.Check(t, func(t *rapid.T) {
		in := document(t)
		doc, err := Parse([]byte(in))
		if err != nil {
			return
		}
		path := rapid.SliceOfN(rapid.SampledFrom(keys), 1, 4).Draw(t, "path")
		value := rapid.SampledFrom([]any{true, "s\n", []any{"p", "q", "r"}, []any{}, int64(4), 0.5}).Draw(t, "value")
		if checkSet(t, doc, value, path) {
			done++
		}
	})
	require.Positive(t, done)
}

// checkSet reports whether the key could be set, and checks that nothing else changed.
func checkSet(t require.TestingT, doc *Doc, value any, path []string) bool {
	before := string(doc.Bytes())
	next, err := doc.Set(value, path...)
	require.Equal(t, before, string(doc.Bytes()))
	if err != nil {
		_, ok := errors.AsType[*Error](err)
		require.True(t, ok)
		return false
	}
	after, err := Parse(next.Bytes())
	require.NoError(t, err)
	require.True(t, equal(after.root, with(doc.root, value, path)), "%s", next.Bytes())
	prefix := 0
	for prefix < len(before) && prefix < len(next.data) && before[prefix] == next.data[prefix] {
		prefix++
	}
	lost := 0 // bytes of the old text that are neither before nor after the edit
	for lost < len(before)-prefix && !strings.HasSuffix(string(next.data[prefix:]), before[prefix+lost:]) {
		lost++
	}
	old := 0
	for _, e := range doc.entries {
		if e.kind >= pair && slices.Equal(e.path, path) {
			old = max(old, e.end-e.value)
		}
	}
	require.LessOrEqual(t, lost, old, "%q became %q", before, next.data)
	return true
}

func FuzzSet(f *testing.F) {
	f.Add("[a]\nb = { c = 1 }\n", "a/b/c", "x")
	f.Add("a.b = [1,\n2]\r\n[[l]]\n", "a/b", "")
	f.Add("x=[{a=1}]", "x/a", "\x00")
	f.Fuzz(func(t *testing.T, in, path, value string) {
		doc, err := Parse([]byte(in))
		if err != nil {
			return
		}
		parts := strings.Split(path, "/")
		line, column := doc.Position(parts...)
		require.Positive(t, line)
		require.Positive(t, column)
		checkSet(t, doc, value, parts)
		checkSet(t, doc, []any{value}, parts)
		for key := range maps.Keys(doc.Root()) {
			checkSet(t, doc, true, []string{key})
		}
	})
}
