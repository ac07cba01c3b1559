package toolkit

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// needed holds the settings that containers need on a machine that is itself a container, in
// a configuration of version 2.
const needed = `
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "gpuready.test/pause:1"
    restrict_oom_score_adj = true
    disable_apparmor = true
`

// arrangement is a layout of containerd's files.
type arrangement struct {
	name  string
	files map[string]string
	runs  bool // containers can run with it here
}

const (
	mainFile = "/etc/containerd/config.toml"
	dropIns  = "/etc/containerd/conf.d/"
)

// arrangements are the layouts that all our containerd versions read.
var arrangements = []arrangement{
	{name: "no file"},
	{name: "an empty file", files: map[string]string{mainFile: ""}},
	{name: "version 2 alone", files: map[string]string{mainFile: "version = 2\n"}},
	{name: "no runtime named", runs: true, files: map[string]string{mainFile: "version = 2\n" + needed}},
	{
		name: "drop-ins imported", runs: true,
		files: map[string]string{
			mainFile:               "version = 2\nimports = ['" + dropIns + "*.toml']\n" + needed,
			dropIns + "debug.toml": "version = 2\n[debug]\n  level = 'debug'\n",
		},
	},
	{name: "DOS line ends", runs: true, files: map[string]string{mainFile: strings.ReplaceAll("version = 2\n"+needed, "\n", "\r\n")}},
	{
		name: "inline tables", runs: true,
		files: map[string]string{mainFile: `version = 2
plugins."io.containerd.grpc.v1.cri" = { sandbox_image = "gpuready.test/pause:1", restrict_oom_score_adj = true, disable_apparmor = true, containerd = { runtimes = { runc = { runtime_type = "io.containerd.runc.v2" }, other = { runtime_type = "io.containerd.runc.v2" } } } }
`},
	},
	{
		name: "another default", runs: true,
		files: map[string]string{mainFile: "version = 2\n" + needed + `
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "mine"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.mine]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["a.example/*"]
      options = { BinaryName = "/usr/local/bin/runc" }
`},
	},
}

var version1 = arrangement{
	name: "version 1",
	files: map[string]string{mainFile: `
[plugins.cri]
  sandbox_image = "gpuready.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`},
}

// since2 are the layouts that only containerd 2 reads.
var since2 = []arrangement{
	{
		name: "version 2 with a drop-in of version 3", runs: true,
		files: map[string]string{
			mainFile: "version = 2\nimports = ['" + dropIns + "*.toml']\n" + needed,
			dropIns + "other.toml": `version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
`,
		},
	},
	{
		name: "a drop-in that NVIDIA's toolkit left", runs: true,
		files: map[string]string{
			mainFile: "version = 2\nimports = ['" + dropIns + "*.toml']\n" + needed,
			dropIns + "99-nvidia.toml": `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-cdi]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-cdi.options]
      BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"
`,
		},
	},
	{name: "drop-ins that nothing imports", files: map[string]string{dropIns + "other.toml": "version = 3\n[debug]\nlevel = 'debug'\n"}},
}

// requireTaken applies a plan for each arrangement. What containerd reports about itself must change as the
// plan describes, and in no other way.
func requireTaken(t *testing.T, kind node.Kind, cdi bool, all []arrangement) {
	if !enter(t) {
		return
	}
	h := start(t, kind) // so that it has its images
	gpuToolkit(t, "apply")
	want := runtime.Want{CDI: cdi, Handlers: []runtime.Handler{install(t, `{"accept-nvidia-visible-devices-envvar-when-unprivileged": true}`)}}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			arrange(t, h, a)
			before, old := dump(t, h), status(t, h)
			planned := plan(t, h, kind, want)
			write(t, planned)
			after := dump(t, h)
			require.NoError(t, h.Restart(t.Context(), h.Unit()))
			now := status(t, h)
			require.ElementsMatch(t, append(old.Handlers, "nvidia"), now.Handlers)
			require.Equal(t, old.Default, now.Default)
			require.Equal(t, old.CDI || cdi, now.CDI)
			require.Empty(t, plan(t, h, kind, want).Edits, "it is done once")
			agrees(t, planned, before, after)
			if a.runs {
				ordinary(t, h)
				out, err := h.Run(t.Context(), node.Spec{Handler: "nvidia", Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{node.Probe, "/dev/nvidia0", "/dev/nvidia1"}})
				require.NoError(t, err)
				require.Equal(t, "/dev/nvidia0 missing\n/dev/nvidia1 there\ndone\n", out)
			}
		})
	}
}

// arrange restarts containerd with other files.
func arrange(t *testing.T, h *node.Host, a arrangement) {
	t.Helper()
	require.NoError(t, h.Stop(t.Context()))
	require.NoError(t, os.RemoveAll("/etc/containerd"))
	for name, text := range a.files {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	require.NoError(t, h.Start(t.Context()))
}

func status(t *testing.T, h *node.Host) node.RuntimeStatus {
	t.Helper()
	reported, err := h.Status(t.Context())
	require.NoError(t, err)
	return reported
}

// dump returns containerd's effective configuration, as key: value, with this version's name for the
// CRI plugin.
func dump(t *testing.T, h *node.Host) map[string]string {
	t.Helper()
	what := "dump"
	if _, err := os.Stat(mainFile); err != nil { // 1.6 and 1.7 dump nothing then
		what = "default"
	}
	out, err := h.Output(t.Context(), "containerd", "config", what)
	require.NoError(t, err)
	return flat(t, string(out))
}

// unset are values that mean the same as none. (So does sandbox_mode = "podsandbox":
// ValidatePluginConfig in containerd 1.7's pkg/cri/config/config.go.)
var unset = map[string]bool{"": true, "0": true, "false": true, "[]": true}

func flat(t *testing.T, text string) map[string]string {
	t.Helper()
	var document map[string]any
	require.NoError(t, toml.Unmarshal([]byte(text), &document), text)
	out := map[string]string{}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		table, ok := v.(map[string]any)
		if !ok {
			text := fmt.Sprintf("%v", v)
			if path.Base(at) == "sandbox_mode" {
				text = strings.TrimPrefix(text, "podsandbox")
			}
			if !unset[text] {
				out[at] = text
			}
			return
		}
		for key, value := range table {
			switch key {
			case "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime":
				key = "cri"
			}
			walk(at+"/"+key, value)
		}
	}
	walk("", document)
	return out
}

// agrees compares the changes in a plan with those that containerd reports.
func agrees(t *testing.T, p runtime.Plan, before, after map[string]string) {
	t.Helper()
	reported := map[string]bool{}
	for _, edit := range p.Edits {
		for key, value := range flat(t, edit.Key+" = "+edit.After) {
			require.Equal(t, value, after[key], "%v", edit)
			reported[key] = true
		}
	}
	for key, value := range after {
		if before[key] == value || reported[key] {
			continue
		}
		// A new handler has other keys with their defaults. Where there was no file, containerd now
		// reports the one that exists.
		if strings.HasPrefix(key, "/plugins/cri/containerd/runtimes/nvidia/") || key == "/imports" {
			continue
		}
		t.Errorf("%s was %s and is %s: the plan does not say so", key, before[key], value)
	}
	for key, value := range before {
		if _, ok := after[key]; !ok {
			t.Errorf("%s was %s and is gone", key, value)
		}
	}
}

func TestContainerd16AppliesThePlan(t *testing.T) {
	requireTaken(t, node.Containerd16, false, append(arrangements, version1))
}

func TestContainerd17AppliesThePlan(t *testing.T) {
	requireTaken(t, node.Containerd17, true, append(arrangements, version1))
}

func TestContainerd2AppliesThePlan(t *testing.T) {
	requireTaken(t, node.Containerd2, true, append(arrangements, since2...))
}
