package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
)

func precompiled() *v1.ClusterPolicy {
	yes := true
	p := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy", UID: "uid-policy", Generation: 1}}
	p.Spec.Driver.UsePrecompiled = &yes
	p.Spec.Driver.Repository, p.Spec.Driver.Image, p.Spec.Driver.Version = "registry.example", "driver", "535"
	return p
}

func drivers(w *world) []string {
	return slices.DeleteFunc(w.sets(), func(name string) bool { return !strings.HasPrefix(name, label.DriverApp) })
}

func TestAnImageOfWhichNothingIsKnownIsTriedWhereThereIsNothingToKeep(t *testing.T) {
	const id = kernel + "-ubuntu22.04"
	w := newWorld(t)
	image := "registry.example/driver:535-" + id
	w.create(gpuNode("n1"), precompiled())
	w.step()
	require.Empty(t, drivers(w), "the registry is being asked")
	w.images[image] = driver.Presence{State: driver.Unknown, Why: "nobody answers"}
	w.changed()
	w.step()
	require.Equal(t, []string{label.DriverApp + "-" + id}, drivers(w))
	require.Equal(t, id, w.node("n1").Labels[label.Driver])
	w.step()
	require.Empty(t, w.step())
	w.create(gpuNode("n2"))
	w.step()
	require.Equal(t, id, w.node("n2").Labels[label.Driver], "a new node gets what the others have")

	w.images[image] = driver.Presence{State: driver.Absent}
	w.changed()
	w.create(gpuNode("n3"))
	w.step()
	require.Equal(t, []string{label.DriverApp + "-" + id}, drivers(w))
	require.Equal(t, id, w.node("n3").Labels[label.Driver])
}
