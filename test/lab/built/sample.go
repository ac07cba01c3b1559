package built

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
)

// Sample runs a built CUDA sample on a driver root, with only the given environment.
func Sample(t testing.TB, root, name string, args []string, env ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := exec.Command(Path(t, name), args...)
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	if len(libs) > 0 {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(libs[0]))
	}
	cmd.Env = append(cmd.Env, env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); cmd.ProcessState == nil { // otherwise the exit code shows it
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}
