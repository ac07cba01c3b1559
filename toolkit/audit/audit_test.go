package audit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const uuid = "GPU-8f6f2bd9-1e26-44c8-8d19-6a1f8d4ad19c"

func TestJudge(t *testing.T) {
	plain := Container{Namespace: "a", Pod: "b", Name: "c", Value: "all", Handler: "nvidia", Reads: true, Inspected: true, Devices: []string{"/dev/nvidia0"}}
	for _, c := range []struct {
		name    string
		change  func(*Container)
		want    Verdict
		reason  string
		action  string
		without string // not in the action
	}{
		{name: "by the pod's environment", want: Loses, reason: "it requests GPUs by NVIDIA_VISIBLE_DEVICES=all and is not privileged", action: "request nvidia.com/gpu in the container's limits, or turn accept-nvidia-visible-devices-envvar-when-unprivileged on"},
		{name: "by the image's environment", change: func(c *Container) { c.FromImage = true }, want: Loses, reason: "only its image requests GPUs", action: "if it needs a GPU, request nvidia.com/gpu"},
		{name: "by a plugin's environment", change: func(c *Container) { c.Value = uuid + "," + uuid }, want: Loses, reason: uuid, action: "device list strategy cdi-cri"},
		{name: "by index", change: func(c *Container) { c.Value = "0,1" }, want: Loses, action: "request nvidia.com/gpu", without: "strategy"},
		{name: "that could not be inspected", change: func(c *Container) { c.Inspected, c.Devices = false, nil }, want: Loses},
		{name: "its own nodes are not enough: the libraries come by the handler", change: func(c *Container) { c.Injected = false }, want: Loses},
		{name: "Docker", change: func(c *Container) { c.Namespace, c.Pod, c.Value = "", "", "1" }, want: Loses, action: "--device nvidia.com/gpu=1 or --gpus"},
		{name: "Docker with several", change: func(c *Container) { c.Namespace, c.Pod, c.Value = "", "", "0,1" }, want: Loses, action: "--device nvidia.com/gpu=all"},

		{name: "privileged", change: func(c *Container) { c.Privileged = true }, want: Keeps, reason: "privileged"},
		{name: "a CDI device", change: func(c *Container) { c.CDI = []string{"k8s.gpuready.io/gpu=" + uuid} }, want: Keeps, reason: "k8s.gpuready.io/gpu=" + uuid},
		{name: "a runtime that reports no names", change: func(c *Container) { c.Injected = true }, want: Keeps, reason: "the runtime itself"},
		{name: "--gpus", change: func(c *Container) { c.Flag = "--gpus" }, want: Keeps, reason: "--gpus"},
		{name: "volume mounts", change: func(c *Container) { c.Value, c.Listed = "/var/run/nvidia-container-devices", []string{uuid} }, want: Keeps, reason: uuid, action: "accept-nvidia-visible-devices-as-volume-mounts"},

		{name: "void", change: func(c *Container) { c.Value = "void" }, want: Unaffected, reason: "does not request"},
		{name: "none", change: func(c *Container) { c.Value = "none" }, want: Unaffected, reason: "does not request"},
		{name: "empty", change: func(c *Container) { c.Value = "" }, want: Unaffected, reason: "does not request"},
		{name: "another handler", change: func(c *Container) { c.Handler, c.Default, c.Reads = "runc", true, false }, want: Unaffected, reason: "its handler is runc, the default"},
		{name: "it has none", change: func(c *Container) { c.Devices = nil }, want: Unaffected, reason: "has none today"},
	} {
		t.Run(c.name, func(t *testing.T) {
			container := plain
			if c.change != nil {
				c.change(&container)
			}
			f := Judge(container)
			require.Equal(t, c.want, f.Verdict)
			require.Contains(t, f.Reason, c.reason)
			require.Contains(t, f.Advice, c.action)
			require.Equal(t, container, f.Container)
			if c.without != "" {
				require.NotContains(t, f.Advice, c.without)
			}
		})
	}
}

// For any container: only one that requests GPUs can lose them, a privileged one does
// not, and one that loses them gets advice.
func TestEveryVerdictHasAReason(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2)
		c := Container{
			Value: rapid.SampledFrom([]string{"", "void", "none", "all", "0", uuid}).Draw(t, "value"), Namespace: rapid.SampledFrom([]string{"", "n"}).Draw(t, "namespace"),
			Privileged: rapid.Bool().Draw(t, "privileged"), Reads: rapid.Bool().Draw(t, "reads"), Injected: rapid.Bool().Draw(t, "given"), Inspected: rapid.Bool().Draw(t, "looked"),
			CDI: some.Draw(t, "cdi"), Listed: some.Draw(t, "listed"), Devices: some.Draw(t, "devices"), Flag: rapid.SampledFrom([]string{"", "--gpus"}).Draw(t, "flag"),
		}
		f := Judge(c)
		if f.Reason == "" || f.Verdict == Loses && (f.Advice == "" || c.Privileged || !requestsGPUs(c.Value) || !c.Reads || len(c.CDI) > 0) {
			t.Fatal(f)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add(containerdInfo)
	f.Add(crioInfo)
	f.Add(`{"runtimeSpec":{"process":{"env":["NVIDIA_VISIBLE_DEVICES=\u001b[2J\nkeeps"]}},"runtimeOptions":7}`)
	f.Add(`{"config":null,"runtimeSpec":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c Container
		if _, err := parseInfo(text, &c); err != nil {
			return
		}
		if len(c.Devices) > maxItems || len(c.CDI) > maxItems || len(c.Listed) > maxItems {
			t.Error(c)
		}
		for _, s := range append(append([]string{c.Value}, c.CDI...), c.Listed...) {
			if len(s) > maxText || strings.ContainsAny(s, "\x00\n\r\x1b") {
				t.Errorf("%q", s)
			}
		}
		Judge(c)
	})
}
