package folder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeHolder is a holder that has the nodes n1 and n2.
type fakeHolder struct {
	asked   []string
	reached chan struct{} // closed when a reboot of "slow" has begun
}

func (h *fakeHolder) RebootNode(ctx context.Context, name string) error {
	h.asked = append(h.asked, "reboot "+name)
	switch name {
	case "slow":
		close(h.reached)
		<-ctx.Done()
		return fmt.Errorf("reboot %s: %w", name, ctx.Err())
	case "n3":
		return errors.New("there is no node n3; there are n1, n2")
	}
	return nil
}

func (h *fakeHolder) AddNode(_ context.Context, name string) (string, error) {
	h.asked = append(h.asked, "add "+name)
	if name == "" {
		name = "n3"
	}
	return name, nil
}

func (h *fakeHolder) RemoveNode(_ context.Context, name string) error {
	h.asked = append(h.asked, "remove "+name)
	return nil
}

func (h *fakeHolder) EndedNodes() []string { return []string{"n2"} }

// held returns the record of a cluster that h holds, and a function that ends the holder.
func held(t *testing.T, h Commands) (r Record, end func() error) {
	t.Helper()
	// Longer than the address of a socket may be.
	t.Setenv("GPUREADY_CLUSTERS", filepath.Join(t.TempDir(), strings.Repeat("long", 30)))
	require.NoError(t, os.MkdirAll(Base(), 0o700))
	f, err := Claim("a", nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Release()) })
	require.NoError(t, Record{Name: "a", Process: os.Getpid(), Dir: f.Path, Nodes: []NodeRecord{{Name: "n1"}, {Name: "n2"}}}.Write())
	r, err = FindRecord("a")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, h) }()
	require.Eventually(t, func() bool {
		conn, err := dialIn(ctx, f.Path)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, time.Millisecond)
	return r, func() error {
		cancel()
		return <-served
	}
}

func TestTheHolderTakesCommands(t *testing.T) {
	h := &fakeHolder{}
	r, end := held(t, h)
	ctx := t.Context()
	require.NoError(t, r.RebootNode(ctx, "n1", time.Minute))
	require.EqualError(t, r.RebootNode(ctx, "n3", time.Minute), "there is no node n3; there are n1, n2")
	added, err := r.AddNode(ctx, "", time.Minute)
	require.NoError(t, err)
	require.Equal(t, "n3", added)
	added, err = r.AddNode(ctx, "more", time.Minute)
	require.NoError(t, err)
	require.Equal(t, "more", added)
	require.NoError(t, r.RemoveNode(ctx, "more", time.Minute))
	require.Equal(t, []string{"reboot n1", "reboot n3", "add ", "add more", "remove more"}, h.asked)

	require.NoError(t, r.findEnded(ctx))
	require.Equal(t, []NodeRecord{{Name: "n1"}, {Name: "n2", Ended: true}}, r.Nodes)
	require.NoError(t, end())
	require.ErrorContains(t, r.RebootNode(ctx, "n1", time.Minute), "takes no commands")
	r.Process = 0
	require.ErrorContains(t, r.RebootNode(ctx, "n1", time.Minute), "still comes up")
}

func TestACommandEndsWithItsTimeoutOrWithTheHolder(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"timeout": time.Millisecond, "holder": time.Hour} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHolder{reached: make(chan struct{})}
			r, end := held(t, h)
			done := make(chan error, 1)
			go func() { done <- r.RebootNode(context.WithoutCancel(t.Context()), "slow", timeout) }()
			<-h.reached
			if name == "holder" {
				require.NoError(t, end())
			}
			require.ErrorContains(t, <-done, "reboot slow: context ")
			if name != "holder" {
				require.NoError(t, end())
			}
		})
	}
}

func TestACommandOutlivesItsClient(t *testing.T) {
	h := &fakeHolder{reached: make(chan struct{})}
	r, end := held(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.RebootNode(ctx, "slow", time.Hour) }()
	<-h.reached
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, end(), "it returns when the command has ended")
}
