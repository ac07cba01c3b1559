package nvidia

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answerOver sends an answer of a size over a link, after one byte was asked, and returns
// how long that took.
func answerOver(t *testing.T, link Link, size int) time.Duration {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := listener{l, &line{Link: link}}.Accept()
		if err == nil {
			_, _ = c.Read(make([]byte, 1))
			_, err = c.Write(make([]byte, size))
			_ = c.Close()
		}
		served <- err
	}()
	began := time.Now()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte{1})
	require.NoError(t, err)
	var got bytes.Buffer
	_, err = io.Copy(&got, c)
	require.NoError(t, err)
	require.Equal(t, size, got.Len())
	require.NoError(t, <-served)
	return time.Since(began)
}

func TestALinkDelaysEachAnswerAndHasARate(t *testing.T) {
	require.GreaterOrEqual(t, answerOver(t, Link{RoundTrip: 20 * time.Millisecond}, 1), 60*time.Millisecond)
	require.GreaterOrEqual(t, answerOver(t, Link{Rate: 8e6}, 100_000), 100*time.Millisecond)
}

func TestPaddingHasTheSizeAndTheSameBytes(t *testing.T) {
	one, err := newPadding(t.TempDir(), "seed", 10_000)
	require.NoError(t, err)
	two, err := newPadding(t.TempDir(), "seed", 10_000)
	require.NoError(t, err)
	require.Equal(t, one.hash, two.hash)
	require.GreaterOrEqual(t, one.size, int64(10_000))
	content, err := one.Compressed()
	require.NoError(t, err)
	defer content.Close()
	all, err := io.ReadAll(content)
	require.NoError(t, err)
	require.Len(t, all, int(one.size))
}
