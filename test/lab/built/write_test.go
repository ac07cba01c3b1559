package built

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestAProgramThatWasWrittenRuns writes and runs programs while others are started. With
// os.WriteFile some of them would be "text file busy".
func TestAProgramThatWasWrittenRuns(t *testing.T) {
	var all errgroup.Group
	for i := range 8 {
		dir := t.TempDir()
		all.Go(func() error {
			for j := range 50 {
				path := filepath.Join(dir, fmt.Sprint(i, j))
				if err := WriteProgram(path, []byte("#!/bin/true\n"), 0o755); err != nil {
					return err
				}
				if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}
