package library

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModuleVersionParsesEveryFormat(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 16 00:00:00 UTC 2025\n":                      "580.95.05",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)  Thu\nGCC": "570.86.15",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  535.104  Wed\n":                                                "535.104",
		"": "", "NVRM version: none\n": "", "GCC version: 580.95.05\n": "",
	} {
		require.Equal(t, want, ModuleVersion(text))
	}
}

func FuzzModuleVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n")
	f.Fuzz(func(t *testing.T, text string) {
		if v := ModuleVersion(text); v != "" && (Version("libcuda.so."+v) != v || !strings.Contains(text, v)) {
			t.Errorf("version %q", v)
		}
	})
}

func TestVersionOfALibrary(t *testing.T) {
	for file, want := range map[string]string{
		"/usr/lib64/libcuda.so.580.95.05": "580.95.05", "libcuda.so.470.161.03": "470.161.03", "libnvidia-ml.so.535.104": "535.104", "libcuda.so.1580.1.2.3": "1580.1.2.3",
		"libcuda.so.1": "", "libcuda.so.1.1": "", "libcuda.so": "", "libcuda.so.580": "", "libcuda.so.580.": "", "libcuda.so.580.95.05.1.2": "", "libcuda.so.580.95.05-1": "", "libcuda.so.15800.1": "",
	} {
		require.Equal(t, want, Version(file), file)
	}
}
