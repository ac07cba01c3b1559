package output

import "regexp"

// HintHeaders is the hint for missing files of a kernel's headers.
const HintHeaders = "the kernel's headers are incomplete: install kernel-devel or linux-headers of exactly this kernel"

// The other hints.
const (
	hintDisk     = "the disk under the work folder is full: NVIDIA's modules take 1 GiB there"
	hintMemory   = "memory ran out: raise the container's memory limit, or compile with fewer jobs"
	hintCompiler = "the compiler is not the one that built the kernel: use the one that CONFIG_CC_VERSION_TEXT in the headers' .config names"
	hintTools    = "the headers' own programs do not run in this image: use the image of the kernel's distribution"
	hintLicense  = "the kernel reserves this symbol for modules under the GPL: use the open modules, or another driver version"
	hintDriver   = "this driver version does not know this kernel: take a newer one"
	hintMissing  = "a program is missing: build in an image that has make, the compiler and binutils"
)

// hints maps messages to hints. The first match counts.
var hints = []struct {
	pattern *regexp.Regexp
	hint    string
}{
	{regexp.MustCompile(`(?i)no space left on device|disk quota exceeded`), hintDisk},
	{regexp.MustCompile(`(?i)cannot allocate memory|virtual memory exhausted|out of memory|Killed signal terminated|: Killed \(program`), hintMemory},

	// Files that a kernel's build generates, and that packages of headers have.
	{regexp.MustCompile(`(generated|asm|config)/\S+: No such file|Kernel configuration is invalid|auto\.conf|No rule to make target '/`), HintHeaders},
	{regexp.MustCompile(`error while loading shared libraries|Exec format error|GLIBC_`), hintTools},

	// gcc, gcc before 10, clang.
	{regexp.MustCompile(`unrecognized command[- ]line option|unknown argument|unsupported option|bad value .* for .*-m`), hintCompiler},
	{regexp.MustCompile(`incompatible gcc/plugin versions|Failed CC |no such instruction`), hintCompiler},

	{regexp.MustCompile(`GPL-only symbol|GPL-incompatible module`), hintLicense},

	// Removed functions, changed arguments and renamed members, as reported by gcc, clang
	// and modpost.
	{regexp.MustCompile(`implicit declaration of function|call to undeclared function|undeclared`), hintDriver},
	{regexp.MustCompile(`incompatible (function )?pointer type|incompatible type|conflicting types|unknown type name`), hintDriver},
	{regexp.MustCompile(`too (few|many) arguments|no member named|storage size of|(incomplete|undefined) type`), hintDriver},
	{regexp.MustCompile(`void value not ignored|invalid use of void|has no member|undefined!`), hintDriver},
	{regexp.MustCompile(`(linux|drm|crypto|net|sound|video|acpi)/\S+: No such file|' file not found`), hintDriver},

	{regexp.MustCompile(`: not found|command not found|executable file not found|cannot execute`), hintMissing},
}

// findHint returns a hint for an error of a driver's build; "" if none is known.
func findHint(driver, message string) string {
	if h := findChange(driver, message); h != "" {
		return h
	}
	for _, h := range hints {
		if h.pattern.MatchString(message) {
			return h.hint
		}
	}
	return ""
}
