package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func TestCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "no command",
		"upp":                   `unknown command "upp", did you mean "up"? See cluster --help`,
		"up two":                `unexpected argument "two"`,
		"up --node 2":           `unknown flag --node, did you mean "--nodes"? See cluster up --help`,
		"down --nodes 2":        `unknown flag --nodes`,
		"status -o yaml":        "must be text or json",
		"logs a b":              `unexpected argument "a"`,
		"up --nodes 2":          "",
		"up --profile dgx-2":    "",
		"logs -f n1-kubelet":    "",
		"status -o json":        "",
		"down --name b":         "",
		"build":                 "",
		"--help":                "",
		"up --help":             "",
		"logs --help n1 n2":     "",
		"up --node-status 10s ": "",
		"reboot":                "reboot takes 1 argument (NODE), not 0; see cluster reboot --help",
		"reboot n1":             "",
		"reboot n1 n2":          "reboot takes 1 argument (NODE), not 2",
		"reboot ../n1":          `node name "../n1": must be lower-case letters`,
		"add-node":              "",
		"add-node n7 --name b":  "",
		"add-node a b":          `unexpected argument "a"`,
		"remove-node":           "remove-node takes 1 argument (NODE), not 0",
		"remove-node n2":        "",
	} {
		t.Run(line, func(t *testing.T) {
			_, err := parse(strings.Fields(line))
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, want)
		})
	}
}

func TestHelp(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", "")
	var b strings.Builder
	for _, command := range []string{"", "up"} {
		o, err := parse(append(strings.Fields(command), "--help"))
		require.NoError(t, err)
		help(&b, o)
		b.WriteString("----\n")
	}
	golden.Require(t, "testdata/help.txt", b.String())
}

func TestProfileIsInsertedIntoTheManifest(t *testing.T) {
	o, err := parse([]string{"up", "--profile", "dgx-2", "--manifests", "../../../../deployments/static"})
	require.NoError(t, err)
	manifests, err := o.install()
	require.NoError(t, err)
	require.Len(t, manifests, 2)
	require.Contains(t, manifests[1], "GPUSIM_PROFILE: dgx-2\n")

	o.profile = "x\ny"
	_, err = o.install()
	require.ErrorContains(t, err, "gpusim profiles")
	o.profile, o.manifests = "t4", "/none"
	_, err = o.install()
	require.ErrorContains(t, err, "--manifests")
}

func TestStatusIsReadable(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 1, 30, 0, time.UTC)
	var b strings.Builder
	require.NoError(t, show(&b, []folder.Record{
		{Name: "a", Process: 17, Since: now.Add(-90 * time.Second), Kubeconfig: "/clusters/a/kubeconfig", Nodes: []folder.NodeRecord{
			{Name: "n1", IP: "10.88.1.1", Ready: true, Kubelet: "v1.37.1", Runtime: "containerd://2.4.2"},
			{Name: "n2", IP: "10.88.1.2", Message: "its kubelet has not reported yet"},
			{Name: "n3", IP: "10.88.1.3", Ended: true, Kubelet: "v1.37.1", Runtime: "containerd://2.4.2"},
		}},
		{Name: "b"},
	}, now))
	golden.Require(t, "testdata/status.txt", b.String())
}

func TestExitCodesDistinguishErrors(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		want int
	}{
		"done":                    {t.Context(), nil, 0},
		"failed":                  {t.Context(), errors.New("x"), exitFailed},
		"usage":                   {t.Context(), usageError{errors.New("x")}, exitUsage},
		"not up":                  {t.Context(), folder.ErrNotUp, exitNotUp},
		"goes on":                 {interrupted, errGoesOn, exitInterrupted},
		"interrupted":             {interrupted, context.Canceled, exitInterrupted},
		"interrupted with traces": {interrupted, errors.Join(context.Canceled, cluster.ErrLeftBehind), exitFailed},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, report(test.ctx, test.err)) })
	}
}

func TestLogsOfAFailedStartAreNamed(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	o, err := parse([]string{"logs", "--name", "b"})
	require.NoError(t, err)
	err = logs(t.Context(), o)
	require.ErrorIs(t, err, folder.ErrNotUp)
	require.NotContains(t, err.Error(), "failed to start")
	require.NoError(t, os.MkdirAll(folder.PreservedLogs("b"), 0o700))
	require.ErrorContains(t, logs(t.Context(), o), "the logs of the last one that failed to start are in "+folder.PreservedLogs("b"))
}

func TestCommandsNeedACluster(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	for _, line := range []string{"reboot n1", "add-node", "remove-node n1"} {
		require.ErrorIs(t, run(t.Context(), strings.Fields(line)), folder.ErrNotUp)
	}
}
