package operator

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

var serviceVersion = "gpuready." + e2e.Version()

// TestOLM subscribes to the bundle. The Operator Lifecycle Manager must install the operator
// with exactly the rights that the bundle requests, and the operator must provide GPUs.
func TestOLM(t *testing.T) {
	if os.Getenv("GPUREADY_E2E_OLM") == "" {
		t.Skip("make e2e-operator-olm runs this")
	}
	s := up(t, cluster.Config{})
	before := s.marks(t)
	olm := s.StartOLM(t)
	s.Kubectl(t, "create", "namespace", namespace)
	s.ApplyText(t, `
apiVersion: operators.coreos.com/v1
kind: OperatorGroup
metadata: { name: gpuready, namespace: gpuready-system }
spec: { targetNamespaces: [gpuready-system] }
---
apiVersion: operators.coreos.com/v1alpha1
kind: CatalogSource
metadata: { name: gpuready, namespace: gpuready-system }
spec: { sourceType: grpc, address: "`+s.serveCatalog(t, olm)+`" }
---
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata: { name: gpuready, namespace: gpuready-system }
spec: { channel: stable, name: gpuready, source: gpuready, sourceNamespace: gpuready-system }
`)
	s.until(t, "the bundle is installed", func() error {
		phase, err := s.TryKubectl(t, "-n", namespace, "get", "csv", serviceVersion, "-o", "jsonpath={.status.phase}: {.status.message}")
		if err != nil {
			return fmt.Errorf("%w: %s", err, phase)
		}
		if !strings.HasPrefix(phase, "Succeeded:") {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	dir := t.TempDir()
	s.Shell(t, dir, "kubectl get csv -n "+namespace+" "+serviceVersion+" -ojsonpath={.metadata.annotations.alm-examples} | jq '.[0]' > clusterpolicy.json")
	s.Shell(t, dir, "jq '.spec.driver.simulated.enabled = true' clusterpolicy.json | kubectl apply -f -")
	s.proven(t)

	s.Kubectl(t, "delete", "clusterpolicies", "--all")
	s.Kubectl(t, "-n", namespace, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/managed-by=gpu-operator", "--timeout=2m")
	s.until(t, "nothing is on the node but what was said by hand", func() error {
		for mark := range s.marks(t) {
			if !before[mark] && mark != "n1 label nvidia.com/gpu.present=true" && !strings.Contains(mark, " condition ") {
				return fmt.Errorf("%s", mark)
			}
		}
		return nil
	})
	s.Kubectl(t, "-n", namespace, "delete", "subscription/gpuready", "csv/"+serviceVersion)
	s.until(t, "the operator has gone", func() error {
		if pods := s.World.Pods(namespace, "app=gpuready-operator"); len(pods) > 0 {
			return fmt.Errorf("%s is there", pods[0].Name)
		}
		return nil
	})
	s.cleansConditions(t, "n1")
}

// serveCatalog serves a catalog that contains the bundle, and returns its address.
func (s *suite) serveCatalog(t *testing.T, olm *e2e.OLM) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), olm.Programs.Path("opm"), "render", program("bundle"), "-o", "yaml").Output()
	require.NoError(t, err)
	channel := "schema: olm.package\nname: gpuready\ndefaultChannel: stable\n---\nschema: olm.channel\npackage: gpuready\nname: stable\nentries: [{ name: " + serviceVersion + " }]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "catalog.yaml"), append(out, "---\n"+channel...), 0o644))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	olm.Run(t, olm.Programs.Path("opm"), "serve", dir, "--port", strconv.Itoa(free.Addr().(*net.TCPAddr).Port), "--pprof-addr", "", "--cache-dir", t.TempDir(), "--cache-enforce-integrity=false", "--termination-log", filepath.Join(t.TempDir(), "log"))
	return free.Addr().String()
}
