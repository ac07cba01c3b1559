package request

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// container returns a configuration with environment variables and annotations.
func container(env []string, annotations map[string]string) *oci.Spec {
	return &oci.Spec{Process: &oci.Process{Env: env}, Annotations: annotations}
}

// byNamespace returns the settings for an allowed namespace, as in package nri.
func byNamespace() Settings {
	s := DefaultSettings()
	s.AcceptNamed, s.AcceptPodAnnotations, s.AcceptVolumeMounts = true, true, true
	return s
}

// The runtime writes its own annotations after those of the pod, so the pod cannot change
// them. See trusted for the sources.
func TestAnnotationsOfAPodAreNoRequest(t *testing.T) {
	const wanted = "cdi.k8s.io/x"
	crioContainer := map[string]string{"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.Annotations": `{"io.kubernetes.container.hash":"c89ea172"}`}
	for name, c := range map[string]struct {
		runtime map[string]string
		want    string
	}{
		"CRI-O":                     {crioContainer, "it is the pod's"},
		"CRI-O without its list":    {map[string]string{"io.kubernetes.cri-o.ContainerType": "container"}, "does not show"},
		"CRI-O, a list that is cut": {map[string]string{"io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/x":`}, "does not show"},
		"CRI-O, another value":      {map[string]string{"io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/x":""}`}, "it is the pod's"},
		"CRI-O, null":               {map[string]string{"io.kubernetes.cri-o.Annotations": `null`}, "it is the pod's"},
		"containerd":                {map[string]string{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "a"}, "it can be the pod's"},
		"containerd, forged CRI-O": {map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/x":"nvidia.com/gpu=all"}`,
		}, "it can be the pod's"},
		"another runtime of Kubernetes": {map[string]string{"io.kubernetes.pod.name": "x"}, "it can be the pod's"},
		"CRI-O's sandbox":               {map[string]string{"io.kubernetes.cri-o.ContainerType": "sandbox", "io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/x":"nvidia.com/gpu=all"}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{wanted: "nvidia.com/gpu=all"}
			maps.Copy(annotations, c.runtime)
			got, err := Parse(container(nil, annotations), DefaultSettings())
			require.NoError(t, err)
			require.True(t, got.Empty())
			require.Contains(t, strings.Join(got.Warnings, ""), c.want)
			require.Equal(t, c.want == "", len(got.Warnings) == 0)
		})
	}
}

func TestOnlyTheKubeletsAnnotationIsARequest(t *testing.T) {
	got, err := Parse(container(nil, map[string]string{
		"cdi.k8s.io/nvidia-device-plugin_1": "k8s.gpuready.io/gpu=GPU-a", "cdi.k8s.io/mine": "k8s.gpuready.io/gpu=GPU-b",
		"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/nvidia-device-plugin_1":"k8s.gpuready.io/gpu=GPU-a"}`,
	}), DefaultSettings())
	require.NoError(t, err)
	require.Equal(t, []string{"k8s.gpuready.io/gpu=GPU-a"}, got.Devices)
	require.Len(t, got.Warnings, 1)
	require.Contains(t, got.Warnings[0], "cdi.k8s.io/mine")
}

var spellingsOfAll = []string{
	"all", "ALL", " all ", "all,all", ",all,", "nvidia.com/gpu=all", "nvidia.com/gpu=All", "k8s.gpuready.io/gpu=all",
	"nvidia.com/gpu=all,all", "all,none", "nvidia.com/imex-channel=all",
}

func TestEverySpellingOfAllIsTreatedAsAll(t *testing.T) {
	for _, s := range []Settings{DefaultSettings(), byNamespace()} {
		for _, spelling := range spellingsOfAll {
			got, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=" + spelling, "NVIDIA_IMEX_CHANNELS=all"}, nil), s)
			require.NoError(t, err, "images say so, and start")
			require.True(t, got.Empty(), spelling)
			require.Contains(t, strings.Join(got.Warnings, ""), "not honoured", spelling)
		}
		for _, mixed := range []string{"0,all", "all,0", "nvidia.com/gpu=all,nvidia.com/gpu=0", "GPU-a,ALL", "none,0,all"} {
			got, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=" + mixed}, nil), s)
			require.ErrorContains(t, err, "unprivileged containers may not", mixed)
			require.True(t, got.Empty())
		}
	}
	_, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=0,ALL"}, nil), byNamespace())
	require.Error(t, err)
	got, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=3"}, nil), byNamespace())
	require.NoError(t, err)
	require.Equal(t, Request{Devices: []string{"0"}, OneEach: true, Channels: []string{"3"}, Capabilities: got.Capabilities}, got)
}

var otherKinds = []string{
	"management.gpuready.io/gpu=all", "Management.gpuready.io/gpu=all", "management.gpuready.io/gpu=0", "vendor.example/agent=root",
	"nvidia.com/nvswitch=all", "nvidia.com/pgpu=0", "nvidia.com=0", "=", "=all", "/=0", "NVIDIA.com/gpu=0", "nvidia.com/gpu =0",
	"nvidia.com/gpu/x=0", "k8s.gpuready.io/gpu/=0", "nvidia.com/gpu=a=b", "nvidia.com/gpu=", "nvidia.com/gpu=../x", "../x", "a b",
}

func TestOtherKindsCannotBeRequested(t *testing.T) {
	accepting := DefaultSettings()
	accepting.AcceptEnvvar, accepting.AcceptVolumeMounts = true, true
	for _, name := range otherKinds {
		for _, s := range []Settings{accepting, byNamespace()} {
			for _, list := range []string{name, "0," + name} {
				_, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=" + list}, nil), s)
				require.Error(t, err, list)
			}
			spec := container(nil, nil)
			spec.Mounts = []oci.Mount{{Source: "/dev/null", Destination: devicesDir + "cdi/x/" + name}}
			_, err := Parse(spec, s)
			require.Error(t, err, name)
		}
		// Names that other runtimes or vendors resolve are ignored.
		got, err := Parse(container(nil, map[string]string{"cdi.k8s.io/x": name + ",nvidia.com/gpu=0"}), byNamespace())
		require.NoError(t, err)
		require.Equal(t, []string{"nvidia.com/gpu=0"}, got.Devices, name)
		require.Len(t, got.Warnings, 1, name)
	}
	_, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=vendor.example/agent=root"}, nil), byNamespace())
	require.ErrorIs(t, err, ErrKind)
}

func TestCapabilitiesInAUserNamespaceAreNoPrivilege(t *testing.T) {
	spec := container([]string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_NVSWITCH=enabled"}, nil)
	spec.Process.Capabilities = &oci.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}
	spec.Linux = &oci.Linux{Namespaces: []oci.LinuxNamespace{{Type: oci.PIDNamespace}}}
	got, err := Parse(spec, DefaultSettings())
	require.NoError(t, err)
	require.Equal(t, []string{"all"}, got.Devices)
	require.True(t, got.MIGConfig)
	require.Equal(t, []string{"nvswitch"}, got.Features)

	spec.Linux.Namespaces = append(spec.Linux.Namespaces, oci.LinuxNamespace{Type: oci.UserNamespace})
	got, err = Parse(spec, DefaultSettings())
	require.NoError(t, err)
	require.True(t, got.Empty())
	s := DefaultSettings()
	s.AcceptEnvvar = true
	_, err = Parse(spec, s)
	require.ErrorContains(t, err, "NVIDIA_MIG_CONFIG_DEVICES=all: only privileged")
	spec.Process.Env = []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_NVSWITCH=enabled"}
	got, err = Parse(spec, s)
	require.NoError(t, err)
	require.Empty(t, got.Features)
	require.Contains(t, got.Warnings[0], "NVIDIA_NVSWITCH=enabled is not honoured")
}

func TestErrorsAndWarningsAreShort(t *testing.T) {
	accepting := DefaultSettings()
	accepting.AcceptEnvvar, accepting.AcceptVolumeMounts = true, true
	for _, unit := range []string{"x", "0,", "x.y/z=1,", "nvidia.com/gpu=é,", "\n", "\x1b[2J", "%s", "cuda>=x ", "none,"} {
		for _, n := range []int{5 << 10, 16 << 10} {
			long := strings.Repeat(unit, n/len(unit))
			for _, s := range []Settings{DefaultSettings(), accepting, byNamespace()} {
				for _, spec := range []*oci.Spec{
					container([]string{"NVIDIA_VISIBLE_DEVICES=" + long, "NVIDIA_IMEX_CHANNELS=" + long}, nil),
					container([]string{"NVIDIA_IMEX_CHANNELS=" + long}, nil),
					container([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=" + long}, nil),
					container([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_CONFIG_DEVICES=" + long}, nil),
					container([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=" + long, "NVIDIA_REQUIRE_X=" + long}, nil),
					container(nil, map[string]string{"cdi.k8s.io/" + long: long}),
					container(nil, map[string]string{"cdi.k8s.io/x": long, "io.kubernetes.cri-o.Annotations": long}),
					{Mounts: []oci.Mount{{Source: "/dev/null", Destination: devicesDir + long}, {Source: "/dev/null", Destination: devicesDir + "cdi/" + long}}},
				} {
					got, err := Parse(spec, s)
					short(t, err, got.Warnings)
					short(t, check(got.Requirements, "580.95.05"), nil)
				}
			}
		}
	}
}

// short checks that an error and warnings fit a log and an event.
func short(t require.TestingT, err error, warnings []string) {
	require.LessOrEqual(t, len(warnings), 8)
	if err != nil {
		warnings = append(slices.Clone(warnings), err.Error())
	}
	for _, text := range warnings {
		require.LessOrEqual(t, len(text), maxMessage)
		require.NotContains(t, text, "\n")
	}
}

// parts are the parts of random names and lists: real ones, and mutations.
var parts = slices.Concat([]string{"0", "1", "0:1", "GPU-a", "MIG-b", "nvidia.com/gpu", "k8s.gpuready.io/gpu", "=", ",", " ", "/", "none", "void", "\x00", "é"}, spellingsOfAll, otherKinds)

// drawList draws a list of names and mutated names.
func drawList(t *rapid.T, label string) string {
	return strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(parts), rapid.StringN(0, 8, 32)), 0, 8).Draw(t, label), rapid.SampledFrom([]string{"", ",", " , "}).Draw(t, "between"))
}

// For any container, a forbidden request is empty, and an allowed one only has devices of
// Kinds that the container named.
func TestAContainerAsksForNothingButWhatItMay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		visible, channels, annotation := drawList(t, "visible"), drawList(t, "channels"), drawList(t, "annotation")
		own, err := json.Marshal(map[string]string{"cdi.k8s.io/plugin": "k8s.gpuready.io/gpu=GPU-granted"})
		require.NoError(t, err)
		spec := container([]string{"NVIDIA_VISIBLE_DEVICES=" + visible, "NVIDIA_IMEX_CHANNELS=" + channels, "NVIDIA_NVSWITCH=enabled"}, map[string]string{
			"cdi.k8s.io/pods": annotation, "cdi.k8s.io/plugin": "k8s.gpuready.io/gpu=GPU-granted", "io.kubernetes.cri-o.Annotations": string(own),
		})

		got, err := Parse(spec, DefaultSettings())
		short(t, err, got.Warnings)
		require.NoError(t, err, "the kubelet's word counts before the image's")
		require.Equal(t, []string{"k8s.gpuready.io/gpu=GPU-granted"}, got.Devices)
		require.Empty(t, got.Channels)
		require.Empty(t, got.Features)

		spec.Annotations = map[string]string{"cdi.k8s.io/pods": annotation, "io.kubernetes.cri.container-type": "container"}
		got, err = Parse(spec, DefaultSettings())
		short(t, err, got.Warnings)
		require.True(t, got.Empty(), "neither image nor pod is believed")

		spec.Annotations = nil
		got, err = Parse(spec, byNamespace())
		short(t, err, got.Warnings)
		for _, name := range got.Devices {
			require.True(t, slices.ContainsFunc(words(visible), func(word string) bool { return word == name }), "%q is none of %q", name, visible)
			_, device, _ := strings.Cut("="+name, "gpu=") // "nvidia.com/gpu=all0" is the name of no device, but not all
			require.NotEqual(t, "all", strings.ToLower(device), name)
			require.NotEqual(t, "all", strings.ToLower(name))
			kind, _, qualified := strings.Cut(name, "=")
			require.True(t, !qualified || slices.Contains(kinds(), kind), name)
		}
		require.True(t, got.OneEach || got.Empty())
		require.NotContains(t, got.Channels, "all")
	})
}

func FuzzAnnotation(f *testing.F) {
	for _, part := range parts {
		f.Add("cdi.k8s.io/x", part, fmt.Sprintf(`{"cdi.k8s.io/x":%q}`, part))
	}
	f.Add("io.kubernetes.cri-o.Annotations", `{"cdi.k8s.io/x":"nvidia.com/gpu=0"}`, "{}")
	f.Fuzz(func(t *testing.T, key, value, own string) {
		// CRI-O overwrites the pod's annotation with its own.
		annotations := map[string]string{key: value, "io.kubernetes.cri-o.Annotations": own}
		got, err := Parse(container(nil, annotations), DefaultSettings())
		short(t, err, got.Warnings)
		var kubelets map[string]string
		if json.Unmarshal([]byte(own), &kubelets) != nil {
			require.True(t, got.Empty())
		}
		for _, name := range got.Devices {
			found := false
			for _, list := range kubelets {
				found = found || slices.ContainsFunc(words(list), func(word string) bool { return normalize(word) == name })
			}
			require.True(t, found, "%q is not of the kubelet", name)
		}
	})
}

// An image can set these variables, so a container with GPUs from another source gets
// nothing by them.
func TestAnImageAddsNothingToTheGPUsOfItsContainer(t *testing.T) {
	image := []string{"NVIDIA_MOFED=enabled", "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_NVSWITCH=enabled"}
	s := DefaultSettings()
	s.AcceptVolumeMounts = true
	mounted := container(append(image, "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"), nil)
	mounted.Mounts = []oci.Mount{{Source: "/dev/null", Destination: devicesDir + "GPU-a"}}
	annotated := container(image, map[string]string{
		"cdi.k8s.io/p": "k8s.gpuready.io/gpu=GPU-a", crioType: "container", crioOwn: `{"cdi.k8s.io/p":"k8s.gpuready.io/gpu=GPU-a"}`,
	})
	for _, spec := range []*oci.Spec{mounted, annotated} {
		got, err := Parse(spec, s)
		require.NoError(t, err)
		require.Len(t, got.Devices, 1)
		require.Empty(t, got.Features)
		require.Len(t, got.Warnings, len(image))
	}
}

func TestImagesCannotRequestAllOfAKind(t *testing.T) {
	for _, kind := range kinds() {
		for _, all := range []string{"all", "ALL", "All"} {
			got, err := Parse(container([]string{"NVIDIA_VISIBLE_DEVICES=" + kind + "=" + all}, nil), byNamespace())
			require.NoError(t, err)
			require.True(t, got.Empty(), kind)
			require.Len(t, got.Warnings, 1)
		}
	}
}
