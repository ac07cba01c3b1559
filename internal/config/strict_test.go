package config

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

type embedded struct {
	Shared string `json:"shared"`
}

type sample struct {
	embedded
	Version string `json:"version"`
	Flags   struct {
		MIGStrategy *string `json:"migStrategy"`
		Count       uint    `json:"count"`
	} `json:"flags"`
	Resources []struct {
		Name    string          `json:"name"`
		Devices map[string]bool `json:"devices,omitempty"`
	} `json:"resources,omitempty"`
	Hidden string `json:"-"`
}

func TestErrorsNameSourceFieldAndRemedy(t *testing.T) {
	cases := []struct{ name, in, want string }{
		{"empty", "", `c.yaml: empty; write a configuration into it or do not name it`},
		{"comment only", "# nothing\n", `c.yaml: empty; write a configuration into it or do not name it`},
		{"scalar", "versio", `c.yaml: holds no keys; is it the right file, or was it cut short?`},
		{"misspelt", "version: v1\nflags: {migStrategi: single}", `c.yaml: flags.migStrategi: unknown key, did you mean "migStrategy"?`},
		{"other case", "Version: v1", `c.yaml: Version: unknown key, did you mean "version"?`},
		{"far from all", "flags: {zzzzzz: 1}", `c.yaml: flags.zzzzzz: unknown key (known here: count, migStrategy)`},
		{"in a list", "resources: [{name: a}, {nam: b}]", `c.yaml: resources[1].nam: unknown key, did you mean "name"?`},
		{"indented wrong", "flags: {devices: {}}\n", `c.yaml: flags.devices: unknown key here, did you mean resources.devices?`},
		{"hidden", "Hidden: x", `c.yaml: Hidden: unknown key (known here: flags, resources, shared, version)`},
		{"twice", "version: v1\nversion: v2\n", `c.yaml: line 2: key "version" is set twice; remove one`},
		{"wrong type", "flags: {count: many}", `c.yaml: flags.count: want a whole number that is not negative, have string`},
		{"negative", "flags: {count: -1}", `c.yaml: flags.count: want a whole number that is not negative, have number -1`},
		{"list for keys", "flags: [a]", `c.yaml: flags: want keys with values, have array`},
		{"cut short", "flags: {count: 1", `c.yaml: line 1: did not find expected ',' or '}'; was the file cut short?`},
		{"second document", "version: v1\n---\nversion: v2\n", `c.yaml: line 2: a second document begins; keep one per file`},
		{"binary", "version: v1\x00", `c.yaml: has a zero byte and is no text; write it again`},
		{"too large", "#" + strings.Repeat("x", MaxBytes), `c.yaml: has 1048577 bytes, no more than 1048576 are read; is it the right file?`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var into sample
			err := Strict([]byte(c.in), &into, "c.yaml")
			require.EqualError(t, err, c.want)
			var typed *Error
			require.True(t, errors.As(err, &typed))
			require.Equal(t, "c.yaml", typed.Source)
		})
	}
}

func TestAWellFormedFileIsDecoded(t *testing.T) {
	var into sample
	in := "# first\n---\nversion: 1\nshared: x\nflags: {migStrategy: null, count: 3}\nresources: [{name: a, devices: {any key: true}}]\n"
	require.NoError(t, Strict([]byte(in), &into, "c.yaml"))
	require.Equal(t, "1", into.Version, "a number is taken where a string is wanted, as Kubernetes does")
	require.Equal(t, "x", into.Shared)
	require.EqualValues(t, 3, into.Flags.Count)
	require.True(t, into.Resources[0].Devices["any key"])
}

func TestUnknownKeysCanBePassedOverAndAreAllNamed(t *testing.T) {
	in := "Version: v0\nversion: 1\nflags: {count: 3, counts: 4}\nresources: [{name: a, nam: b, devices: {x: true}}]\nextra: {deep: [1, 2]}\n"
	var into sample
	ignored, err := Ignoring([]byte(in), &into, "c.yaml")
	require.NoError(t, err)
	var got []string
	for _, key := range ignored {
		got = append(got, key.Error())
	}
	require.Equal(t, []string{
		`c.yaml: Version: unknown key, did you mean "version"?`,
		`c.yaml: extra: unknown key (known here: flags, resources, shared, version)`,
		`c.yaml: flags.counts: unknown key, did you mean "count"?`,
		`c.yaml: resources[0].nam: unknown key, did you mean "name"?`,
	}, got)
	require.EqualError(t, Strict([]byte(in), new(sample), "c.yaml"), strings.Join(got, "\n"))
	require.Equal(t, "1", into.Version)
	require.EqualValues(t, 3, into.Flags.Count)
	require.Equal(t, "a", into.Resources[0].Name)
	require.True(t, into.Resources[0].Devices["x"])

	for _, bad := range []string{"version: a\nversion: b", "extra: 1\nextra: 2", "x: 1\nflags: {count: many}", "", "version: [", "a: 1\n---\nb: 1"} {
		_, err := Ignoring([]byte(bad), new(sample), "c.yaml")
		require.ErrorContains(t, err, "c.yaml: ", "refused as ever: %q", bad)
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Control characters are not YAML.
		text := rapid.StringOf(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S, unicode.Zs))
		var want, got sample
		want.Version = text.Draw(t, "version")
		want.Flags.Count = rapid.UintRange(0, 1<<53).Draw(t, "count")
		strategy := text.Draw(t, "strategy")
		want.Flags.MIGStrategy = &strategy
		data, err := yaml.Marshal(want)
		require.NoError(t, err)
		require.NoError(t, Strict(data, &got, "c.yaml"))
		require.Equal(t, want, got)
	})
}

func FuzzStrict(f *testing.F) {
	for _, seed := range []string{"", "version: v1", "flags: {count: 1}", "a: &a [*a]", "resources:\n- name: x\n", "{\"version\":\"v1\"}", "--- |\n x\n", "? {a: b}\n: c"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var into sample
		err := Strict(data, &into, "fuzz")
		var lenient sample
		ignored, lenientErr := Ignoring(data, &lenient, "fuzz")
		if err == nil {
			require.NoError(t, lenientErr)
			require.Empty(t, ignored)
			require.Equal(t, into, lenient)
			return
		}
		require.False(t, lenientErr == nil && len(ignored) == 0, "passed over, and nothing said: %v", err)
		if _, joined := err.(interface{ Unwrap() []error }); !joined && strings.ContainsRune(err.Error(), '\n') {
			t.Errorf("an error of more than one line: %q", err)
		}
	})
}

func TestTheCommandLineWinsOverTheEnvironment(t *testing.T) {
	names := map[string]string{"root": "TEST_ROOT", "wait": "TEST_WAIT", "on": "TEST_ON"}
	parse := func(args ...string) (*pflag.FlagSet, error) {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.String("root", "/", "root")
		flags.Duration("wait", time.Second, "how long")
		flags.Bool("on", false, "on")
		Describe(flags, names)
		require.NoError(t, flags.Parse(args))
		return flags, Env(flags, names)
	}
	t.Setenv("TEST_ROOT", "/from-env")
	t.Setenv("TEST_WAIT", "")
	t.Setenv("TEST_ON", "true")

	flags, err := parse()
	require.NoError(t, err)
	require.Equal(t, "/from-env", flags.Lookup("root").Value.String())
	require.True(t, flags.Changed("root"))
	require.Equal(t, "1s", flags.Lookup("wait").Value.String(), "an empty variable is not set")
	require.Equal(t, "true", flags.Lookup("on").Value.String())
	require.Contains(t, flags.FlagUsages(), "[$TEST_ROOT]")

	flags, err = parse("--root=/from-args", "--on=false")
	require.NoError(t, err)
	require.Equal(t, "/from-args", flags.Lookup("root").Value.String())
	require.Equal(t, "false", flags.Lookup("on").Value.String())

	t.Setenv("TEST_WAIT", "soon")
	_, err = parse()
	require.ErrorContains(t, err, `environment variable TEST_WAIT, for --wait: "soon" is not a duration, such as 30s or 5m`)

	require.ErrorContains(t, Env(pflag.NewFlagSet("x", pflag.ContinueOnError), names), "there is no flag --on")
}
