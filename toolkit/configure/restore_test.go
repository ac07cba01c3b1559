package configure

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/apply"
)

// A restore is not configured with the handler's name: a runtime without our handler is in
// its original state.
func TestOwnHandlersAreFoundWithoutTheirNames(t *testing.T) {
	const (
		theirs = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
		ours   = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.gpu]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	)
	n := &node{written: theirs}
	c := configurer(t, n, Wishes{})
	_, err := n.store.Apply([]apply.Item{{Path: configFile, File: &apply.File{Data: []byte(theirs + ours)}}})
	require.NoError(t, err)
	undo, err := n.store.Restore(apply.RestoreOptions{DryRun: true})
	require.NoError(t, err)
	own, err := c.ownHandlers([]string{"runc", "gpu", "nvidia"}, undo.Changes)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu"}, own)
	c.Wishes.Handler = handler
	own, err = c.ownHandlers([]string{"runc", "gpu", "nvidia"}, undo.Changes)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu", "nvidia"}, own)
}
