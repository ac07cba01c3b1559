package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/provision/cli"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

// run runs the command line with a kubeconfig of an unreachable cluster.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(config, []byte(`apiVersion: v1
kind: Config
current-context: c
clusters: [{ name: c, cluster: { server: "http://127.0.0.1:1" } }]
contexts: [{ name: c, context: { cluster: c, user: u } }]
users: [{ name: u, user: {} }]
`), 0o600))
	t.Setenv("KUBECONFIG", config)
	var out, err bytes.Buffer
	code = cli.Main(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestInvalidFlagsAreRejected(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "manifest.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for want, args := range map[string]string{
		"--test is missing": "measure",
		`--test "resett"`:   "measure --test resett",
		"--samples and --drop must not be negative nor both 0": "measure --test reset --samples 0 --drop 0",
		"--node-claim is for --test autoscale":                 "measure --test reset --node-claim x",
		"--policy is for --test reset":                         "measure --test autoscale --policy x",
		"--no-workload is for --test reset or node":            "measure --test autoscale --no-workload",
		"needs --node and --reboot":                            "measure --test node-reboot --node n",
		"give one":                                             "measure --test autoscale --add-node x --machineset a/b",
		"--remove-node needs --add-node":                       "measure --test autoscale --remove-node x",
		`--machineset "a"`:                                     "measure --test autoscale --machineset a",
		"want a NodeClaim of karpenter.sh":                     "measure --test autoscale --node-claim " + file("{apiVersion: v1, kind: Pod}"),
		"want a Pod with a container":                          "measure --test reset --workload " + file("{apiVersion: v1, kind: Service}"),
		`unknown field "container"`:                            "measure --test reset --workload " + file("{apiVersion: v1, kind: Pod, spec: {container: []}}"),
		"--result: error parsing regexp":                       "measure --test reset --result (",
		`--selector "gpu=a=b": want driver`:                    "measure --test reset --selector gpu=a=b",
		`--output is "xml"`:                                    "measure --test reset -o xml",
		"--request-timeout is 0s":                              "measure --test reset --request-timeout 0s",
		"report takes one file, or two with -o html":           "report a b",
		"compare takes two reports, not 1":                     "compare a",
		`--span "ready": want FROM:TO`:                         "compare a b --span ready",
		`--span "ready:steady": want FROM:TO of the step`:      "compare a b --span ready:steady",
		"history takes at least one report":                    "history",
		"steps takes no arguments":                             "steps all",
		`unknown command "measur", did you mean "measure"? See gpu-provision --help`: "measur",
	} {
		code, _, stderr := run(t, strings.Fields(args)...)
		require.Equal(t, 2, code, args)
		require.Contains(t, stderr, want, args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
	}
}

func TestUnreachableClusterIsReported(t *testing.T) {
	code, stdout, stderr := run(t, "measure", "--test", "reset", "--no-workload")
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "read the version of the API server")
	require.Contains(t, stderr, "127.0.0.1:1")
}

// write writes a report of samples that took the given seconds.
func write(t *testing.T, stack string, seconds ...float64) string {
	t.Helper()
	r := report.Report{Schema: report.Schema, Stack: stack, Test: "reset", Began: time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)}
	for i, s := range seconds {
		r.Samples = append(r.Samples, report.Sample{Number: i + 1, Outcome: report.Complete, Timelines: []step.Timeline{{Node: "n", Steps: []step.Reached{{Step: step.Asked}, {Step: step.Allocatable, At: s, Took: s}}}}})
	}
	path := filepath.Join(t.TempDir(), "report.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, r.Write(f))
	require.NoError(t, f.Close())
	return path
}

func TestReportsAreRendered(t *testing.T) {
	a, b := write(t, "ours", 1, 2, 3, 4, 5, 6), write(t, "theirs", 6, 12, 18, 24, 30, 36)
	for _, output := range []string{"text", "json", "csv", "svg", "html"} {
		code, stdout, _ := run(t, "report", a, "-o", output)
		require.Zero(t, code, output)
		require.Contains(t, stdout, "ours", output)
	}
	code, stdout, _ := run(t, "report", a, b, "-o", "html")
	require.Zero(t, code)
	require.Contains(t, stdout, "A is faster, 6.0 to 6.0 times")
	code, stdout, _ = run(t, "compare", a, b)
	require.Zero(t, code)
	require.Contains(t, stdout, "A is faster, 6.0 to 6.0 times")
	code, stdout, _ = run(t, "compare", a, write(t, "few", 1, 2))
	require.Zero(t, code)
	require.Contains(t, stdout, "n is too small: 2 pairs, and an interval needs 6")
	code, _, _ = run(t, "compare", a, b, "--span", "driver-ready:validated")
	require.Equal(t, 4, code)
	code, stdout, _ = run(t, "history", b, a)
	require.Zero(t, code)
	require.Equal(t, 3, strings.Count(stdout, "\n"))
	code, _, stderr := run(t, "report", filepath.Join(t.TempDir(), "none.json"))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "none.json")
}
