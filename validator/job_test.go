package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/lab/built"
)

// The part of the log that docs/validator.md extracts.
var printed = regexp.MustCompile(`(?ms)^<\?xml.*^</testsuites>\n`)

func TestTheValidationJobPrintsJUnit(t *testing.T) {
	built.SkipWithDriver(t)
	text, err := os.ReadFile("../deployments/static/validation-job.yaml")
	require.NoError(t, err)
	var job batchv1.Job
	require.NoError(t, yaml.UnmarshalStrict(text, &job))
	args := job.Spec.Template.Spec.Containers[0].Args
	r := newRig(t)
	for _, name := range []string{"no GPU", "simulated"} {
		if name == "simulated" {
			r.driver(1)
		}
		exit, out, said := r.run(append(args, "--host-root="+r.root, "--allow-simulated")...)
		require.Zero(t, exit, said)
		validates(t, name, said+out)
	}
	exit, out, said := r.run(append(args, "--host-root="+r.root)...)
	require.Equal(t, 10, exit, "a simulated driver is not vouched for")
	validates(t, "failed", out+said)
	for _, code := range []int32{1, 2, 10, 11, 12, 13} {
		require.Contains(t, job.Spec.PodFailurePolicy.Rules[1].OnExitCodes.Values, code)
	}
}

// validates extracts the report from a log and checks it.
func validates(t *testing.T, name, log string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gpu.xml")
	require.NoError(t, os.WriteFile(file, []byte(printed.FindString(log)), 0o644))
	out, err := exec.CommandContext(t.Context(), "xmllint", "--nonet", "--noout", "--schema", "../docs/junit.xsd", file).CombinedOutput()
	require.NoError(t, err, "%s: %s\n%s", name, out, log)
}

func TestTheWorkflowIsValid(t *testing.T) {
	page, err := os.ReadFile("../docs/validator.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(page), "```yaml\n")
	require.True(t, found)
	example, _, _ = strings.Cut(example, "```")
	var workflow struct {
		Name string
		On   map[string]any
		Jobs map[string]struct {
			RunsOn  []string `json:"runs-on"`
			Timeout int      `json:"timeout-minutes"`
			Steps   []struct {
				Name, Uses, Run, If string
				With                map[string]string
			}
		}
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(strings.Replace(example, "\non:", "\n\"on\":", 1)), &workflow))
	steps := workflow.Jobs["validate"].Steps
	require.Len(t, steps, 4)
	for _, s := range steps {
		require.NotEqual(t, s.Run == "", s.Uses == "", "one of the two")
		if s.Run != "" {
			out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", s.Run).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		for _, file := range regexp.MustCompile(`-f (\S+)`).FindAllStringSubmatch(s.Run, -1) {
			require.FileExists(t, "../"+file[1])
		}
	}
}
