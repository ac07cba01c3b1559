package nvml

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAProcessThatDoesNotAnswerIsKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", "600")
	_, err := runReader(ctx, cmd)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotNil(t, cmd.ProcessState, "it was waited for")
}
