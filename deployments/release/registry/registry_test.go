package registry

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFailuresNameTheNextAction(t *testing.T) {
	_, err := Start(t.Context(), Config{Program: "/no/such/registry", Storage: t.TempDir(), Listen: "localhost:0"})
	require.ErrorContains(t, err, "make bin/tools/registry")

	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = Start(t.Context(), Config{Program: "/bin/true", Storage: t.TempDir(), Listen: l.Addr().String()})
	require.ErrorContains(t, err, "choose another port")

	_, err = Start(t.Context(), Config{Program: "/bin/false", Storage: t.TempDir(), Listen: "localhost:0"})
	require.ErrorContains(t, err, "ended at once")
}
