package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestWalkthroughs does what docs/walkthroughs.md says on a cluster.
func TestWalkthroughs(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 2})
	s.play(t,
		scenario{"the first hour", func(t *testing.T, s *Suite) { s.Walkthrough(t, "The first hour") }},
		scenario{"a GPU breaks at night", func(t *testing.T, s *Suite) { s.Walkthrough(t, "A GPU breaks at night") }},
	)
}

func TestPagesAreComparedWithWhatIsPrinted(t *testing.T) {
	commands := parseWalkthrough("# Page\n\n## A\n\nText.\n\nOf [one](one.md) `command`,\nin two lines:\n\n    $ kubectl get x\n    NAME  AGE\n    …\n    x…  1s\n\n    end\n    $ rm y\n\nMore.\n\n    $ z\n\n## B\n\n    $ other\n", "A")
	require.Len(t, commands, 3)
	require.Equal(t, []string{"Of one command, in two lines:", "", "More."}, []string{commands[0].about, commands[1].about, commands[2].about})
	for text, matches := range map[string]bool{
		"NAME  AGE\nx1    1s\nend\n":               true,
		"NAME     AGE\n\na\nb\nxyz-12   1s\n\nend": true,
		"NAME  AGE\nx1    1s\n":                    false,
		"NAME  AGE\nx1    1s\nend\nmore\n":         false,
		"NAME  AGE\ny     1s\nend\n":               false,
		"NAME AGE\nx1    1s\nend\n":                false, // one column
	} {
		require.Equal(t, matches, commands[0].prints.MatchString(normalize(text)), text)
	}
	require.True(t, commands[1].prints.MatchString(normalize("")))
	require.False(t, commands[2].prints.MatchString(normalize("something")))
}
