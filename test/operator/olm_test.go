package operator

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const olm = "github.com/operator-framework/operator-lifecycle-manager"

var serviceVersion = "gpuready." + e2e.Version()

// TestOLM subscribes to the bundle. The Operator Lifecycle Manager must install the operator
// with exactly the rights that the bundle requests, and the operator must provide GPUs.
func TestOLM(t *testing.T) {
	if os.Getenv("GPUREADY_E2E_OLM") == "" {
		t.Skip("make e2e-operator-olm runs this")
	}
	s := up(t, cluster.Config{})
	before := s.marks(t)
	s.installOLM(t)
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
spec: { sourceType: grpc, address: "`+s.serveCatalog(t)+`" }
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

// installOLM runs the Operator Lifecycle Manager against the cluster, from outside.
func (s *suite) installOLM(t *testing.T) {
	t.Helper()
	module := downloaded(t, "../lab/binaries/olm", olm)
	s.Kubectl(t, "create", "namespace", "olm")
	s.Kubectl(t, "apply", "--server-side", "-f", filepath.Join(module.Dir, "deploy/chart/crds"))
	s.served(t, "crd/clusterserviceversions.operators.coreos.com", "crd/operatorgroups.operators.coreos.com", "crd/subscriptions.operators.coreos.com",
		"crd/catalogsources.operators.coreos.com", "crd/installplans.operators.coreos.com", "crd/olmconfigs.operators.coreos.com")
	s.ApplyText(t, "apiVersion: operators.coreos.com/v1\nkind: OLMConfig\nmetadata: { name: cluster }\n")
	s.background(t, "olm", "--namespace", "olm")
	s.background(t, "catalog", "--namespace", "olm")
}

// serveCatalog serves a catalog that contains the bundle, and returns its address.
func (s *suite) serveCatalog(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), lifecycle(t, "opm"), "render", program("bundle"), "-o", "yaml").Output()
	require.NoError(t, err)
	channel := "schema: olm.package\nname: gpuready\ndefaultChannel: stable\n---\nschema: olm.channel\npackage: gpuready\nname: stable\nentries: [{ name: " + serviceVersion + " }]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "catalog.yaml"), append(out, "---\n"+channel...), 0o644))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	s.background(t, "opm", "serve", dir, "--port", strconv.Itoa(free.Addr().(*net.TCPAddr).Port), "--pprof-addr", "", "--cache-dir", t.TempDir(), "--cache-enforce-integrity=false", "--termination-log", filepath.Join(t.TempDir(), "log"))
	return free.Addr().String()
}

// lifecycle returns the path of a program of the Operator Lifecycle Manager.
func lifecycle(t *testing.T, name string) string {
	t.Helper()
	built, err := binaries.EnsureOLM(t.Context(), binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	return built.Path(name)
}

// background runs such a program until the test ends.
func (s *suite) background(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), lifecycle(t, name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	var ended sync.WaitGroup
	ended.Go(func() { _ = cmd.Wait() })
	t.Cleanup(func() {
		ended.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("end of the log of %s:\n%s", name, text[max(0, len(text)-8192):])
		}
		_ = log.Close()
	})
}
