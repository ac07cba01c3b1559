package release

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// utilImage has what the Operator Lifecycle Manager copies into the image of a bundle to unpack it.
const utilImage = "docker.io/library/olm-util:test"

// TestOLMInstallsTheRelease subscribes to the catalog of the release that was verified, as a cluster
// administrator does: the Operator Lifecycle Manager runs the catalog's image, unpacks the bundle's image,
// and installs the operator, which provides GPUs. All of it is pulled from the release's registry.
func TestOLMInstallsTheRelease(t *testing.T) {
	v := readVerified(t)
	programs, err := binaries.EnsureOLM(t.Context(), binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	files := map[string][]byte{}
	for path, from := range map[string]string{"/bin/cpb": programs.Path("cpb"), "/bin/cp": "/bin/busybox"} {
		files[path], err = os.ReadFile(from)
		require.NoError(t, err)
	}
	util := filepath.Join(t.TempDir(), "util.tar")
	require.NoError(t, binaries.WriteImage(util, binaries.Image{Name: utilImage, Files: files, User: "1001"}))
	s := &suite{e2e.Start(t, cluster.Config{Nodes: 1, Images: []string{util}}), v}
	s.connect(t)
	catalog := v.registry + "/catalog@" + v.artifact(t, "catalog").Digest
	olm := s.StartOLM(t, "--opmImage", catalog, "--util-image", utilImage)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	port := free.Addr().(*net.TCPAddr).Port

	s.Kubectl(t, "create", "namespace", namespace)
	// The Operator Lifecycle Manager runs outside of the cluster, and reaches the catalog's pod by a
	// forwarded port.
	s.ApplyText(t, fmt.Sprintf(`
apiVersion: operators.coreos.com/v1
kind: OperatorGroup
metadata: { name: gpuready, namespace: %[1]s }
spec: { targetNamespaces: [%[1]s] }
---
apiVersion: operators.coreos.com/v1alpha1
kind: CatalogSource
metadata: { name: gpuready, namespace: %[1]s }
spec: { sourceType: grpc, image: "%[2]s", address: "127.0.0.1:%[3]d", grpcPodConfig: { securityContextConfig: restricted } }
---
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata: { name: gpuready, namespace: %[1]s }
spec: { channel: stable, name: gpuready, source: gpuready, sourceNamespace: %[1]s }
`, namespace, catalog, port))
	s.World.Until(t, "the catalog is served", func() error {
		pods := s.World.Pods(namespace, "olm.catalogSource=gpuready")
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) == 0 || !pods[0].Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("%d pods, none is ready", len(pods))
		}
		return nil
	})
	pod := s.World.Pods(namespace, "olm.catalogSource=gpuready")[0].Name
	olm.Run(t, s.KubectlPath(), "-n", namespace, "port-forward", "pod/"+pod, strconv.Itoa(port)+":50051")
	csv := "gpuready." + v.Version
	s.World.Until(t, "the bundle is installed", func() error {
		phase, err := s.TryKubectl(t, "-n", namespace, "get", "csv", csv, "-o", "jsonpath={.status.phase}: {.status.message}")
		if err != nil {
			return fmt.Errorf("%w: %s", err, phase)
		}
		if !strings.HasPrefix(phase, "Succeeded:") {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})

	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	var examples []map[string]any
	require.NoError(t, json.Unmarshal([]byte(s.Kubectl(t, "-n", namespace, "get", "csv", csv, "-o", "jsonpath={.metadata.annotations.alm-examples}")), &examples))
	require.NoError(t, unstructured.SetNestedField(examples[0], true, "spec", "driver", "simulated", "enabled"))
	policy, err := json.Marshal(examples[0])
	require.NoError(t, err)
	s.ApplyText(t, string(policy))
	s.World.Until(t, "the node's GPUs are proven", func() error {
		if c := s.World.Condition("n1", "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	s.jobPasses(t)
	s.nothingElseRan(t, utilImage)
}
