package injection

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestAMIGLayoutMattersOnlyToThoseThatUseIt(t *testing.T) {
	for _, c := range []struct {
		name, given, now string
		whole, base      bool
	}{
		{"the same", "b.1", "b.1", true, true},
		{"another layout", "b.1", "b.2", false, true},
		{"another GPU", "b.1", "c.2", false, false},
		{"a toolkit from before there were two parts, as a container has it", "1", "b.1", true, true},
		{"and a layout since", "1", "b.2", false, false},
		{"the toolkit is put back to that release", "b.1", "1", true, true},
		{"and the layout has changed", "b.1", "2", false, false},
		{"instances are seen by their own nodes alone", "1", "2", false, false},
		{"one's base is no other's whole", "b", "b.1", false, false},
		{"given nothing", Expected, "b.1", false, false},
		{"damaged", ".1", ".2", false, false},
	} {
		require.Equal(t, c.whole, Current(c.given, c.now, Whole), c.name)
		require.Equal(t, c.base, Current(c.given, c.now, Base), c.name)
	}
	s := nodestate.State{Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Working: true, Generation: "b.2"}}}
	require.NoError(t, compare(s, nil, "b.1", Base))
	require.ErrorIs(t, compare(s, nil, "b.1", Whole), ErrOutdated)
	require.ErrorIs(t, compare(s, nil, Expected, Base), ErrOutdated)
}

func TestGenerationsAreComparedByTheirParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, whole := rapid.SampledFrom([]string{"", "a", "b"}), rapid.SampledFrom([]string{"1", "2"})
		b, w, nowB, nowW := base.Draw(t, "base"), whole.Draw(t, "whole"), base.Draw(t, "base now"), whole.Draw(t, "whole now")
		given, now := Generation(b, w), Generation(nowB, nowW)
		require.Equal(t, w == nowW, Current(given, now, Whole))
		require.Equal(t, w == nowW || b != "" && b == nowB, Current(given, now, Base))
		require.Equal(t, Current(given, now, Base), Current(now, given, Base))
	})
}
