package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheStubsThatAreCheckedInAreThoseOfTheHeader(t *testing.T) {
	want, err := generate("../nvml")
	require.NoError(t, err)
	got, err := os.ReadFile("../nvml/stubs.c")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go run ./simulator/nvmlgen")
}

func TestAFolderWithoutTheHeaderIsRefused(t *testing.T) {
	require.ErrorContains(t, write(t.TempDir()), "nvml.h")
}

func TestAHeaderThatDeclaresNothingIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvml.h"), []byte("/* nvmlReturn_t DECLDIR nvmlInit(void); */\n"), 0o644))
	require.ErrorContains(t, write(dir), "nvml.h declares nothing")
}

func TestWhatIsDeclaredAndNotDefinedIsAStub(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nvml.h":  "nvmlReturn_t DECLDIR nvmlInit(void);\nnvmlReturn_t DECLDIR nvmlShutdown(void);\nconst DECLDIR char* nvmlErrorString(nvmlReturn_t r);\n",
		"init.c":  "API nvmlReturn_t nvmlInit(void) { return 0; }\n",
		"stubs.c": "API nvmlReturn_t nvmlShutdown(void) { return 0; }\n", // what is written counts for nothing
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(t, write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "stubs.c"))
	require.NoError(t, err)
	require.Equal(t, preamble+"STUB(nvmlErrorString)\nSTUB(nvmlShutdown)\n", string(text))
}
