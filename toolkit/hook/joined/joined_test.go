package joined

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArgsAndHooksRoundTrip(t *testing.T) {
	links, cache, params := []string{"create-symlinks", "--link", "a::/b"}, []string{"update-ldcache", "--folder", "/c"}, []string{"disable-device-node-modification"}
	for _, c := range []struct{ hooks, want [][]string }{
		{[][]string{links, cache, params}, [][]string{links, cache, params}},
		{[][]string{nil, links, {}, cache}, [][]string{links, cache}},
		{[][]string{params, nil}, [][]string{params}},
	} {
		got, ok := Hooks(Args(c.hooks...))
		require.True(t, ok)
		require.Equal(t, c.want, got)
	}
	require.Equal(t, params, Args(params), "one alone is as the reference writes it")
	require.Nil(t, Args(nil, nil))
	require.Equal(t, []string{"all", "--", "create-symlinks", "--link", "a::/b", "--", "disable-device-node-modification"}, Args(links, params))
}

func TestHooksRefusesInvalidArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"--"}, {"all"}, {"all", "--"}, {"all", "noop"}, {"all", "noop", "--", "noop"}, {"all", "--", "noop", "--"}, {"all", "--", "--", "noop"}, {"all", "--", "all", "--"}} {
		_, ok := Hooks(args)
		require.False(t, ok, args)
	}
}
