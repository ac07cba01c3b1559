package component_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Every program with commands has the same: completion, version, --version, help with exit codes in
// lines of at most 100 columns, and a manual page made of it.
func TestProgramsHaveTheSameConventions(t *testing.T) {
	for _, p := range []struct{ name, command, flag string }{
		{"gpu-device-plugin", "check-config", "--unknown-keys"},
		{"gpu-driver", "status", "--help"},
		{"gpu-operator", "render", "--own-driver"},
		{"gpu-provision", "measure", "--kubeconfig"},
		{"gpu-toolkit", "audit", "--driver-root"},
		{"gpu-validator", "explain", "--node"},
		{"gpusim", "up", "--profile"},
		{"kubectl-gpu", "must-gather", "--request-timeout"},
	} {
		t.Run(p.name, func(t *testing.T) {
			run := func(args ...string) string {
				out, err := exec.Command(built.Path(t, p.name), args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			help := run("--help")
			require.Equal(t, help, run("help"))
			require.Contains(t, help, "Exit codes:")
			for line := range strings.Lines(run("__complete", "")) {
				command, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
				if strings.HasPrefix(command, ":") {
					break
				}
				for line := range strings.Lines(help + run(command, "--help")) {
					require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 100, line)
				}
			}

			require.Equal(t, run("version"), run("--version"))
			var version struct{ Program, Version, Go, Platform string }
			require.NoError(t, json.Unmarshal([]byte(run("version", "-o", "json")), &version))
			require.Equal(t, p.name, version.Program)
			require.NotEmpty(t, version.Version)
			require.Contains(t, run("version"), version.Go+", "+version.Platform+")\n")

			complete := func(words ...string) string {
				script := `PATH="$1:$PATH"; source <("$2" completion bash) && COMP_WORDS=("${@:2}") && COMP_CWORD=$(($# - 2)) &&
					"$(complete -p "$2" | sed 's/.*-F \([^ ]*\).*/\1/')" && printf '%s\n' "${COMPREPLY[@]}"`
				path := built.Path(t, p.name)
				out, err := exec.Command("bash", append([]string{"-c", script, "bash", filepath.Dir(path), p.name}, words...)...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			require.Equal(t, p.command+"\n", complete(p.command[:len(p.command)-1]))
			require.Contains(t, complete(""), p.command+"\n")
			require.Equal(t, p.flag+"\n", complete(p.command, p.flag[:len(p.flag)-1]))
			require.Equal(t, "bash\n", complete("completion", "b"))

			unread, in, err := os.Pipe()
			require.NoError(t, err)
			require.NoError(t, unread.Close())
			cmd := exec.Command(built.Path(t, p.name), "--help")
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = in, &said
			require.EqualError(t, cmd.Run(), "exit status 1", "it is not ended by a signal")
			require.NoError(t, in.Close())
			require.Empty(t, said.String())

			page := run("__man")
			require.True(t, strings.HasPrefix(page, ".TH "+strings.ToUpper(p.name)+" 1 "), "%.100s", page)
			require.Contains(t, page, strings.ReplaceAll(p.flag, "-", `\-`))
		})
	}
}
