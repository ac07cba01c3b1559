package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

const draDriver = "system:serviceaccount:gpuready:gpu-dra-driver"

// slice returns a ResourceSlice of n1, changed.
func slice(change func(*resourceapi.ResourceSliceSpec)) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1}}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func TestTheDRADriverWritesSlicesOfItsOwnNodeOnly(t *testing.T) {
	requests := func(s *resourceapi.ResourceSlice) []request {
		return []request{
			{operation: admission.Create, resource: "resourceslices", object: s, user: draDriver},
			{operation: admission.Update, resource: "resourceslices", object: s, old: slice(nil), user: draDriver},
			{operation: admission.Update, resource: "resourceslices", object: slice(nil), old: s, user: draDriver},
			{operation: admission.Delete, resource: "resourceslices", old: s, user: draDriver},
		}
	}
	for _, r := range requests(slice(nil)) {
		require.Empty(t, evaluate(t, r))
		for _, node := range []string{"n2", "-"} {
			r.node = node
			require.Contains(t, evaluate(t, r), "gpu-dra-driver may write ResourceSlices of gpu.nvidia.com and of the Node that its pod runs on", "with a token of another node, or of none")
		}
		r.user = "system:node:n2"
		require.Empty(t, evaluate(t, r), "others are not affected")
	}
	for name, change := range map[string]func(*resourceapi.ResourceSliceSpec){
		"another node":   func(s *resourceapi.ResourceSliceSpec) { s.NodeName = new("n2") },
		"all nodes":      func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) },
		"another pool":   func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "n2" },
		"another driver": func(s *resourceapi.ResourceSliceSpec) { s.Driver = "dra.example.com" },
	} {
		for _, r := range requests(slice(change)) {
			require.Contains(t, evaluate(t, r), `of the Node that its pod runs on, "n1", alone`, name)
		}
	}
}
