package namespace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListsOfCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-2": {0, 1, 2}, "0-1,8": {0, 1, 8}} {
		got, err := parseCPUs(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for _, list := range []string{"", "x", "3-1", "1-", "-1", "1,,2"} {
		_, err := parseCPUs(list)
		require.Error(t, err, list)
	}
}

func TestDistanceToItselfIsTheShortest(t *testing.T) {
	require.Equal(t, "10 20\n", distances(0, 2))
	require.Equal(t, "20 10\n", distances(1, 2))
}

func TestOtherCommandsAreNotRunInside(t *testing.T) {
	for _, args := range [][]string{nil, {"up"}, {CommandMachine}, {CommandEnter, "1"}, {"-test.v"}} {
		_, ran := RunInside(args)
		require.False(t, ran, args)
	}
}

func TestANodeDoesNotShowTheMachinesDriver(t *testing.T) {
	const devices = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
	require.Equal(t, "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n", string(withoutDriver([]byte(devices))))
	require.Empty(t, withoutDriver(nil))
}

func TestHookNeedsAContainer(t *testing.T) {
	require.ErrorContains(t, hook(strings.NewReader("x")), "container's state")
	require.ErrorContains(t, hook(strings.NewReader(`{"bundle":"/none"}`)), "/none/config.json")
}

func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, list string) {
		if len(list) > 12 { // no list is that long that its range would fill the memory
			return
		}
		if cpus, err := parseCPUs(list); err == nil {
			require.NotEmpty(t, cpus)
		}
	})
}
