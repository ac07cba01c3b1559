package plan_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

//go:generate go test -tags grpcnotrace -run ^TestThePageListsTheLabels$ . -update

// documentedLabel describes a label for docs/device-plugin.md. source is the file of the reference that sets it.
type documentedLabel struct{ name, value, source string }

// nodeLabels are the labels of a node. Names in older are the reference's old ones.
var nodeLabels = []struct {
	documentedLabel
	older string
}{
	{documentedLabel{"gpu.count", "GPUs of this product, including those in MIG mode", "mig-strategy.go"}, ""},
	{documentedLabel{"gpu.product",
		"model, without characters that a label cannot have; with the suffix `-SHARED` if a requested GPU may be a part of one",
		"resource.go"}, ""},
	{documentedLabel{"gpu.memory", "of one GPU, MiB; left out if it has no memory of its own", "resource.go"}, ""},
	{documentedLabel{"gpu.replicas", "how many times each GPU is advertised; 0 if all are in MIG mode", "resource.go"}, ""},
	{documentedLabel{"gpu.sharing-strategy", "`none`, `time-slicing` or `mps`", "resource.go"}, ""},
	{documentedLabel{"gpu.family",
		"`volta`, `turing`, `ampere`, `ada-lovelace`, `hopper`, `blackwell`, `rubin` and older ones; `undefined` for others", "resource.go"}, ""},
	{documentedLabel{"gpu.compute.major", "compute capability", "resource.go"}, ""},
	{documentedLabel{"gpu.compute.minor", "", "resource.go"}, ""},
	{documentedLabel{"gpu.machine", "product name from the machine's firmware, or `unknown`", "machine-type.go"}, ""},
	{documentedLabel{"gpu.mode", "`compute` (PCI class 0302), `graphics` (0300); `unknown` if the GPUs differ", "nvml.go"}, ""},
	{documentedLabel{"gpu.clique",
		"NVLink partition that the GPUs have joined: cluster and clique; left out if there is none, or several", "imex.go"}, ""},
	{documentedLabel{"gpu.notes",
		"[notes](reasons.md#device-plugin) on GPUs that are allocated nevertheless, separated by dots: `RowRemapPending` asks for a reset when idle; not one of NVIDIA's", ""}, ""},
	{documentedLabel{"mig.capable", "a GPU supports MIG", "nvml.go"}, ""},
	{documentedLabel{"mig.strategy", "left out if it is `none`", "strategy.go"}, ""},
	{documentedLabel{"mps.capable", "GPUs are shared by MPS, and none is in MIG mode", "nvml.go"}, ""},
	{documentedLabel{"cuda.driver-version.full", "of the driver", "nvml.go"}, ""},
	{documentedLabel{"cuda.driver-version.major", "", "nvml.go"}, "cuda.driver.major"},
	{documentedLabel{"cuda.driver-version.minor", "", "nvml.go"}, "cuda.driver.minor"},
	{documentedLabel{"cuda.driver-version.revision", "empty if there is none", "nvml.go"}, "cuda.driver.rev"},
	{documentedLabel{"cuda.runtime-version.full", "highest CUDA version that the driver supports", "nvml.go"}, ""},
	{documentedLabel{"cuda.runtime-version.major", "", "nvml.go"}, "cuda.runtime.major"},
	{documentedLabel{"cuda.runtime-version.minor", "", "nvml.go"}, "cuda.runtime.minor"},
	{documentedLabel{"gfd.timestamp", "when the plugin started, Unix seconds; not with `flags.gfd.noTimestamp`", "timestamp.go"}, ""},
}

// migLabels are the last parts of the labels of MIG devices.
var migLabels = []documentedLabel{
	{"count", "MIG devices of the profile", "mig-strategy.go"},
	{"product", "model and profile; the model is cut if a label has no room for both", "resource.go"},
	{"memory", "MiB", "nvml-mig-device.go"},
	{"replicas", "how many times each is advertised", "resource.go"},
	{"sharing-strategy", "", "resource.go"},
	{"slices.gi", "of the GPU instance", "nvml-mig-device.go"},
	{"slices.ci", "of the compute instance", "nvml-mig-device.go"},
	{"multiprocessors", "", "nvml-mig-device.go"},
	{"engines.copy", "", "nvml-mig-device.go"},
	{"engines.decoder", "", "nvml-mig-device.go"},
	{"engines.encoder", "", "nvml-mig-device.go"},
	{"engines.jpeg", "", "nvml-mig-device.go"},
	{"engines.ofa", "", "nvml-mig-device.go"},
}

const labelPrefix = "nvidia.com/"

// sourceOf returns the file of the reference that sets a label; "" for a label of ours.
func sourceOf(l documentedLabel) string {
	if l.source == "" {
		return ""
	}
	return golden.Code("internal/lm/" + l.source)
}

func TestThePageListsTheLabels(t *testing.T) {
	s := gputest.Node("h100-sxm", 8)
	for i := range s.Devices {
		s.Devices[i].Fabric = joined
		s.Devices[i].Notes = []gpu.Note{{Reason: gpu.NoteRemapPending}}
	}
	n := labelInput(t, "flags: {migStrategy: mixed}", s)
	n.Machine.Started = started
	examples := plan.Labels(n)
	var nodes, parts [][]string
	for _, l := range nodeLabels {
		require.Contains(t, examples, labelPrefix+l.name)
		value := l.value
		if l.older != "" {
			require.Equal(t, examples[labelPrefix+l.name], examples[labelPrefix+l.older])
			value = strings.TrimPrefix(value+"; and `"+labelPrefix+l.older+"`, its old name", "; ")
		}
		example := golden.Code(examples[labelPrefix+l.name])
		nodes = append(nodes, []string{golden.Code(labelPrefix + l.name), value, example, sourceOf(l.documentedLabel)})
	}
	examples = labelsOf(t, "flags: {migStrategy: mixed}", divided([]string{"1g.10gb", "1g.10gb"}))
	for _, l := range migLabels {
		folder := "internal/lm/"
		if l.source == "nvml-mig-device.go" {
			folder = "internal/resource/"
		}
		require.Contains(t, examples, labelPrefix+"mig-1g.10gb."+l.name)
		parts = append(parts, []string{
			golden.Code(labelPrefix + "mig-<profile>." + l.name), golden.Code(labelPrefix + "gpu." + l.name), l.value,
			golden.Code(examples[labelPrefix+"mig-1g.10gb."+l.name]), golden.Code(folder + l.source),
		})
	}
	golden.RequireSection(t, "../../docs/device-plugin.md",
		"<!-- labels: made by go generate ./deviceplugin/plan -->\n", "<!-- end of labels -->\n",
		"\n"+golden.Table([]string{"label", "value", "example", "source"}, nodes)+`
MIG devices have the same labels, with the strategy *mixed* under the name of each profile
(`+"`nvidia.com/mig-1g.10gb.me.count` for `1g.10gb+me`"+`), with *single* in place of those of the whole GPU:

`+golden.Table([]string{"label with *mixed*", "label with *single*", "value", "example", "source"}, parts)+"\n")
}

var ofProfile = regexp.MustCompile(`^nvidia\.com/mig-.*[0-9]gb(\.me)?\.`)

func TestEveryLabelIsDocumented(t *testing.T) {
	listed := map[string]bool{}
	for _, l := range nodeLabels {
		listed[labelPrefix+l.name], listed[labelPrefix+l.older] = true, true
	}
	for _, l := range migLabels {
		listed[labelPrefix+"mig-<profile>."+l.name], listed[labelPrefix+"gpu."+l.name] = true, true
	}
	files, err := filepath.Glob("testdata/labels/*.golden")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			name, _, _ := strings.Cut(line, "=")
			require.Contains(t, slices.Collect(maps.Keys(listed)), ofProfile.ReplaceAllString(name, "nvidia.com/mig-<profile>."))
		}
	}
}
