package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckedInStubsMatchTheHeader(t *testing.T) {
	header, err := findHeader()
	require.NoError(t, err)
	want, err := generate("../nvml", header)
	require.NoError(t, err)
	got, err := os.ReadFile("../nvml/stubs.c")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go run ./simulator/nvmlgen")
}

func TestAMissingHeaderIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, write(dir, filepath.Join(dir, "nvml.h")), "nvml.h")
}

func TestAHeaderThatDeclaresNothingIsRefused(t *testing.T) {
	dir := t.TempDir()
	header := filepath.Join(dir, "nvml.h")
	require.NoError(t, os.WriteFile(header, []byte("/* nvmlReturn_t DECLDIR nvmlInit(void); */\n"), 0o644))
	require.ErrorContains(t, write(dir, header), "nvml.h declares nothing")
}

func TestDeclaredButUndefinedFunctionsGetAStub(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nvml.h":  "nvmlReturn_t DECLDIR nvmlInit(void);\nnvmlReturn_t DECLDIR nvmlShutdown(void);\nconst DECLDIR char* nvmlErrorString(nvmlReturn_t r);\n",
		"init.c":  "API nvmlReturn_t nvmlInit(void) { return 0; }\n",
		"stubs.c": "API nvmlReturn_t nvmlShutdown(void) { return 0; }\n", // what is written counts for nothing
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(t, write(dir, filepath.Join(dir, "nvml.h")))
	text, err := os.ReadFile(filepath.Join(dir, "stubs.c"))
	require.NoError(t, err)
	require.Equal(t, preamble+"STUB(nvmlErrorString)\nSTUB(nvmlShutdown)\n", string(text))
}
