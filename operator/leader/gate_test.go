package leader

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// server is a transport with slow responses.
type server struct {
	takes    time.Duration
	requests []string
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, r.Method)
	select {
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case <-time.After(s.takes):
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("done"))}, nil
}

// gate returns a Gate, a function that renews the Lease, and a client behind the Gate.
func gate(s *server) (g *Gate, renew func(), client *http.Client) {
	l := newLock(Options{})
	l.uid = "uid"
	renew = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.renewedAt = time.Now()
	}
	g = &Gate{remaining: l.remaining}
	return g, renew, &http.Client{Transport: g.Wrap(s)}
}

func do(t *testing.T, c *http.Client, method string) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://api", strings.NewReader("{}"))
	require.NoError(t, err)
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "done", string(text))
	return answer.Body.Close()
}

func TestTheGateRefusesWritesUnlessTheLeaseWasRenewedJustNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		g, renew, c := gate(s)
		writes := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "UNHEARD-OF"}
		refused := func(why string) {
			t.Helper()
			s.requests = nil
			for _, m := range writes {
				require.ErrorIs(t, do(t, c, m), ErrNotLeading, "%s: %s", why, m)
			}
			require.Empty(t, s.requests, why)
			require.NoError(t, do(t, c, http.MethodGet), "reads pass")
		}
		refused("it has not been opened")
		renew()
		refused("the Lease alone is not enough")
		ctx, end := context.WithCancel(t.Context())
		g.open(ctx)
		for _, m := range writes {
			require.NoError(t, do(t, c, m))
		}
		time.Sleep(writePeriod) // as a process that is stopped
		refused("the Lease has not been renewed")
		renew()
		require.NoError(t, do(t, c, http.MethodPatch))
		end()
		refused("it leads no more")
		g.close()
		refused("closed")
	})
}

func TestWriteIsCancelledWhenTheLeaseIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * time.Second}
		g, renew, c := gate(s)
		g.open(t.Context())
		renewing, stop := context.WithCancel(t.Context())
		renew()
		go func() {
			for renewing.Err() == nil {
				select {
				case <-renewing.Done():
				case <-time.After(retryPeriod):
				}
				renew()
			}
		}()
		require.NoError(t, do(t, c, http.MethodPatch), "a slow webhook may take its time")
		stop()
		synctest.Wait()
		began := time.Now()
		require.ErrorIs(t, do(t, c, http.MethodPatch), ErrNotLeading)
		require.Equal(t, writePeriod, time.Since(began))

		renew()
		time.AfterFunc(time.Second, g.close)
		began = time.Now()
		require.ErrorIs(t, do(t, c, http.MethodPatch), ErrNotLeading)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// The monotonic clock stops while a virtual machine is suspended; the wall clock may be set
// back.
func TestBothClocksLimitWrites(t *testing.T) {
	l := newLock(Options{})
	l.uid = "uid"
	l.renewedAt = time.Now().Round(0).Add(-writePeriod) // the wall clock alone says so
	require.LessOrEqual(t, l.remaining(), time.Duration(0))
	l.renewedAt = time.Now()
	require.Positive(t, l.remaining())
}
