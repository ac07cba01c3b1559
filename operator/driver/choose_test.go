package driver

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/test/lab/golden"
)

var (
	ubuntu = fleet.Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-1042-aws"}
	rhcos  = fleet.Pool{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", CoreOS: true, RHCOS: "412.86.202303241612-0"}
	rhel   = fleet.Pool{Arch: "amd64", OS: "rhel8.10", Kernel: "4.18.0-553.el8_10.x86_64"}
)

func policy(change func(*v1.ClusterPolicySpec)) *v1.ClusterPolicySpec {
	spec := &v1.ClusterPolicySpec{}
	spec.Driver.Repository, spec.Driver.Image, spec.Driver.Version = "nvcr.io/nvidia", "driver", "535.104.05"
	if change != nil {
		change(spec)
	}
	return spec
}

func precompiled(change func(*v1.ClusterPolicySpec)) *v1.ClusterPolicySpec {
	return policy(func(s *v1.ClusterPolicySpec) {
		yes := true
		s.Driver.UsePrecompiled = &yes
		s.Driver.Version = "535"
		if change != nil {
			change(s)
		}
	})
}

func fallback(s *v1.ClusterPolicySpec) { s.Driver.PrecompiledFallback = v1.FallbackDriverToolkit }

func elsewhere(s *v1.ClusterPolicySpec) { s.Driver.Repository = "registry.example" }

func registry(p Presence) func(string) Presence { return func(string) Presence { return p } }

// facts returns those of an OpenShift cluster with one version of the Driver Toolkit.
func facts(p Presence) Facts {
	return Facts{
		OpenShift: true,
		Images:    v1.ImageSpec{Repository: "gpuready", Version: "v1.0.0"},
		NVIDIA:    v1.ImageSpec{Repository: "nvcr.io/nvidia", Image: "driver", Version: "580.105.08"},
		Toolkit: func(version string) (string, bool) {
			return "image-registry/openshift/driver-toolkit@sha256:1", version == rhcos.RHCOS
		},
		Registry: registry(p),
	}
}

// The digest of our simulated driver is not that of another image.
func TestTheSimulatedDriverOfARelease(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct {
		spec v1.ImageSpec
		want string
	}{
		{v1.ImageSpec{}, "registry.example/gpu/driver-simulator@" + digest},
		{v1.ImageSpec{Version: "v0.9.0"}, "registry.example/gpu/driver-simulator:v0.9.0"},
		{v1.ImageSpec{Image: "simulator"}, "registry.example/gpu/simulator:v1.0.0"},
		{v1.ImageSpec{Repository: "mirror.example", Image: "driver-simulator"}, "mirror.example/driver-simulator@" + digest},
	} {
		f := facts(Presence{})
		f.Simulator = v1.ImageSpec{Repository: "registry.example/gpu", Image: "driver-simulator", Version: digest}
		choice := Choose(policy(func(s *v1.ClusterPolicySpec) {
			yes := true
			s.Driver.Simulated = &v1.SimulatedSpec{}
			s.Driver.Simulated.Enabled, s.Driver.Simulated.ImageSpec = &yes, c.spec
		}), ubuntu, "a", f)
		require.Equal(t, c.want, choice.Image)
	}
}

func TestChoicesAndProblemsAsPeopleReadThem(t *testing.T) {
	plain := facts(Presence{})
	plain.OpenShift = false
	unlabelled, newer, other, arm, unknown := rhcos, rhcos, ubuntu, rhcos, ubuntu
	unlabelled.RHCOS = ""
	newer.RHCOS, newer.OS = "9.6.20250530-0", "rhel9.6"
	other.Kernel = ""
	arm.Arch, arm.Kernel = "arm64", "4.18.0-372.51.1.el8_6.aarch64"
	unknown.OS = ""
	debian, wsl := ubuntu, ubuntu
	debian.OS = "debian12"
	wsl.Kernel, wsl.NotServed = "5.15.153.1-microsoft-standard-WSL2", true
	off := false
	unnamed := policy(func(s *v1.ClusterPolicySpec) { s.Driver.ImageSpec = v1.ImageSpec{} })
	release := func(s *v1.ClusterPolicySpec) { s.Driver.ImageSpec = v1.ImageSpec{Repository: "gpuready"} }
	digest := func(s *v1.ClusterPolicySpec) { s.Driver.Version = "sha256:" + strings.Repeat("a", 64) }
	for _, c := range []struct {
		name string
		spec *v1.ClusterPolicySpec
		pool fleet.Pool
		f    Facts
	}{
		{"disabled", policy(func(s *v1.ClusterPolicySpec) { s.Driver.Enabled = &off }), ubuntu, plain},
		{"simulated", policy(func(s *v1.ClusterPolicySpec) {
			on := true
			s.Driver.Simulated = &v1.SimulatedSpec{OptionalSpec: v1.OptionalSpec{Enabled: &on}}
			s.Driver.ImageSpec = v1.ImageSpec{}
		}), unknown, plain},
		{"platform that is not served", policy(nil), wsl, plain},
		{"platform that is not served, simulated", policy(func(s *v1.ClusterPolicySpec) {
			on := true
			s.Driver.Simulated = &v1.SimulatedSpec{OptionalSpec: v1.OptionalSpec{Enabled: &on}}
		}), wsl, plain},
		{"container", policy(nil), ubuntu, plain},
		{"no image named", unnamed, ubuntu, plain},
		{"only a version named", policy(func(s *v1.ClusterPolicySpec) { s.Driver.ImageSpec = v1.ImageSpec{Version: "535.104.05"} }), rhel, plain},
		{"tag with a major release", policy(func(s *v1.ClusterPolicySpec) { s.Driver.ImageSpec = v1.ImageSpec{Version: "595.91.07"} }), rhel, plain},
		{"no image named, precompiled", precompiled(func(s *v1.ClusterPolicySpec) { s.Driver.ImageSpec = v1.ImageSpec{} }), rhcos, facts(Presence{State: Present})},
		{"no image named, not published", unnamed, debian, plain},
		{"container of the same release", policy(release), ubuntu, plain},
		{"container by digest", policy(digest), ubuntu, plain},
		{"container without a tag", policy(func(s *v1.ClusterPolicySpec) {
			s.Driver.ImageSpec = v1.ImageSpec{Image: "nvcr.io/nvidia/driver"}
		}), ubuntu, plain},
		{"unknown system", policy(nil), unknown, plain},
		{"driver toolkit", policy(nil), rhcos, facts(Presence{})},
		{"driver toolkit without tag", policy(nil), newer, facts(Presence{})},
		{"driver toolkit, version not labelled", policy(nil), unlabelled, facts(Presence{})},
		{"driver toolkit not wanted", policy(func(s *v1.ClusterPolicySpec) { s.Operator.UseOpenShiftDriverToolkit = &off }), rhcos, facts(Presence{})},
		{"rhel worker of openshift", policy(nil), rhel, facts(Presence{})},
		{"precompiled", precompiled(nil), rhcos, facts(Presence{State: Present})},
		{"precompiled for arm64", precompiled(nil), arm, facts(Presence{State: Present})},
		{"precompiled, not asked yet", precompiled(nil), rhcos, facts(Presence{})},
		{"precompiled, registry away", precompiled(fallback), rhcos, facts(Presence{State: Unknown, Why: "dial tcp: i/o timeout"})},
		{"precompiled, missing", precompiled(nil), rhcos, facts(Presence{State: Absent, Why: "looked up without credentials"})},
		{"precompiled, missing, built instead", precompiled(func(s *v1.ClusterPolicySpec) {
			fallback(s)
			s.Operator.UseOpenShiftDriverToolkit = &off
		}), rhcos, facts(Presence{State: Absent})},
		{"precompiled, missing, and the toolkit too", precompiled(fallback), newer, facts(Presence{State: Absent})},
		{"precompiled, missing, built by the container", precompiled(fallback), ubuntu, func() Facts {
			f := plain
			f.Registry = registry(Presence{State: Absent})
			return f
		}()},
		{"ours", policy(elsewhere), ubuntu, facts(Presence{State: Present, Ours: true})},
		{"ours, precompiled", precompiled(elsewhere), rhcos, facts(Presence{State: Present, Ours: true})},
		{"ours, with the driver toolkit", policy(elsewhere), rhcos, facts(Presence{State: Present, Ours: true})},
		{"ours, without the driver toolkit", policy(elsewhere), newer, facts(Presence{State: Present, Ours: true})},
		{"ours, by digest", policy(func(s *v1.ClusterPolicySpec) { elsewhere(s); digest(s) }), rhcos, facts(Presence{State: Present, Ours: true, Version: "550.54.15"})},
		{"whose is not known yet", policy(elsewhere), ubuntu, facts(Presence{})},
		{"driver toolkit of the same release", policy(release), rhcos, facts(Presence{})},
		{"precompiled, kernel unknown", precompiled(nil), other, plain},
		{"precompiled by digest", precompiled(digest), ubuntu, plain},
	} {
		requireGolden(t, c.name, Choose(c.spec, c.pool, "worker-0", c.f))
	}
}

func requireGolden(t *testing.T, name string, choice Choice) {
	t.Helper()
	data, err := json.MarshalIndent(choice, "", "  ")
	require.NoError(t, err)
	path := filepath.Join("testdata", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".json")
	golden.Require(t, path, append(data, '\n'))
}

func TestRegistryIsQueriedForTheExactTag(t *testing.T) {
	asked := ""
	f := Facts{Registry: func(image string) Presence { asked = image; return Presence{State: Present} }}
	c := Choose(precompiled(nil), rhcos, "a", f)
	require.Equal(t, "nvcr.io/nvidia/driver:535-4.18.0-372.51.1.el8_6.x86_64-rhcos4.12", asked)
	require.Equal(t, asked, c.Image)
	require.Equal(t, "nvidia-driver-daemonset-4.18.0-372.51.1.el8.6-rhcos4.12", c.Name)
}

func TestOwnerOfADriverImage(t *testing.T) {
	runs := func(ours bool) func(string, string) (Presence, bool) {
		return func(id, image string) (Presence, bool) {
			return Presence{Ours: ours}, id == containerID(ubuntu) && image == "registry.example/driver:535.104.05-ubuntu22.04"
		}
	}
	named := func(repository, image string) *v1.ClusterPolicySpec {
		return policy(func(s *v1.ClusterPolicySpec) { s.Driver.Repository, s.Driver.Image = repository, image })
	}
	ours := Presence{State: Present, Ours: true}
	away := Presence{State: Unknown, Why: "dial tcp: i/o timeout"}
	for name, c := range map[string]struct {
		spec     *v1.ClusterPolicySpec
		says     Presence
		deployed func(string, string) (Presence, bool)
		ours     bool
		guessed  bool
		waits    bool
		asked    bool
	}{
		"the release's own": {spec: named("gpuready", "driver"), ours: true},
		"the release's own, by digest": {spec: policy(func(s *v1.ClusterPolicySpec) {
			s.Driver.Repository, s.Driver.Version = "gpuready", "sha256:"+strings.Repeat("a", 64)
		}), ours: true},
		"NVIDIA's registry":                       {spec: named("nvcr.io/nvidia", "driver"), says: ours},
		"a name that begins as the release's":     {spec: named("gpuready", "driver-of-mine"), asked: true, says: Presence{State: Present}},
		"it has the label":                        {spec: policy(elsewhere), says: ours, ours: true, asked: true},
		"it has not":                              {spec: policy(elsewhere), says: Presence{State: Present}, deployed: runs(true), asked: true},
		"nobody answers":                          {guessed: true, spec: policy(elsewhere), says: away, asked: true},
		"nobody answers, and it runs as ours":     {spec: policy(elsewhere), says: away, deployed: runs(true), ours: true, asked: true},
		"nobody answers, and it runs as NVIDIA's": {guessed: true, spec: policy(elsewhere), says: away, deployed: runs(false), asked: true},
		"another image runs as ours":              {guessed: true, spec: named("registry.example", "other"), says: away, deployed: runs(true), asked: true},
		"its labels cannot be read":               {guessed: true, spec: policy(elsewhere), says: Presence{State: Present, Why: "403"}, asked: true},
		"there is none":                           {guessed: true, spec: policy(elsewhere), says: Presence{State: Absent}, asked: true},
		"it is being asked for":                   {spec: policy(elsewhere), waits: true, asked: true},
		"it is being asked for, and runs as ours": {spec: policy(elsewhere), deployed: runs(true), ours: true, asked: true},
	} {
		asked := false
		choice := Choose(c.spec, ubuntu, "a", Facts{
			Images:   v1.ImageSpec{Repository: "gpuready", Version: "v1.0.0"},
			Registry: func(string) Presence { asked = true; return c.says },
			Deployed: c.deployed,
		})
		require.Equal(t, c.ours, choice.Ours, name)
		require.Equal(t, c.guessed, choice.AssumedNVIDIA, name)
		require.Equal(t, c.waits, choice.Problem != nil, name)
		require.Equal(t, c.asked, asked, name)
	}
	require.False(t, Choose(policy(elsewhere), ubuntu, "a", Facts{}).Ours, "nobody asks")
}

func TestVersionOfOurDriverImage(t *testing.T) {
	version := func(tag, label string, says PresenceState, deployed string) string {
		return Choose(policy(func(s *v1.ClusterPolicySpec) { elsewhere(s); s.Driver.Version = tag }), ubuntu, "a", Facts{
			Registry: registry(Presence{State: says, Ours: says == Present, Version: Version(label)}),
			Deployed: func(string, string) (Presence, bool) {
				return Presence{Ours: true, Version: deployed}, deployed != ""
			},
		}).Version
	}
	require.Equal(t, "535.104.05", version("535.104.05", "", Present, ""))
	require.Equal(t, "535.104.05", version("535.104.05", "535.104.06", Present, ""), "the policy's stays when the registry is away")
	require.Equal(t, "535.104.05", version("535", "535.104.05", Present, ""), "a branch")
	require.Equal(t, "390.157", version("latest", "390.157", Present, ""))
	require.Equal(t, "535.104.05", version("latest", "", Unknown, "535.104.05"), "the registry is away")
	require.Empty(t, version("latest", "true", Present, ""))
	require.Empty(t, Version("535."+strings.Repeat("1", 100)), "a tag has at most 128 characters")
}

// realKernels are releases as uname -r prints them, and what NFD makes of those in its label.
var realKernels = map[string]string{
	"5.14.0-503.11.1.el9_5.x86_64":        "5.14.0-503.11.1.el9_5.x86_64",
	"5.14.0-503.11.1.el9_5.x86_64+rt":     "5.14.0-503.11.1.el9_5.x86_64_rt",
	"5.14.0-503.11.1.el9_5.aarch64":       "5.14.0-503.11.1.el9_5.aarch64",
	"5.14.0-503.11.1.el9_5.aarch64+64k":   "5.14.0-503.11.1.el9_5.aarch64_64k",
	"6.12.0-55.9.1.el10_0.x86_64":         "6.12.0-55.9.1.el10_0.x86_64",
	"6.12.0-55.9.1.el10_0.aarch64+64k":    "6.12.0-55.9.1.el10_0.aarch64_64k",
	"6.12.0-55.9.1.el10_0.x86_64+rt":      "6.12.0-55.9.1.el10_0.x86_64_rt",
	"6.8.0-1021-aws":                      "6.8.0-1021-aws",
	"6.8.0-1020-azure":                    "6.8.0-1020-azure",
	"6.8.0-1020-gcp":                      "6.8.0-1020-gcp",
	"6.8.0-1019-nvidia-64k":               "6.8.0-1019-nvidia-64k",
	"6.8.0-51-generic-64k":                "6.8.0-51-generic-64k",
	"6.8.1-1015-realtime":                 "6.8.1-1015-realtime",
	"6.1.119-129.201.amzn2023.x86_64":     "6.1.119-129.201.amzn2023.x86_64",
	"6.6.64.2-9.azl3":                     "6.6.64.2-9.azl3",
	"6.12.9-200.fc41.x86_64":              "6.12.9-200.fc41.x86_64",
	"6.12.95+deb12-cloud-amd64":           "6.12.95_deb12-cloud-amd64",
	"6.4.0-150600.23.47-default":          "6.4.0-150600.23.47-default",
	"6.4.0-150600.8.23-azure":             "6.4.0-150600.8.23-azure",
	"4.19.90-89.11.v2401.ky10.x86_64":     "4.19.90-89.11.v2401.ky10.x86_64",
	"5.15.0-205.149.5.1.el9uek.x86_64":    "5.15.0-205.149.5.1.el9uek.x86_64",
	"6.8.0-ACME+":                         "6.8.0-ACME", // of people who build their own
	"6.8.0-rc1-00012-g1234567890ab-dirty": "6.8.0-rc1-00012-g1234567890ab-dirty",
}

// The operator names the image by NFD's label, the driver container and make image by uname -r: all find
// the same. The name of its DaemonSet is its own.
func TestTagsOfRealKernels(t *testing.T) {
	ids := map[string]string{}
	for kernel, labelled := range realKernels {
		want, err := nvidia.DriverTag("535", kernel, "rhel9.5")
		require.NoError(t, err, kernel)
		for name, n := range map[string]*corev1.Node{
			"NFD's label":      {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{label.Kernel: labelled, label.OSID: "rhel", label.OSVersion: "9.5"}}},
			"as kubelet tells": {Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KernelVersion: kernel, OSImage: "Red Hat Enterprise Linux 9.5 (Plow)"}}},
		} {
			pool := fleet.Observe(n).Pool
			require.Equal(t, labelled, pool.Kernel, "%s of %s", name, kernel)
			choice := Choose(precompiled(elsewhere), pool, "a", facts(Presence{State: Present}))
			require.Nil(t, choice.Problem, kernel)
			require.Equal(t, "registry.example/driver:"+want, choice.Image, "%s of %s", name, kernel)
			require.Empty(t, validation.IsValidLabelValue(choice.ID), choice.ID)
			require.Empty(t, validation.IsDNS1123Subdomain(choice.Name), choice.Name)
			if other, taken := ids[choice.ID]; taken {
				require.Equal(t, kernel, other, choice.ID)
			}
			ids[choice.ID] = kernel
		}
	}
}

// A registry has no path with capitals, and tags with them.
func TestCapitalsInAnImage(t *testing.T) {
	for repository, good := range map[string]bool{
		"registry.example/gpu": true, "Registry.Example:5000/gpu": true, "[fd00::1]:5000/gpu": true, "localhost/gpu": true,
		"registry.example/GPU": false, "registry.example/gpu/Nvidia": false,
	} {
		choice := Choose(policy(func(s *v1.ClusterPolicySpec) { s.Driver.Repository, s.Driver.Version = repository, "535.104.05-RC1" }), ubuntu, "a", facts(Presence{State: Present}))
		if good {
			require.Nil(t, choice.Problem, repository)
			continue
		}
		require.Equal(t, ImageInvalid, choice.Problem.Reason, repository)
		require.Contains(t, choice.Problem.Message, "no image with a path in lower case and a tag")
	}
}

func TestADaemonSetServesTheNodesItWasMadeFor(t *testing.T) {
	ids := func(p fleet.Pool) []string { return []string{containerID(p), toolkitID(p), precompiledID(p)} }
	upgraded := rhcos
	upgraded.RHCOS, upgraded.Kernel = "412.86.202304010000-0", "4.18.0-372.52.1.el8_6.x86_64"
	for _, id := range ids(rhcos) {
		require.True(t, Serves(id, rhcos), id)
		require.False(t, Serves(id, ubuntu), id)
	}
	require.True(t, Serves(containerID(rhcos), upgraded))
	require.False(t, Serves(toolkitID(rhcos), upgraded))
	require.False(t, Serves(precompiledID(rhcos), upgraded))
	require.True(t, Serves(simulatedID, ubuntu))
	require.False(t, Serves("", fleet.Pool{}))
	require.False(t, Serves("", ubuntu))
	require.False(t, Serves(label.PreInstalled, ubuntu))
}

func TestUnknownImageIsTriedWhereNoDriverIsDeployed(t *testing.T) {
	sets := func(ids []string, sidecar bool) map[string]bool {
		all := map[string]bool{}
		for _, id := range ids {
			all[id] = sidecar
		}
		return all
	}
	choose := func(state PresenceState, ids ...string) bool {
		choices := []Choice{Choose(precompiled(nil), rhcos, "a", facts(Presence{State: state}))}
		Try(choices, sets(ids, false))
		return choices[0].Problem.Keep
	}
	require.False(t, choose(Unknown))
	require.False(t, choose(Unknown, containerID(ubuntu)))
	require.True(t, choose(Unknown, containerID(rhcos)))
	require.True(t, choose(Unknown, precompiledID(rhcos)), "as it was applied")
	require.True(t, choose(Absent))
	require.True(t, choose(Unasked))

	newer := rhcos
	newer.RHCOS = "419.94.202509010000-0"
	withoutToolkit := func(ours, sidecar bool, ids ...string) bool {
		choices := []Choice{Choose(policy(elsewhere), newer, "a", facts(Presence{State: Present, Ours: ours}))}
		Try(choices, sets(ids, sidecar))
		return choices[0].Problem.Keep
	}
	require.False(t, withoutToolkit(true, false), "it may have modules all the same")
	require.True(t, withoutToolkit(true, true, toolkitID(newer)), "its side-car builds")
	require.False(t, withoutToolkit(true, false, toolkitID(newer)), "it has no side-car to lose, and follows the policy")
	require.True(t, withoutToolkit(true, false, toolkitID(newer), precompiledID(newer)), "it has modules")
	require.True(t, withoutToolkit(false, false))
}

func TestIdentifiersAreValidKubernetesNames(t *testing.T) {
	text := rapid.OneOf(rapid.StringN(0, 90, -1), rapid.StringMatching(`[-_.a-zA-Z0-9+~]{0,90}`))
	rapid.Check(t, func(t *rapid.T) {
		pool := fleet.Pool{OS: text.Draw(t, "os"), Kernel: text.Draw(t, "kernel"), CoreOS: rapid.Bool().Draw(t, "coreos"), RHCOS: text.Draw(t, "rhcos")}
		spec := policy(nil)
		if rapid.Bool().Draw(t, "precompiled") {
			spec = precompiled(fallback)
		}
		f := facts(Presence{State: PresenceState(rapid.IntRange(0, 3).Draw(t, "state"))})
		f.Toolkit = func(string) (string, bool) { return "x", rapid.Bool().Draw(t, "toolkit") }
		c := Choose(spec, pool, "a", f)
		if c.Problem != nil {
			require.NotEmpty(t, c.Problem.Message)
		} else {
			require.NotEmpty(t, c.ID)
		}
		if c.ID == "" {
			return
		}
		require.True(t, Serves(c.ID, pool))
		require.Empty(t, validation.IsValidLabelValue(c.ID), c.ID)
		require.Empty(t, validation.IsDNS1123Subdomain(c.Name), c.Name)
		require.Empty(t, validation.IsDNS1123Subdomain(c.Name[:min(len(c.Name), 58)]+"x2x7z"), c.Name)
		require.Equal(t, label.DriverApp+"-"+c.ID, c.Name)
	})
}

func TestTruncatedNamesStayDistinct(t *testing.T) {
	long := strings.Repeat("5.15.0-1042-very-", 6)
	a, b := identifier(long+"a"), identifier(long+"b")
	require.NotEqual(t, a, b)
	require.Len(t, a, maxLabelValue)
	require.NotEqual(t, identifier("6.8+64k"), identifier("6.8-64k"))
}
