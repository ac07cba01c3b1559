package operator

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestNVIDIADriver has the drivers of NVIDIADrivers: of a policy's driver that one takes over, of
// two side by side, of a node that moves, and of nodes that two of them select.
func TestNVIDIADriver(t *testing.T) {
	t.Parallel()
	s := up(t, cluster.Config{Nodes: 3, Images: e2e.NextImages(t)})
	s.play(t,
		scenario{"Install", plain((*suite).installForUpgrades)},
		scenario{"TakesOver", plain((*suite).nvidiaDriverTakesOver)},
		scenario{"TwoDrivers", plain((*suite).twoNVIDIADrivers)},
		scenario{"MovedNode", plain((*suite).moveBetweenNVIDIADrivers)},
		scenario{"Conflict", plain((*suite).nvidiaDriversOverlap)},
	)
}

// nvidiaDriver applies an NVIDIADriver with a version of the simulated driver. nodes is the field
// that selects its nodes.
func (s *suite) nvidiaDriver(t *testing.T, name, version, nodes string) {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(`
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: { name: %s }
spec:
  %s
  simulated: { enabled: true, profile: h100-sxm, version: %s }
`, name, nodes, version))
}

// driversOn returns the UIDs and versions of the nodes' driver pods.
func (s *suite) driversOn() (uids, versions map[string]string) {
	uids, versions = map[string]string{}, map[string]string{}
	for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
		if p.DeletionTimestamp == nil {
			uids[p.Spec.NodeName] = string(p.UID)
			versions[p.Spec.NodeName] = p.Spec.Containers[0].Image[strings.LastIndex(p.Spec.Containers[0].Image, ":")+1:]
		}
	}
	return uids, versions
}

// waitDrivers waits until the nodes n1, n2 and n3 have these versions and are not cordoned.
func (s *suite) waitDrivers(t *testing.T, want ...string) {
	t.Helper()
	s.until(t, fmt.Sprintf("the nodes run %v", want), func() error {
		_, versions := s.driversOn()
		for i, version := range want {
			node := fmt.Sprintf("n%d", i+1)
			if versions[node] != version || s.World.Node(node).Spec.Unschedulable {
				return fmt.Errorf("%s has %s, %s", node, versions[node], s.World.Node(node).Labels["nvidia.com/gpu-driver-upgrade-state"])
			}
		}
		return nil
	})
	s.proven(t)
}

// waitReason waits until the condition Degraded of an NVIDIADriver has a reason, and returns its message.
func (s *suite) waitReason(t *testing.T, name, reason string) (message string) {
	t.Helper()
	s.until(t, fmt.Sprintf("NVIDIADriver %s has the reason %s", name, reason), func() error {
		raw, err := s.World.Client.Discovery().RESTClient().Get().AbsPath("/apis/nvidia.com/v1alpha1/nvidiadrivers/" + name).DoRaw(t.Context())
		if err != nil {
			return err
		}
		var d clusterPolicy
		if err := json.Unmarshal(raw, &d); err != nil {
			return err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == "Degraded" && c.Reason == reason {
				message = c.Message
				return nil
			}
		}
		return fmt.Errorf("%+v", d.Status)
	})
	return message
}

// nvidiaDriverTakesOver has an NVIDIADriver take over the policy's driver. No node is upgraded.
func (s *suite) nvidiaDriverTakesOver(t *testing.T) {
	before, _ := s.driversOn()
	s.nvidiaDriver(t, "rest", oldDriver, "default: true")
	s.Kubectl(t, "patch", "clusterpolicy", policy, "--type=merge", "-p", `{"spec":{"driver":{"useNvidiaDriverCRD":true}}}`)
	s.waitReason(t, "rest", "NothingFailed")
	s.waitDrivers(t, oldDriver, oldDriver, oldDriver)
	after, _ := s.driversOn()
	assert.Equal(t, before, after, "the pods stay")
}

// twoNVIDIADrivers gives one node another driver.
func (s *suite) twoNVIDIADrivers(t *testing.T) {
	before, _ := s.driversOn()
	s.nvidiaDriver(t, "gold", newDriver, "nodeSelector: { tier: gold }")
	s.Kubectl(t, "label", "node", "n1", "tier=gold")
	s.waitDrivers(t, newDriver, oldDriver, oldDriver)
	after, _ := s.driversOn()
	assert.Equal(t, before["n2"], after["n2"])
	assert.NotEqual(t, before["n1"], after["n1"])
}

// moveBetweenNVIDIADrivers moves a node to another NVIDIADriver, and one back to the default.
func (s *suite) moveBetweenNVIDIADrivers(t *testing.T) {
	s.Kubectl(t, "label", "node", "n2", "tier=gold")
	s.waitDrivers(t, newDriver, newDriver, oldDriver)
	s.Kubectl(t, "label", "node", "n1", "tier-")
	s.waitDrivers(t, oldDriver, newDriver, oldDriver)
}

// nvidiaDriversOverlap has two NVIDIADrivers select a node, which keeps what it has.
func (s *suite) nvidiaDriversOverlap(t *testing.T) {
	before, _ := s.driversOn()
	s.nvidiaDriver(t, "other", oldDriver, "nodeSelector: { tier: gold }")
	for _, name := range []string{"gold", "other"} {
		assert.Contains(t, s.waitReason(t, name, "Conflict"), "NVIDIADrivers gold, other select node n2")
	}
	out, err := s.run(t, "kubectl-gpu", "explain", "n2")
	require.NoError(t, err, out)
	assert.Contains(t, strings.Join(strings.Fields(out), " "), "NVIDIADrivers gold, other select node n2")
	after, _ := s.driversOn()
	assert.Equal(t, before, after)
	s.Kubectl(t, "delete", "nvidiadriver", "other")
	s.waitReason(t, "gold", "NothingFailed")
	s.waitDrivers(t, oldDriver, newDriver, oldDriver)
}
