package folder

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const events = `{"type":"ADDED","object":{"metadata":{"name":"n1"},"status":{"nodeInfo":{"bootID":"old"},"conditions":[{"type":"Ready","status":"True"}]}}}
{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"}}}
{"type":"MODIFIED","object":{"metadata":{"name":"n1"},"status":{"nodeInfo":{"bootID":"new"},"conditions":[{"type":"Ready","status":"False","message":"no network"}]}}}
{"type":"MODIFIED","object":{"metadata":{"name":"n1"},"status":{"nodeInfo":{"bootID":"new"},"conditions":[{"type":"Ready","status":"True"}]}}}
{"type":"DELETED","object":{"metadata":{"name":"n1"}}}
`

func TestNodesAreWatchedUntilSeeReturnsTrue(t *testing.T) {
	var seen []string
	enough, err := readNodes(strings.NewReader(events), func(n NodeObject) bool {
		ready, why := n.Ready()
		seen = append(seen, n.Status.NodeInfo.BootID+" "+why)
		return ready && n.Status.NodeInfo.BootID == "new"
	})
	require.NoError(t, err)
	require.True(t, enough)
	require.Equal(t, []string{"old ", "new no network", "new "}, seen)

	enough, err = readNodes(strings.NewReader(events[:50]), func(NodeObject) bool { return true })
	require.Error(t, err, "a watch that breaks is no answer")
	require.False(t, enough)
}
