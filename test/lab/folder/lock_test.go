package folder

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNoMorePlacesAreTakenThanThereAre(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "place")
	first, err := TakePlace(t.Context(), prefix, 2)
	require.NoError(t, err)
	second, err := TakePlace(t.Context(), prefix, 2)
	require.NoError(t, err)
	defer second.Close()
	require.NotEqual(t, first.Name(), second.Name())

	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = TakePlace(short, prefix, 2)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, first.Close())
	third, err := TakePlace(t.Context(), prefix, 2)
	require.NoError(t, err)
	defer third.Close()
	require.Equal(t, first.Name(), third.Name())
}
