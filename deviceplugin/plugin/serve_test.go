package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// A restart is no reason to switch a node: while the label is not known, what was in force stays.
func TestARestartDoesNotSwitchWhileTheLabelIsUnknown(t *testing.T) {
	recorded := nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA, SwitchID: "1"}}
	for name, c := range map[string]struct {
		validator any // its state; text is written as it is
		want      string
	}{
		"it cannot be read":      {"{", nodestate.ServeDRA},
		"it is not read yet":     {&nodestate.ValidatorInfo{}, nodestate.ServeDRA},
		"the Node has none":      {&nodestate.ValidatorInfo{NodeLabels: map[string]string{}}, nodestate.ServePlugin},
		"the Node has one":       {&nodestate.ValidatorInfo{NodeLabels: map[string]string{}, Serve: nodestate.ServeDRA}, nodestate.ServeDRA},
		"nobody reads the label": {nil, nodestate.ServePlugin},
	} {
		p := &Plugin{cfg: Config{HostRoot: t.TempDir(), StateDir: "/state", Serve: nodestate.ServePlugin}, boot: testBoot}
		dir := p.stateDir(nodestate.Validator)
		switch v := c.validator.(type) {
		case string:
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, nodestate.FileName), []byte(v), 0o644))
		case *nodestate.ValidatorInfo:
			require.NoError(t, nodestate.Write(dir, nodestate.State{Component: nodestate.Validator, BootID: testBoot, Phase: nodestate.Ready, Validator: v}))
		}
		p.restoreServe(recorded, nil)
		require.Equal(t, c.want, p.state.serve.Current, name)
	}
}
