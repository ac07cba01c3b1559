package operator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// killed runs upgrades one after the other and kills the operator at random moments, until
// it has been killed often enough. One node is cordoned by hand throughout; the upgrade may
// cordon one more.
func (s *suite) killed(t *testing.T) {
	kills, err := strconv.Atoi(os.Getenv("GPUREADY_E2E_KILLS"))
	if err != nil {
		kills = 4
	}
	const byHand, most = "n3", 2
	random := rand.New(rand.NewPCG(7, 11))
	began, version, rolls := time.Now(), oldDriver, 1
	s.Kubectl(t, "cordon", byHand)
	s.simulateMany(t, version, most)
	var gaps []time.Duration
	for len(gaps) < kills {
		time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond) // the moment is what is random
		if s.rolling(version, byHand) {
			gaps = append(gaps, s.killOperator(t))
			continue
		}
		s.waitUpgraded(t, version, byHand)
		version = map[string]string{oldDriver: newDriver, newDriver: oldDriver}[version]
		s.simulateMany(t, version, most)
		rolls++
	}
	s.waitUpgraded(t, version, byHand)
	s.atMost(t, most, began)
	s.Kubectl(t, "uncordon", byHand)
	slices.Sort(gaps)
	t.Logf("killed %d times in %d rolls over %d nodes, in %.0f s; the next one led after %.1f s (median), %.1f s at most",
		len(gaps), rolls, len(s.Nodes), time.Since(began).Seconds(), gaps[len(gaps)/2].Seconds(), gaps[len(gaps)-1].Seconds())
}

// rolling reports whether a node is still to be upgraded to that version or uncordoned.
func (s *suite) rolling(version string, cordoned ...string) bool {
	for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		if p.DeletionTimestamp != nil || !strings.HasSuffix(p.Spec.Containers[0].Image, ":"+version) {
			return true
		}
	}
	return slices.ContainsFunc(s.World.Nodes(), func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && !slices.Contains(cordoned, n.Name)
	})
}

// killOperator kills the leading operator's process and deletes its pod, because the kubelet
// would delay each restart of the container longer. It returns how long there was no leader.
func (s *suite) killOperator(t *testing.T) time.Duration {
	t.Helper()
	pod := s.leader(t, "")
	began := time.Now()
	s.kill(t, pod)
	next := s.leader(t, pod.UID)
	took := time.Since(began)
	t.Logf("%s on %s was killed; %s on %s leads after %.1f s", pod.Name, pod.Spec.NodeName, next.Name, next.Spec.NodeName, took.Seconds())
	return took
}

// kill kills an operator's process without a graceful shutdown, and deletes its pod.
func (s *suite) kill(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	i := slices.IndexFunc(s.Nodes, func(n *cluster.Node) bool { return n.Name == pod.Spec.NodeName })
	require.GreaterOrEqual(t, i, 0, "the node %q of %s", pod.Spec.NodeName, pod.Name)
	out, err := s.Nodes[i].Exec(t.Context(), "sh", "-c", `for p in $(pgrep -x gpu-operator); do grep -qaz "^POD_UID=$1$" "/proc/$p/environ" && kill -KILL "$p" && exit; done; exit 1`, "sh", string(pod.UID))
	require.NoErrorf(t, err, "%s runs on %s: %s", pod.Name, pod.Spec.NodeName, out)
	require.NoError(t, s.World.Client.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// standsBy keeps a second operator on standby while drivers are upgraded. However the leader
// ends, another one continues, and no more nodes are unavailable than allowed. It may be the
// replacement of the leader's pod, which may ask for the Lease first.
func (s *suite) standsBy(t *testing.T) {
	version := newDriver
	for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		if strings.HasSuffix(p.Spec.Containers[0].Image, ":"+newDriver) {
			version = oldDriver
		}
	}
	s.Kubectl(t, "-n", namespace, "scale", "deployment/gpuready-operator", "--replicas=2")
	s.second(t)
	began := time.Now()
	s.simulate(t, version)
	for _, way := range []struct {
		name string
		goes func(*corev1.Pod)
	}{
		{"killed", func(p *corev1.Pod) { s.kill(t, p) }},
		{"deleted", func(p *corev1.Pod) { s.Kubectl(t, "-n", namespace, "delete", "pod", p.Name) }},
	} {
		first := s.second(t)
		s.until(t, "a node is taken away", func() error {
			if slices.ContainsFunc(s.World.Nodes(), func(n *corev1.Node) bool { return n.Spec.Unschedulable }) {
				return nil
			}
			return fmt.Errorf("none is")
		})
		left := time.Now()
		way.goes(first)
		next := s.leader(t, first.UID)
		t.Logf("%s was %s; %s leads after %.1f s", first.Name, way.name, next.Name, time.Since(left).Seconds())
	}
	s.waitUpgraded(t, version)
	s.atMost(t, 1, began)
	s.Kubectl(t, "-n", namespace, "scale", "deployment/gpuready-operator", "--replicas=1")
}

// second waits for a leader and another ready pod, and returns the leader.
func (s *suite) second(t *testing.T) *corev1.Pod {
	t.Helper()
	leads := s.leader(t, "")
	s.until(t, "an operator stands by", func() error {
		for _, ready := range s.World.Pods(namespace, "app=gpuready-operator") {
			if ready.UID != leads.UID && ready.DeletionTimestamp == nil && slices.ContainsFunc(ready.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				return nil
			}
		}
		return fmt.Errorf("none does")
	})
	return leads
}

// leader waits until a pod other than the given one leads, and returns it. The Lease names
// the leader.
func (s *suite) leader(t *testing.T, other types.UID) *corev1.Pod {
	t.Helper()
	leases, err := s.World.Client.CoordinationV1().Leases("kube-system").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=gpu-operator.gpuready.io"})
	require.NoError(t, err)
	defer leases.Stop()
	deadline, last := time.After(patience), ""
	for {
		select {
		case event := <-leases.ResultChan():
			lease, is := event.Object.(*coordinationv1.Lease)
			require.Truef(t, is, "the watch of the Lease has %s %v", event.Type, event.Object)
			if lease.Spec.HolderIdentity != nil {
				last = *lease.Spec.HolderIdentity
			}
		case <-deadline:
			s.logDiagnostics(t)
			t.Fatalf("waited %v for an operator that leads; the Lease is held by %q\n%s", patience, last, s.World.Describe())
		}
		name := strings.Split(last, "/") // <namespace>/<pod>/<UID>
		if len(name) != 3 || types.UID(name[2]) == other {
			continue
		}
		var pod *corev1.Pod
		s.World.Until(t, "there is the pod of "+last, func() error {
			if pod = s.World.Pod(namespace, name[1]); pod == nil || pod.UID != types.UID(name[2]) {
				return fmt.Errorf("there is none")
			}
			return nil
		})
		return pod
	}
}
