package output

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// parse parses the output of a build in /build/source.
func parse(t testing.TB, text string) *Output {
	t.Helper()
	o := New("/build/source", slog.New(slog.DiscardHandler))
	_, err := o.Write([]byte(text))
	require.NoError(t, err)
	o.Finish()
	return o
}

func TestFirstErrorIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Failure
	}{
		"GCC": {
			"  CC [M]  /build/source/nvidia/nv-vm.o\n" +
				"/build/source/nvidia/nv-vm.c: In function 'nv_vm_map':\n" +
				"/build/source/nvidia/nv-vm.c:31:9: warning: unused variable 'x' [-Wunused-variable]\n" +
				"/build/source/nvidia/nv-vm.c:42:15: error: too few arguments to function 'pci_resize_resource'\n" +
				"   42 |         ret = pci_resize_resource(dev, 1, size);\n" +
				"/build/source/nvidia/nv-vm.c:50:2: error: 'second' undeclared (first use in this function)\n" +
				"make[2]: *** [scripts/Makefile.build:250: /build/source/nvidia/nv-vm.o] Error 1\n",
			Failure{"nvidia/nv-vm.c", 42, "too few arguments to function 'pci_resize_resource'", "this driver version does not know that pci_resize_resource() has a fourth argument since Linux 6.19, 6.12.97 and Debian's 6.1.0-53: 535.309.01 or 580.126.09 does, or a later one"},
		},
		"InHeader": {
			"/usr/src/linux/include/linux/mm.h:77:10: error: unknown type name 'vm_thing_t'\n",
			Failure{"/usr/src/linux/include/linux/mm.h", 77, "unknown type name 'vm_thing_t'", hintDriver},
		},
		"Clang": {
			"/build/source/nvidia/os.c:7:3: error: call to undeclared function 'do_gone'; ISO C99 and later do not support implicit function declarations [-Wimplicit-function-declaration]\n" +
				"                do_gone(x);\n                ^\n1 error generated.\n",
			Failure{"nvidia/os.c", 7, "call to undeclared function 'do_gone'; ISO C99 and later do not support implicit function declarations [-Wimplicit-function-declaration]", hintDriver},
		},
		"ClangMember": {
			"/build/source/a.c:9:12: error: no member named 'driver_data' in 'struct device'\n",
			Failure{"a.c", 9, "no member named 'driver_data' in 'struct device'", hintDriver},
		},
		"ClangOption": {
			"clang: error: unknown argument: '-fzero-call-used-regs=used-gpr'\n",
			Failure{"clang", 0, "unknown argument: '-fzero-call-used-regs=used-gpr'", hintCompiler},
		},
		"HeaderOfTheKernelIsGone": {
			"/build/source/nvidia/nv.c:3:10: fatal error: linux/stdarg.h: No such file or directory\ncompilation terminated.\n",
			Failure{"nvidia/nv.c", 3, "linux/stdarg.h: No such file or directory", hintDriver},
		},
		"GeneratedHeaderIsMissing": {
			"cc1: fatal error: /usr/src/linux/include/generated/autoconf.h: No such file or directory\n",
			Failure{"cc1", 0, "/usr/src/linux/include/generated/autoconf.h: No such file or directory", HintHeaders},
		},
		"KernelIsNotConfigured": {
			"\n  ERROR: Kernel configuration is invalid.\n         include/generated/autoconf.h or include/config/auto.conf are missing.\n",
			Failure{"", 0, "Kernel configuration is invalid.", HintHeaders},
		},
		"Modpost": {
			"ERROR: modpost: \"mmput_gone\" [/build/source/nvidia-uvm.ko] undefined!\nmake[1]: *** [Makefile.modpost:126: Module.symvers] Error 1\n",
			Failure{"", 0, `"mmput_gone" [nvidia-uvm.ko] undefined!`, hintDriver},
		},
		"ModpostBefore57": {
			"ERROR: \"f\" [/build/source/nvidia.ko] undefined!\n",
			Failure{"", 0, `"f" [nvidia.ko] undefined!`, hintDriver},
		},
		"ModpostLicense": {
			"ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_lock_strict'\n",
			Failure{"", 0, "GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_lock_strict'", hintLicense},
		},
		"DiskGoesBeforeWhatItCauses": {
			"/build/source/a.c:9:12: error: expected ';' before '}' token\n" +
				"{standard input}: Fatal error: can't write 44 bytes to section .text of a.o: 'No space left on device'\n",
			Failure{"", 0, "{standard input}: Fatal error: can't write 44 bytes to section .text of a.o: 'No space left on device'", hintDisk},
		},
		"Memory": {
			"gcc-12: fatal error: Killed signal terminated program cc1\ncompilation terminated.\n",
			Failure{"", 0, "gcc-12: fatal error: Killed signal terminated program cc1", hintMemory},
		},
		"Assembler": {
			"{standard input}: Assembler messages:\n{standard input}:31: Error: no such instruction: `endbr65'\n",
			Failure{"{standard input}", 31, "no such instruction: `endbr65'", hintCompiler},
		},
		"Linker": {
			"ld: warning: nv-kernel.o: missing .note.GNU-stack section implies executable stack\nld.bfd: cannot find nv-kernel.o: No such file or directory\n",
			Failure{"", 0, "cannot find nv-kernel.o: No such file or directory", ""},
		},
		"NoCompiler": {
			"/bin/sh: 1: gcc-12: not found\nmake[1]: *** [Makefile:1: a] Error 127\n",
			Failure{"", 0, "gcc-12: not found", hintMissing},
		},
		"ToolsOfAnotherDistribution": {
			"scripts/mod/modpost: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by scripts/mod/modpost)\nmake: *** [x] Error 1\n",
			Failure{"scripts/mod/modpost", 0, "/lib64/libc.so.6: version `GLIBC_2.38' not found (required by scripts/mod/modpost)", hintTools},
		},
		"NVIDIACompilerCheck": {
			"The compiler used to compile the kernel (gcc 13) does not exactly match the current compiler (gcc 12).\n*** Failed CC version check. Bailing out! ***\n",
			Failure{"", 0, "Failed CC version check. Bailing out! ***", hintCompiler},
		},
		"Make": {
			"make[1]: *** No rule to make target '/usr/src/linux/tools/objtool/objtool', needed by 'a.o'.  Stop.\n",
			Failure{"", 0, "No rule to make target '/usr/src/linux/tools/objtool/objtool', needed by 'a.o'.  Stop.", HintHeaders},
		},
		"NoNewlineAtTheEnd": {
			"/build/source/a.c:1:2: error: stray '@' in program",
			Failure{"a.c", 1, "stray '@' in program", ""},
		},
		"ControlCharacters": {
			"/build/source/a.c:1:2: error: a\x1b[31mb\r\n",
			Failure{"a.c", 1, "a [31mb", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := parse(t, c.text)
			require.NotNil(t, o.Failure)
			require.Equal(t, c.want, *o.Failure)
		})
	}
}

func TestOutputWithoutAnErrorHasNone(t *testing.T) {
	o := parse(t, " CONFTEST: set_pages_uc\n CONFTEST: proc_ops\n  CC [M]  /build/source/a.o\n  AS [M]  b.o\n  LD [M]  a.ko\n"+
		"a.o: warning: objtool: f() falls through\nmake: Leaving directory '/x'\n")
	require.Nil(t, o.Failure)
	require.Equal(t, 2, o.Objects)
	require.Equal(t, 2, o.Tests)
	require.Equal(t, "make: Leaving directory '/x'", o.Last)
}

func TestErrorNamesPlaceAndHint(t *testing.T) {
	require.EqualError(t, &Failure{File: "a.c", Line: 3, Message: "m", Hint: "h"}, "a.c:3: m; h")
	require.EqualError(t, &Failure{File: "cc1", Message: "m"}, "cc1: m")
	require.EqualError(t, &Failure{Message: "m"}, "m")
}

func TestProgressIsLoggedNowAndThen(t *testing.T) {
	var b bytes.Buffer
	o := New("/", slog.New(slog.NewTextHandler(&b, nil)))
	_, _ = o.Write([]byte(strings.Repeat("  CC [M]  a.o\n", 100)))
	require.Empty(t, b.String())
	o.printed = time.Now().Add(-progressEvery)
	_, _ = o.Write([]byte(strings.Repeat("  CC [M]  a.o\n", 100)))
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "msg=compiling tests=0 objects=101")
}

func FuzzOutput(f *testing.F) {
	f.Add("/build/source/a.c:1:2: error: x\n", 3)
	f.Add("ERROR: modpost: \"f\" [a.ko] undefined!\n", 1)
	f.Add("make[1]: *** x\n"+strings.Repeat("a", 2*maxLine), 100)
	f.Fuzz(func(t *testing.T, text string, size int) {
		whole := parse(t, text)
		// The result does not depend on how the output is split.
		o := New("/build/source", slog.New(slog.DiscardHandler))
		for rest := []byte(text); len(rest) > 0; {
			n := min(max(size, 1), len(rest))
			_, _ = o.Write(rest[:n])
			rest = rest[n:]
		}
		o.Finish()
		require.Equal(t, whole.Failure, o.Failure)
		if whole.Failure != nil {
			require.LessOrEqual(t, len(whole.Failure.Error()), maxPath+maxReason+300)
			require.NotContains(t, whole.Failure.Error(), "\n")
		}
	})
}
