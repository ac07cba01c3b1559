package built

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Get requests url of a program that was started, and returns the response's status and
// body. No event tells when the program opens its port: Get retries for a minute while
// the connection is refused.
func Get(t testing.TB, url string) (int, string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(url)
		if errors.Is(err, unix.ECONNREFUSED) && time.Now().Before(deadline) {
			continue
		}
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, errors.Join(err, response.Body.Close()))
		return response.StatusCode, string(body)
	}
}
