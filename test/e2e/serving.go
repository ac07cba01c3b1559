package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Names of the device plugin's objects.
const (
	pluginDaemonSet = "nvidia-device-plugin-daemonset"
	configMap       = "gpuready-device-plugin-config"
)

// ConfigurePlugin writes the device plugin's configuration file into a ConfigMap, as
// docs/device-plugin.md describes.
func (s *Suite) ConfigurePlugin(t *testing.T, text string) {
	t.Helper()
	s.WriteConfigMap(t, map[string]string{"config.yaml": text})
	s.Kubectl(t, "-n", Namespace, "patch", "daemonset", pluginDaemonSet, "-p", `{"spec":{"template":{"spec":{
		"containers":[{"name":"device-plugin","env":[{"name":"CONFIG_FILE","value":"/etc/gpuready/config.yaml"}],"volumeMounts":[{"name":"config","mountPath":"/etc/gpuready","readOnly":true}]}],
		"volumes":[{"name":"config","configMap":{"name":"`+configMap+`"}}]}}}}`)
	s.World.WaitDaemonSets(t, Namespace, pluginDaemonSet)
}

// WriteConfigMap replaces the files of the device plugin's ConfigMap.
func (s *Suite) WriteConfigMap(t *testing.T, files map[string]string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata:\n", configMap, Namespace)
	for name, text := range files {
		fmt.Fprintf(&b, "  %s: |\n    %s\n", name, strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    "))
	}
	s.ApplyText(t, b.String())
}

// WaitPublished waits until the ResourceSlices of a node have that many devices.
func (s *Suite) WaitPublished(t *testing.T, node string, devices int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ofNode := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node)
	found := -1
	reached := func() (bool, error) {
		list, err := s.World.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: ofNode.String()})
		if err != nil {
			return false, err
		}
		found = 0
		for _, slice := range list.Items {
			found += len(slice.Spec.Devices)
		}
		return found == devices, nil
	}
	slices := cache.NewListWatchFromClient(s.World.Client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll, ofNode)
	_, err := watchtools.UntilWithSync(ctx, slices, &resourceapi.ResourceSlice{},
		func(cache.Store) (bool, error) { return reached() }, func(watch.Event) (bool, error) { return reached() })
	require.NoErrorf(t, err, "%s publishes %d devices, not %d", node, found, devices)
}
