package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// NVIDIA's operator may run in the same cluster, and in the same namespace.
func TestNamesDoNotMeetThoseOfNVIDIAsOperator(t *testing.T) {
	data, err := os.ReadFile("../../deployments/names.yaml")
	require.NoError(t, err)
	var names struct {
		Namespaced, Operands, NVIDIAs []string
		Shared                        map[string]string
	}
	require.NoError(t, yaml.UnmarshalStrict(data, &names))
	everything := "migManager: {enabled: true}\noperands: {namespace: gpuready-operands}\npodMonitor: {enabled: true}\ndevicePlugin: {config: {create: true, name: gpuready-plugin, data: {a: b}}}"
	for _, kube := range []string{"v1.27.0", "v1.37.0"} {
		for _, o := range render(t, renderOptions{Kube: kube, Versions: []string{openshift}}, everything) {
			kind, name := o["kind"].(string), o["metadata"].(object)["name"].(string)
			if !slices.Contains(names.Namespaced, kind) {
				require.True(t, strings.HasPrefix(name, "gpuready-") || names.Shared[kind+" "+name] != "", "%s %s", kind, name)
				continue
			}
			require.False(t, slices.ContainsFunc(names.NVIDIAs, func(s string) bool { return strings.HasPrefix(name, s) }), "%s %s", kind, name)
		}
	}
}
