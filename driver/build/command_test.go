package build

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCommandsOfKbuild(t *testing.T) {
	c, err := parseCommand("cmd_/b/nvidia.ko := ld -r -m elf_x86_64 -z noexecstack --build-id=sha1  -T arch/x86/module.lds -o /b/nvidia.ko /b/nvidia.o /b/nvidia.mod.o;  true\n")
	require.NoError(t, err)
	require.Equal(t, command{
		program: "ld", flags: []string{"-m", "elf_x86_64", "-z", "noexecstack", "--build-id=sha1"},
		script: "arch/x86/module.lds", objects: []string{"/b/nvidia.o", "/b/nvidia.mod.o"},
	}, c)
	c, err = parseCommand("savedcmd_/b/nvidia.o := x86_64-linux-gnu-ld -m elf_x86_64   -r -o /b/nvidia.o @/b/nvidia.mod  ; ./tools/objtool/objtool --ibt --link  --module /b/nvidia.o\n\nsource_\n")
	require.NoError(t, err)
	require.Equal(t, command{
		program: "x86_64-linux-gnu-ld", flags: []string{"-m", "elf_x86_64"}, objects: []string{"@/b/nvidia.mod"},
		objtool: []string{"./tools/objtool/objtool", "--ibt", "--link", "--module"},
	}, c)
	for _, text := range []string{"", "cmd_a := ", "cmd_a := ld -r", "cmd_a := ld -o", "cmd_a := ld -o a.ko", "x := ld -o a b", "cmd_a := ld -o a $(b)", "cmd_a := ; objtool"} {
		_, err := parseCommand(text)
		require.ErrorIs(t, err, errCommand, text)
	}
}

func FuzzCommand(f *testing.F) {
	f.Add("cmd_a.ko := ld -r -T x.lds -o a.ko a.o b.o; true\n")
	f.Add("savedcmd_a.o := ld -r -o a.o @a.mod ; tools/objtool/objtool --link a.o\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCommand(text)
		if err == nil {
			require.NotEmpty(t, c.program)
			require.NotEmpty(t, c.objects)
			require.NotEqual(t, 0, cap(c.objects))
		}
	})
}
