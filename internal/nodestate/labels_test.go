package nodestate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyGPUFeatureLabelsAreAllowed(t *testing.T) {
	refused := func(name, value string) error {
		_, err := Parse(edit(t, func(m map[string]any) {
			m["devicePlugin"].(map[string]any)["labels"] = map[string]string{name: value}
		}))
		return err
	}
	for name, value := range map[string]string{
		"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-1g.10gb.me.engines.copy": "1", "nvidia.com/mig.strategy": "mixed",
		"nvidia.com/gfd.timestamp": "1700000000", "nvidia.com/cuda.driver.rev": "", "nvidia.com/gpu.sharing-strategy": strings.Repeat("x", 63),
		"nvidia.com/gpu." + strings.Repeat("x", 59): "1",
	} {
		require.NoError(t, refused(name, value), name)
	}
	for _, name := range []string{
		"", "gpu.count", "kubernetes.io/hostname", "node-role.kubernetes.io/control-plane", "nvidia.com/", "nvidia.com/gpu", "nvidia.com/gpu.",
		"nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.serve", "nvidia.com/gpu.present", "nvidia.com/gpu.workload.config", "nvidia.com/mig.config", "nvidia.com/device-plugin.config", "nvidia.com/gpu.x/y", "nvidia.com/gpu.count\n",
		"evil/nvidia.com/gpu.count", "nvidia.com/gpu.ä", "nvidia.com/gpu." + strings.Repeat("x", 60), strings.Repeat("x", 5000),
	} {
		err := refused(name, "1")
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorContains(t, err, "devicePlugin.labels[")
		require.Less(t, len(err.Error()), 500)
	}
	for _, value := range []string{"a b", "-a", "a-", "a\n", "\x1b[2J", "ä", "a=b", strings.Repeat("x", 64)} {
		require.ErrorContains(t, refused("nvidia.com/gpu.machine", value), `devicePlugin.labels["nvidia.com/gpu.machine"]`, value)
	}
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many[fmt.Sprintf("nvidia.com/gpu.x%d", i)] = ""
	}
	_, err := Parse(edit(t, func(m map[string]any) { m["devicePlugin"].(map[string]any)["labels"] = many }))
	require.ErrorContains(t, err, "at most 512")
}

func TestIgnoredKeysAreBounded(t *testing.T) {
	parse := func(keys []string) error {
		_, err := Parse(edit(t, func(m map[string]any) { m["devicePlugin"].(map[string]any)["ignoredKeys"] = keys }))
		return err
	}
	require.NoError(t, parse([]string{"flags.migStrategi"}))
	require.ErrorContains(t, parse([]string{"a", "\x1b[2J"}), "devicePlugin.ignoredKeys[1]: has a control character")
	require.ErrorContains(t, parse([]string{""}), "devicePlugin.ignoredKeys[0]: missing")
	require.ErrorContains(t, parse(slices.Repeat([]string{"a"}, MaxIgnoredKeys+1)), "devicePlugin.ignoredKeys: 65 keys")
}
