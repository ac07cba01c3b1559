package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

var (
	image = regexp.MustCompile(`image: \S+`)
	token = regexp.MustCompile(`\?token=([0-9a-f]+)`)
)

func TestNotebook(t *testing.T) {
	archive := os.Getenv("GPUREADY_NOTEBOOK")
	if archive == "" {
		t.Skip("make e2e-notebook builds the notebook's image and runs it on a cluster")
	}
	s := e2e.Up(t, cluster.Config{Images: []string{archive}})
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	s.World.WaitAllocatable(t, 8, "n1")
	manifest, err := os.ReadFile("../../deployments/static/examples/notebook.yaml")
	require.NoError(t, err)
	require.Len(t, image.FindAll(manifest, -1), 1)
	s.ApplyText(t, image.ReplaceAllString(string(manifest), "image: gpuready.test/notebook:1"))
	s.Kubectl(t, "wait", "--for=condition=Available", "--timeout=90s", "deployment/notebook")

	require.Equal(t, "30001", s.Kubectl(t, "get", "service", "notebook", "-o", "jsonpath={.spec.ports[*].nodePort}"))
	require.Equal(t, "1000\n", s.Kubectl(t, "exec", "deployment/notebook", "--", "id", "-u"))
	pycuda := s.Kubectl(t, "exec", "deployment/notebook", "--", "python3", "-c", "import pycuda.driver as cuda; cuda.init(); print(cuda.Device(0).name())")
	require.Equal(t, "SIMULATED NVIDIA H100 80GB HBM3\n", pycuda)
	var given string
	s.World.Until(t, "the log has the token", func() error {
		m := token.FindStringSubmatch(s.Kubectl(t, "logs", "deployment/notebook"))
		if m == nil {
			return errors.New("it has not")
		}
		given = m[1]
		return nil
	})
	runNotebook(t, forward(t, s), given, filepath.Join(filepath.Dir(archive), "notebook.png"))
	require.Contains(t, s.Kubectl(t, "exec", "deployment/notebook", "--", "cat", "/home/jovyan/gpu.ipynb"), "PASSED (SIMULATED)", "it is saved")
}

// forward runs kubectl port-forward and returns the Service's local address: a test cluster has no
// kube-proxy to serve the node port.
func forward(t *testing.T, s *e2e.Suite) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.KubectlPath(), "--kubeconfig", s.Kubeconfig, "port-forward", "service/notebook", ":80")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // ends with the test's context
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	m := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, m, line)
	return "http://" + m + "/"
}

// runNotebook opens and runs the notebook in a browser as a person does, reads its output, and writes a
// screenshot to a file.
func runNotebook(t *testing.T, address, token, picture string) {
	t.Helper()
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	var log bytes.Buffer
	b, err := StartBrowser(t.Context(), cache, &log)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		if t.Failed() {
			t.Log("Chromium printed:\n" + log.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p, err := b.NewPage(ctx, 1000, 1080)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			var text string
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_ = p.Run(ctx, "document.body.innerText", &text)
			t.Log("the page at the end:\n" + text)
		}
	})

	require.NoError(t, p.Open(ctx, address))
	require.NoError(t, p.Wait(ctx, `document.querySelector("#password_input")`))
	require.NoError(t, p.Run(ctx, `password_input.value = "wrong"; login_submit.click()`, nil))
	require.NoError(t, p.Wait(ctx, `document.querySelector(".message.error")`))
	require.NoError(t, p.Run(ctx, `password_input.value = "`+token+`"; login_submit.click()`, nil))

	const file = `document.querySelector("#notebook_list a[href$='gpu.ipynb']")`
	require.NoError(t, p.Wait(ctx, file))
	require.NoError(t, p.Run(ctx, file+`.target = ""; `+file+`.click()`, nil)) // otherwise it opens another tab
	require.NoError(t, p.Wait(ctx, `window.Jupyter?.notebook?.kernel?.info_reply?.status == "ok"`))
	require.NoError(t, p.Run(ctx, `document.querySelector("#run_all_cells a").click()`, nil))
	const prompts = `[...document.querySelectorAll(".code_cell .input_prompt")].map(e => e.innerText)`
	require.NoError(t, p.Wait(ctx, `document.querySelector(".output_error") || `+prompts+`.every(p => /\[\d+\]/.test(p))`)) // [*] is one that runs
	var printed []string
	require.NoError(t, p.Run(ctx, `[...document.querySelectorAll(".output_area")].map(e => e.innerText)`, &printed))
	require.Len(t, printed, 3)
	require.Regexp(t, `^SIMULATED NVIDIA H100 \S.* GPU-\S+`, printed[0])
	require.Regexp(t, `^100000 sums on SIMULATED NVIDIA H100 .* equal NumPy's`, printed[1])
	require.Regexp(t, `^\[Vector addition of 50000 elements\]\n(?s:.*)\nTest PASSED \(SIMULATED\)\nDone\n`, printed[2])
	t.Log(printed)
	require.NoError(t, p.Run(ctx, `Jupyter.notebook.save_notebook()`, nil))
	require.NoError(t, p.Wait(ctx, `!document.querySelector(".autosave_status").innerText.includes("unsaved")`))

	taken, err := p.Picture(ctx, false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(picture, taken, 0o644))
}
