package nodestatus

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// labelled returns the facts of a node whose plugin reports these labels.
func labelled(labels map[string]string) Facts {
	f := facts()
	f.States[nodestate.DevicePlugin].DevicePlugin.Labels = labels
	return f
}

func t4(count string) map[string]string {
	return map[string]string{"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": count, "nvidia.com/cuda.driver.rev": ""}
}

func (s *stage) labels() map[string]string { return s.server.Node(node, nil).Labels }

// patches counts the patches of the Node's metadata.
func (s *stage) patches() (n int) {
	for _, r := range s.server.Requests() {
		if r == "PATCH /api/v1/nodes/"+node+" 200" {
			n++
		}
	}
	return n
}

func TestTheNodeGetsTheDevicePluginsLabels(t *testing.T) {
	s := newStage(t)
	theirs := map[string]string{"kubernetes.io/hostname": "n1", "nvidia.com/gpu.deploy.driver": "true", "nvidia.com/mig.config": "all-disabled"}
	s.server.Node(node, func(n *corev1.Node) {
		n.Labels = maps.Clone(theirs)
		n.Labels["nvidia.com/gpu.count"] = "7" // left by another program
		n.Annotations = map[string]string{"theirs": "x"}
	})
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(theirs)
		maps.Copy(all, more)
		return all
	}
	s.publish(labelled(t4("4")))
	require.Equal(t, with(t4("4")), s.labels())
	require.Equal(t, map[string]string{"theirs": "x", LabelsAnnotation: "cuda.driver.rev,gpu.count,gpu.product"}, s.server.Node(node, nil).Annotations)
	require.Equal(t, 1, s.patches())

	s.publish(labelled(t4("4")))
	require.Equal(t, 1, s.patches(), "nothing new")
	s.publish(labelled(t4("2")))
	require.Equal(t, with(t4("2")), s.labels())

	// Another process removes labels.
	s.start()
	s.publish(labelled(map[string]string{"nvidia.com/gpu.count": "2"}))
	require.Equal(t, with(map[string]string{"nvidia.com/gpu.count": "2"}), s.labels())
	s.publish(labelled(map[string]string{}))
	require.Equal(t, theirs, s.labels(), "no GPU")
	require.Equal(t, map[string]string{"theirs": "x"}, s.server.Node(node, nil).Annotations)
}

// An uninstallation finds our labels by the annotation. It may remove both while a validator writes one label more.
func TestALabelIsNotWrittenWithoutItsRecord(t *testing.T) {
	was := &corev1.Node{}
	was.Labels, was.Annotations = t4("4"), map[string]string{LabelsAnnotation: annotation(t4("4"))}
	require.Equal(t, map[string]any{
		"labels":      map[string]any{"nvidia.com/gpu.count": "2"},
		"annotations": map[string]any{LabelsAnnotation: was.Annotations[LabelsAnnotation]},
	}, labelChange(was, t4("2")))
	require.Nil(t, labelChange(was, t4("4")))
}

func TestLabelsStayWhileTheDevicePluginIsAway(t *testing.T) {
	s := newStage(t)
	s.publish(labelled(t4("4")))
	silent := facts()
	delete(silent.States, nodestate.DevicePlugin)
	s.publish(silent)
	require.Equal(t, t4("4"), s.labels(), "the plugin is away")
	s.publish(labelled(nil))
	require.Equal(t, t4("4"), s.labels(), "it has another publisher")
}

func TestChangedLabelsAreRestoredAtTheHeartbeat(t *testing.T) {
	s := newStage(t)
	s.publish(labelled(t4("4")))
	s.server.Node(node, func(n *corev1.Node) { n.Labels = map[string]string{"nvidia.com/gpu.product": "theirs"} })
	s.publish(labelled(t4("4")))
	s.clock.advance(heartbeat)
	s.until(func() bool { return maps.Equal(t4("4"), s.labels()) })
}

func TestTheAnnotationRemovesOnlyOwnLabels(t *testing.T) {
	s := newStage(t)
	theirs := map[string]string{"nvidia.com/gpu.deploy.driver": "true", "nvidia.com/mig.config": "x", nodestate.ConfigLabel: "x"}
	s.server.Node(node, func(n *corev1.Node) {
		n.Labels = maps.Clone(theirs)
		n.Annotations = map[string]string{LabelsAnnotation: "gpu.deploy.driver,mig.config,device-plugin.config,,../x,gpu.count"}
	})
	s.publish(labelled(map[string]string{}))
	require.Equal(t, theirs, s.labels())
}

func TestRefusedLabelsDelayNothing(t *testing.T) {
	s := newStage(t)
	s.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.Header.Get("Content-Type") == "application/merge-patch+json" {
			return &kubetest.Fault{Status: 403}
		}
		return nil
	})
	s.publisher.Publish(labelled(t4("4")).broken(0, "XID", "XID 79", s.clock.Now()))
	s.until(func() bool { return len(s.server.Events()) == 1 })
	require.Equal(t, "Degraded", s.condition().Reason)
	require.Empty(t, s.labels())
	s.server.Fail(nil)
	s.until(func() bool { return maps.Equal(t4("4"), s.labels()) })
}

// Whatever the labels were: afterwards there are the wanted ones, those of others, nothing
// else, and no more change.
func TestOnlyOwnLabelsChange(t *testing.T) {
	server := kubetest.Start(node)
	t.Cleanup(server.Stop)
	client, err := kube.New(server.Config())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	name := rapid.SampledFrom([]string{"gpu.count", "gpu.product", "gpu.memory", "mig-1g.10gb.count", "mig.strategy", "gpu.deploy.driver", "mig.config", "device-plugin.config"})
	label := rapid.MapOfN(name, rapid.SampledFrom([]string{"", "a", "b"}), 0, 8)
	rapid.Check(t, func(rt *rapid.T) {
		there, annotated, want := map[string]string{}, rapid.SliceOf(name).Draw(rt, "annotated"), map[string]string{}
		for k, value := range label.Draw(rt, "there") {
			there[labelPrefix+k] = value
		}
		for k, value := range label.Draw(rt, "want") {
			if nodestate.IsFeature(labelPrefix + k) {
				want[labelPrefix+k] = value
			}
		}
		server.Node(node, func(n *corev1.Node) {
			n.Labels, n.Annotations = maps.Clone(there), map[string]string{LabelsAnnotation: strings.Join(annotated, ","), "theirs": "x"}
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		v := New(Config{Client: client, Node: node, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())})
		require.NoError(rt, v.writeLabels(ctx, want))
		now := server.Node(node, nil)
		expect := maps.Clone(there)
		for _, k := range annotated {
			if nodestate.IsFeature(labelPrefix + k) {
				delete(expect, labelPrefix+k)
			}
		}
		maps.Copy(expect, want)
		require.Equal(rt, fmt.Sprint(expect), fmt.Sprint(mapOrEmpty(now.Labels)))
		require.Equal(rt, "x", now.Annotations["theirs"])
		require.Nil(rt, labelChange(now, want))
	})
}

func mapOrEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// Anybody can write the annotation.
func FuzzAnnotationNamesOnlyFeatures(f *testing.F) {
	f.Add("gpu.count,mig-1g.10gb.me.count,cuda.driver.rev")
	f.Add(",,gpu.deploy.driver,\x00,../../x,kubernetes.io/hostname")
	f.Fuzz(func(t *testing.T, text string) {
		n := &corev1.Node{}
		n.Annotations = map[string]string{LabelsAnnotation: text}
		n.Labels = map[string]string{"nvidia.com/gpu.deploy.driver": "true", "kubernetes.io/hostname": "n1", "nvidia.com/gpu.count": "1"}
		for _, name := range ownLabels(n) {
			require.True(t, nodestate.IsFeature(name), name)
		}
		change := labelChange(n, map[string]string{})
		labels, _ := change["labels"].(map[string]any)
		delete(labels, "nvidia.com/gpu.count")
		require.Empty(t, labels)
	})
}
