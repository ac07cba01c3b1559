package toolkit

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShellReadsEnvUnchanged(t *testing.T) {
	env := map[string]string{"A": "", "B": `it's $(id) "x" \ ` + "`y`", "C_1": "1.2 3"}
	text, err := formatEnv(env)
	require.NoError(t, err)
	again, err := parseEnv(text)
	require.NoError(t, err)
	require.Equal(t, env, again)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", text+`printf '%s|%s|%s' "$A" "$B" "$C_1"`).Output()
	require.NoError(t, err)
	require.Equal(t, "|"+env["B"]+"|1.2 3", string(out))
	for _, bad := range []map[string]string{{"a": ""}, {"A B": ""}, {"": ""}, {"A": "x\ny"}, {"A": "x\x00"}, {"A": "\xff"}, {"A": strings.Repeat("x", maxEnv)}} {
		_, err := formatEnv(bad)
		require.Error(t, err)
	}
	for _, text := range []string{"A=1\n", "A='1'", "A='1'\nA='2'\n", "B=''\nA=''\n", "A=''; id\n", "A='''\n", "export A=''\n", "\n", "A='a'b'\n"} {
		_, err := parseEnv(text)
		require.Error(t, err, "%q", text)
	}
}

func FuzzEnv(f *testing.F) {
	f.Add("A='1'\nB='it'\\''s'\n")
	f.Add("A=''; id\n")
	f.Fuzz(func(t *testing.T, text string) {
		env, err := parseEnv(text)
		if err != nil {
			return
		}
		again, err := formatEnv(env)
		require.NoError(t, err)
		require.Equal(t, text, again)
		if r, err := newRequest(env); err == nil {
			for _, name := range r.Modules {
				require.True(t, filepath.IsLocal(name+".ko"), fmt.Sprint(r))
			}
		}
	})
}

// nvidiaNames lists the variables that are read from NVIDIA's env.
var nvidiaNames = []string{envVersion, envKind, envDriverType, envOpen, envRDMA}

func TestNeededVariablesAreReadFromNVIDIAsEnv(t *testing.T) {
	env, err := parseNVIDIAEnv(`PATH="/usr/bin:/bin"
PS1="$(id) \"
NVIDIA_REQUIRE="brand=tesla,driver>=450
cuda>=12"
DRIVER_VERSION="580.95.05"
DRIVER_TYPE=""
KERNEL_MODULE_TYPE=auto
XDRIVER_VERSION="1"
`, nvidiaNames...)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"DRIVER_VERSION": "580.95.05", "DRIVER_TYPE": "", "KERNEL_MODULE_TYPE": "auto"}, env)
	for _, text := range []string{
		"DRIVER_VERSION=\"../../etc/passwd\"\n", "DRIVER_VERSION=\"-x\"\n", "DRIVER_VERSION=\".\"\n", "DRIVER_VERSION=\"1 2\"\n", "DRIVER_VERSION=\"$(id)\"\n",
		"DRIVER_VERSION=\"1\x00\"\n", "DRIVER_VERSION=\"1\r\"\n", "DRIVER_VERSION=\"1\"\"\n", "DRIVER_VERSION='1'\n", "DRIVER_VERSION=\"" + strings.Repeat("1", 65) + "\"\n",
		"DRIVER_VERSION=\"1\"\nA=\"text\nDRIVER_VERSION=2\"\n", "DRIVER_VERSION=\"1\"\nDRIVER_VERSION=\"1\"\n",
	} {
		_, err := parseNVIDIAEnv(text, nvidiaNames...)
		require.Error(t, err, "%q", text)
	}
}

func FuzzNVIDIAEnv(f *testing.F) {
	f.Add("DRIVER_VERSION=\"580.95.05\"\nKERNEL_MODULE_TYPE=\"auto\"\nPS1=\"\\\"\n")
	f.Add("A=\"x\nDRIVER_VERSION=\"../1\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		env, err := parseNVIDIAEnv(text, nvidiaNames...)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(env), len(nvidiaNames))
		for name, value := range env {
			require.Contains(t, nvidiaNames, name)
			require.Contains(t, text, name+"=")
			if value != "" {
				require.True(t, filepath.IsLocal(value) && filepath.Base(value) == value && value[0] != '-', value)
			}
			_, err := formatEnv(map[string]string{name: value})
			require.NoError(t, err)
		}
	})
}
