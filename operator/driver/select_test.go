package driver

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// nvidiaDriver returns an NVIDIADriver with a spec in flow style.
func nvidiaDriver(t *testing.T, name, spec string) *v1alpha1.NVIDIADriver {
	t.Helper()
	d := &v1alpha1.NVIDIADriver{}
	d.Name = name
	require.NoError(t, yaml.Unmarshal([]byte(spec), &d.Spec))
	return d
}

func leaving() *v1.ClusterPolicySpec {
	yes := true
	return &v1.ClusterPolicySpec{Driver: v1.DriverSpec{UseNvidiaDriverCRD: &yes}}
}

func TestEachNodeHasTheNVIDIADriverThatSelectsIt(t *testing.T) {
	gone := nvidiaDriver(t, "gone", `{nodeSelector: {tier: gold}}`)
	gone.DeletionTimestamp = &metav1.Time{}
	s := NewSelection(leaving(), []*v1alpha1.NVIDIADriver{
		nvidiaDriver(t, "gold", `{nodeSelector: {tier: gold}}`),
		nvidiaDriver(t, "silver", `{nodeSelector: {tier: silver}}`),
		nvidiaDriver(t, "rest", `{default: true}`),
		nvidiaDriver(t, "zone", `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a, b]}, {key: old, operator: DoesNotExist}]}, {matchFields: [{key: metadata.name, operator: In, values: [n9]}]}]}}}`),
		nvidiaDriver(t, "none", `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}`),
		gone,
	}, "")
	for want, nodes := range map[string][]map[string]string{
		"gold":         {{"tier": "gold", "other": "x"}},
		"silver":       {{"tier": "silver"}, {"tier": "silver", "zone": "c"}},
		"rest":         {{}, nil, {"tier": "bronze"}, {"zone": "a", "old": ""}},
		"zone":         {{"zone": "a"}, {"zone": "b", "tier": "x"}},
		"gold, zone":   {{"tier": "gold", "zone": "a"}},
		"silver, zone": {{"tier": "silver", "zone": "b"}},
	} {
		for _, labels := range nodes {
			require.Equal(t, want, s.Of("n1", labels), "%v", labels)
		}
	}
	require.Equal(t, "zone", s.Of("n9", nil))
	require.Equal(t, fleet.NoDriver, NewSelection(leaving(), nil, "").Of("n1", nil))
	require.Equal(t, "a, b", NewSelection(leaving(), []*v1alpha1.NVIDIADriver{nvidiaDriver(t, "b", `{default: true}`), nvidiaDriver(t, "a", `{default: true}`)}, "").Of("n1", nil), "of two defaults none is taken")
	require.Empty(t, (*Selection)(nil).Of("n1", nil))
}

func TestChoiceOfAnNVIDIADriver(t *testing.T) {
	policy := leaving()
	policy.Driver.Version = "550.54.15"
	facts := func(*v1.ClusterPolicySpec) Facts {
		return Facts{Images: v1.ImageSpec{Repository: "gpuready", Version: "v0"}, NVIDIA: v1.ImageSpec{Repository: "nvcr.io/nvidia", Image: "driver", Version: "580.105.08"}}
	}
	s := NewSelection(policy, []*v1alpha1.NVIDIADriver{
		nvidiaDriver(t, "gold", `{nodeSelector: {tier: gold}, repository: nvcr.io/nvidia, image: driver, version: 580.95.05}`),
		nvidiaDriver(t, "silver", `{nodeSelector: {tier: silver}, image: nvcr.io/nvidia/driver}`),
		nvidiaDriver(t, "wrong", `{nodeSelector: {tier: wrong}, repository: r, image: "a b"}`),
		nvidiaDriver(t, "vms", `{nodeSelector: {tier: vms}, driverType: vgpu-host-manager}`),
		nvidiaDriver(t, "affinity", `{nodeSelector: {tier: affinity}, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]}}}`),
		nvidiaDriver(t, "simulated", `{nodeSelector: {tier: simulated}, simulated: {enabled: true}}`),
	}, "")
	choose := func(tier string) Choice {
		pool := fleet.Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-91-generic", Drivers: s.Of("n1", map[string]string{"tier": tier})}
		return s.Choose(policy, pool, "n1", facts)
	}
	gold := choose("gold")
	require.Nil(t, gold.Problem)
	require.Equal(t, "nvcr.io/nvidia/driver:580.95.05-ubuntu22.04", gold.Image)
	require.Equal(t, "ubuntu22.04_gold", gold.ID)
	require.Equal(t, "nvidia-driver-daemonset-ubuntu22.04-gold", gold.Name)
	require.Equal(t, "nvcr.io/nvidia/driver:580.105.08-ubuntu22.04", choose("silver").Image)
	require.Equal(t, "nvidia-driver-daemonset-simulated-simulated", choose("simulated").Name)
	for tier, want := range map[string]Problem{
		"none":     {Reason: NoDriverSelected, Message: "no NVIDIADriver selects node n1, which keeps what it has: label the node, or create an NVIDIADriver with spec.default", Keep: true},
		"vms":      {Reason: DriverTypeNotServed, Message: "NVIDIADriver vms: driverType is vgpu-host-manager, and gpuready serves containers only: keep NVIDIA's operator for nodes with virtual machines", Keep: true},
		"affinity": {Reason: SelectorInvalid, Message: `NVIDIADriver affinity: spec.nodeAffinity is not valid in Kubernetes: operator: Invalid value: "": "" is not a valid label selector operator; correct it`, Keep: true},
		"wrong":    {Reason: ImageInvalid, Message: `NVIDIADriver wrong: its spec's repository, image and version make "r/a b:580.105.08-ubuntu22.04" for node n1, which is no image with a path in lower case and a tag; correct them`, Keep: true},
	} {
		choice := choose(tier)
		require.NotNil(t, choice.Problem, tier)
		require.Equal(t, want.Reason, choice.Problem.Reason)
		require.True(t, choice.Problem.Keep)
		if tier != "affinity" {
			require.Equal(t, want.Message, choice.Problem.Message)
		}
	}
	for name, want := range map[string]string{"gold": "", "-": "", "simulated": "simulated_simulated"} {
		choice := s.Choose(policy, fleet.Pool{OS: "ubuntu22.04", Drivers: name, NotServed: true}, "n1", facts)
		require.Equal(t, want, choice.ID)
		if want == "" {
			require.Equal(t, PlatformNotServed, choice.Problem.Reason)
			require.False(t, choice.Problem.Keep, "what driver it has is removed")
		}
	}
	conflict := s.Choose(policy, fleet.Pool{OS: "ubuntu22.04", Drivers: "gold, silver"}, "n7", facts)
	require.Equal(t, &Problem{Reason: Conflict, Message: "NVIDIADrivers gold, silver select node n7, which keeps what it has: change a nodeSelector, or the node's labels", Keep: true}, conflict.Problem)
	require.Empty(t, conflict.ID)
	unread := NewSelection(policy, nil, "forbidden").Choose(policy, fleet.Pool{OS: "ubuntu22.04", Drivers: fleet.NoDriver}, "n1", facts)
	require.Equal(t, DriversUnknown, unread.Problem.Reason)
	none := NewSelection(policy, nil, "").Choose(policy, fleet.Pool{OS: "ubuntu22.04", Drivers: fleet.NoDriver}, "n1", facts)
	require.Equal(t, NoDriverSelected, none.Problem.Reason)
	require.Contains(t, none.Problem.Message, "there is no NVIDIADriver")
}

// An ID is the value of a label and the end of an object's name, and tells whose driver it is.
func TestIDsOfNVIDIADriversAreBoundedAndTheirOwn(t *testing.T) {
	pool := fleet.Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "6.8.0-" + strings.Repeat("1060-nvidia-lowlatency-", 4) + "64k"}
	long := strings.Repeat("a", 250)
	seen := map[string]bool{}
	for _, base := range []string{containerID(pool), precompiledID(pool), simulatedID} {
		for _, name := range []string{"", "gold", "gold.example.com", long + "b", long + "c"} {
			id := driverID(base, name)
			require.LessOrEqual(t, len(id), 63)
			require.Regexp(t, `^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`, id)
			require.False(t, seen[id], id)
			seen[id] = true
			pool.Drivers = name
			require.True(t, Serves(id, pool), id)
			require.True(t, IsOf(id, pool), id)
			pool.Drivers = "other"
			require.True(t, Serves(id, pool), "a node may keep another NVIDIADriver's driver")
			require.False(t, IsOf(id, pool), id)
			for _, none := range []string{fleet.NoDriver, "gold, silver"} {
				pool.Drivers = none
				require.False(t, IsOf(id, pool), id)
			}
			require.False(t, Serves(id, fleet.Pool{OS: "rhel9.6", Kernel: "5.14", Drivers: name}) && base != simulatedID, id)
		}
	}
	require.Equal(t, label.DriverApp+"-ubuntu22.04-gold", (&chooser{pool: fleet.Pool{Drivers: "gold"}}).choice(Container, "ubuntu22.04", "").Name)
}
