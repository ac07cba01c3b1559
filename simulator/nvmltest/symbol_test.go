package nvmltest

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

func exported(t *testing.T) []string {
	t.Helper()
	library, err := elf.Open(built.Path(t, "lib/libnvidia-ml.so"))
	require.NoError(t, err)
	defer func() { require.NoError(t, library.Close()) }()
	symbols, err := library.DynamicSymbols()
	require.NoError(t, err)
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	return names
}

// declared returns the functions of go-nvml's nvml.h, which go.mod names.
func declared(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-find", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	require.NoError(t, err)
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "nvml.h"))
	require.NoError(t, err)
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(header), "")
	var names []string
	for statement := range strings.SplitSeq(text, ";") {
		if _, prototype, ok := strings.Cut(statement, "DECLDIR"); ok && strings.Contains(statement, "nvmlReturn_t") {
			name, _, _ := strings.Cut(prototype, "(")
			names = append(names, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), "char*")))
		}
	}
	require.Greater(t, len(names), 400)
	return names
}

func TestEveryFunctionOfTheHeaderIsExported(t *testing.T) {
	have := exported(t)
	for _, name := range declared(t) {
		require.True(t, slices.Contains(have, name), name)
	}
}

// The list is of Debian's libnvidia-ml1 535.261.03 (nm -D --defined-only).
func TestTheRealLibraryExportsNothingThatIsMissingHere(t *testing.T) {
	list, err := os.ReadFile("testdata/libnvidia-ml1-535.261.03.symbols")
	require.NoError(t, err)
	exceptions, err := os.ReadFile("testdata/exceptions")
	require.NoError(t, err)
	have := exported(t)
	for name := range strings.FieldsSeq(string(list)) {
		excepted := strings.Contains(string(exceptions), "\n"+name+": ")
		require.Equal(t, excepted, !slices.Contains(have, name), name)
	}
}

// Exports beyond nvml.h would shadow symbols of the programs that load the library.
func TestNothingElseIsExported(t *testing.T) {
	extra := []string{"gpusim_simulated", "nvmlGetBlacklistDeviceCount", "nvmlGetBlacklistDeviceInfoByIndex"}
	names := declared(t)
	for _, name := range exported(t) {
		if !slices.Contains(names, name) {
			require.Contains(t, extra, name)
		}
	}
}
