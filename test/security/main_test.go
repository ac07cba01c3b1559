// Package security attacks a real node: as the author of an image, as the author of
// a pod, as a neighbour on the network, and with the token of an agent. Each attack
// must leave the host, the other pods and the agents as they were. `make e2e-security`
// runs it; docs/security.md says which promise each attack is about.
package security

import (
	"os"
	"testing"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}
