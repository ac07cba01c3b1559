package main

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const good = `# What it is.
ARG BASE=registry.example/base@sha256:0
FROM ${BASE}
ARG BASE
ARG VERSION
LABEL title="a \"b\" c" \
      version="${VERSION}"
# Why.
COPY --chmod=0755 one lib/two.so /usr/bin/
COPY --chmod=0644 images/x.spdx.json /usr/share/sbom/x.spdx.json
USER 65532:65532
ENTRYPOINT ["/usr/bin/one", "--flag=a,b"]
`

func TestParseRecipe(t *testing.T) {
	r, err := parseRecipe(good)
	require.NoError(t, err)
	require.Equal(t, recipe{
		Base:   "registry.example/base@sha256:0",
		Args:   []string{"BASE", "VERSION"},
		Labels: map[string]string{"title": `a "b" c`, "version": "${VERSION}"},
		Files: []copied{
			{"one", "/usr/bin/one", 0o755}, {"lib/two.so", "/usr/bin/two.so", 0o755},
			{"images/x.spdx.json", "/usr/share/sbom/x.spdx.json", 0o644},
		},
		User:       "65532:65532",
		Entrypoint: []string{"/usr/bin/one", "--flag=a,b"},
	}, r)
}

func TestUnsupportedInstructionsAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"a command":          {"USER", "RUN true\nUSER", "RUN is not among"},
		"small letters":      {"USER", "run true\nUSER", "run is not among"},
		"a download":         {"USER", "ADD https://example.org/x /\nUSER", "ADD is not among"},
		"a second stage":     {"USER", "FROM scratch\nUSER", "one FROM ${BASE}"},
		"a fixed base":       {"FROM ${BASE}", "FROM debian", "one FROM ${BASE}"},
		"no base":            {"ARG BASE=registry.example/base@sha256:0\n", "", "ARG BASE=… and FROM"},
		"the builder's mode": {"--chmod=0755 ", "", "umask does not matter"},
		"setuid":             {"0755", "4755", "up to 0777"},
		"another stage":      {"--chmod=0755", "--from=x", "is required"},
		"a pattern":          {"one lib", "* lib", "one file below the context"},
		"outside":            {"one lib", "../one lib", "one file below the context"},
		"a variable":         {"one lib", "$X lib", "one file below the context"},
		"a relative target":  {"/usr/bin/\n", "bin/\n", "absolute destination"},
		"several into one":   {"/usr/bin/\n", "/usr/bin\n", "absolute destination"},
		"a shell's form":     {`["/usr/bin/one", "--flag=a,b"]`, "/usr/bin/one", "there is no shell"},
		"no program":         {`ENTRYPOINT ["/usr/bin/one", "--flag=a,b"]`, "", "an ENTRYPOINT is required"},
		"no user":            {"USER 65532:65532", "", "a USER is required"},
		"an open label":      {`version="${VERSION}"`, `version=1`, `key="value"`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			require.NotEqual(t, good, text)
			_, err := parseRecipe(text)
			require.ErrorContains(t, err, c.want)
			require.Regexp(t, `^line \d+: `, err)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("ARG BASE=\\\n\nFROM")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRecipe(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, r.Entrypoint)
		for _, file := range r.Files {
			require.True(t, fs.ValidPath(file.Source))
			require.Zero(t, file.Mode&^fs.FileMode(0o777))
		}
	})
}
