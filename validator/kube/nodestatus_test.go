package kube

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuready/gpuready/validator/check"
)

func TestNewsSignalsOnlyAChangedStatus(t *testing.T) {
	s := NewNodeStatus()
	told := corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.31.2"}, RuntimeHandlers: []corev1.NodeRuntimeHandler{{Name: "runc"}, {}, {Name: "nvidia"}}}
	require.Equal(t, check.Status{}, s.Last())
	s.Set(told)
	require.Equal(t, check.Status{Kubelet: "v1.31.2", Handlers: []string{"nvidia", "runc"}, Allocatable: map[string]int64{}}, s.Last())
	<-s.Updates()
	s.Set(told)
	require.Empty(t, s.Updates(), "the same once more")
	told.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("64")}
	s.Set(told)
	<-s.Updates()
	require.Equal(t, map[string]int64{"nvidia.com/gpu": 8}, s.Last().Allocatable)
	told.RuntimeHandlers = nil
	s.Set(told)
	<-s.Updates()
	require.Nil(t, s.Last().Handlers)
}
