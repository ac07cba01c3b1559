package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/program"
)

// run runs the program and returns its exit code and its output.
func run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := program.Program{Name: "release", Help: help, Commands: commands}.Run(t.Context(), args, &out, &out)
	return code, out.String()
}

func TestHelpFitsAndHasExitCodes(t *testing.T) {
	for _, c := range commands {
		code, text := run(t, c.Name, "--help")
		require.Zero(t, code, text)
		require.Contains(t, text, "Exit codes:", c.Name)
		require.Regexp(t, `(?m)^  `+c.Name+` `, help)
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 100, line)
		}
	}
}

func TestWrongUseIsRefusedByFlag(t *testing.T) {
	for _, variable := range []string{"REGISTRY", "VERSION", "RELEASE_KEY", "RELEASE_PUBLIC_KEY"} {
		t.Setenv(variable, "")
	}
	signed := "verify --registry localhost:5005/gpuready --version v0.2.0 "
	for args, want := range map[string]string{
		"sign":                                          "--dir is missing",
		"sign --dir x":                                  "either --key or --keyless",
		"sign --dir x --key a --keyless":                "either --key or --keyless",
		"sign --dir x --key a -o yaml":                  "--output",
		"verify --version v0.2.0 --key a":               "--registry",
		"verify --registry https://a/b --version v1":    "--registry",
		"verify --registry a.example/b --version 0.2.0": "--version",
		signed:                           "either --key, or --identity and --issuer",
		signed + "--identity a":          "either --key, or --identity and --issuer",
		signed + "--key a --identity b":  "either --key, or --identity and --issuer",
		signed + "--key a --issuer b":    "either --key, or --identity and --issuer",
		signed + "--key a --issuer b -x": "unknown flag -x",
		signed + "--key a -o yaml":       "--output",
		signed + "--key a more":          "takes no arguments",
	} {
		code, text := run(t, strings.Fields(args)...)
		require.Equal(t, program.Usage, code, "%s: %s", args, text)
		require.Contains(t, text, want, args)
	}
}

func TestAMissingProgramIsNamedWithItsSource(t *testing.T) {
	code, text := run(t, "verify", "--registry", "localhost:1/gpuready", "--version", "v0.2.0", "--key", "a")
	require.Equal(t, program.Failed, code)
	require.Contains(t, text, "localhost:1")
	code, text = run(t, "registry", "--program", "/no/such/program", "--storage", t.TempDir(), "--listen", "localhost:0", "--", "true")
	require.Equal(t, program.Failed, code)
	require.Contains(t, text, "make bin/tools/registry")
}

func TestATimeoutHoldsForReadingAnArchive(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "x.tar")
	require.NoError(t, os.WriteFile(archive, make([]byte, 4096), 0o644))
	code, text := run(t, "load", "--archive", archive, "--registry", "localhost:1/mirror", "--timeout", "1ns")
	require.Equal(t, program.Failed, code)
	require.Contains(t, text, "not done after --timeout=1ns; run it again to go on")
	require.Contains(t, text, "context deadline exceeded")
	code, text = run(t, "load", "--archive", archive, "--registry", "localhost:1/mirror", "--work-dir", filepath.Join(dir, "none"))
	require.Equal(t, program.Failed, code)
	require.Contains(t, text, "--work-dir")
	left, err := filepath.Glob(filepath.Join(dir, "unpacked-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
