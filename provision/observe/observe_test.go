package observe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/observe"
	"github.com/gpuready/gpuready/provision/step"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// server is an API server with Nodes only.
type server struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	nodes   map[string]*corev1.Node
	watches map[chan string]bool
	away    bool
}

func newServer(t *testing.T) *server {
	s := &server{nodes: map[string]*corev1.Node{}, watches: map[chan string]bool{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.away {
		s.mu.Unlock()
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		defer s.mu.Unlock()
		items := []*corev1.Node{}
		if r.URL.Path == "/api/v1/nodes" {
			for _, n := range s.nodes {
				items = append(items, n)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
		return
	}
	lines := make(chan string, 16)
	if r.URL.Path == "/api/v1/nodes" {
		s.watches[lines] = true
	}
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return
			}
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// set creates or updates a Node, and notifies the watches.
func (s *server) set(name string, labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(s.version), Labels: labels}}
	s.nodes[name] = n
	s.notify("MODIFIED", n)
}

func (s *server) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify("DELETED", s.nodes[name])
	delete(s.nodes, name)
}

func (s *server) notify(kind string, n *corev1.Node) {
	text, _ := json.Marshal(map[string]any{"type": kind, "object": n})
	for lines := range s.watches {
		lines <- string(text)
	}
}

// stopServing ends all watches and rejects requests until startServing.
func (s *server) stopServing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for lines := range s.watches {
		close(lines)
	}
	s.watches = map[chan string]bool{}
	s.CloseClientConnections()
}

func (s *server) startServing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

// watch runs an Observer until the test ends.
func watch(t *testing.T, s *server) *observe.Observer {
	t.Helper()
	client, err := cluster.ForConfig(&rest.Config{Host: s.URL}, 5*time.Second)
	require.NoError(t, err)
	o := observe.New(client, step.DefaultSelectors(), observe.SystemClock())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		client.Close()
	})
	return o
}

// next returns the next change of a Node.
func next(t *testing.T, o *observe.Observer) step.Change {
	t.Helper()
	select {
	case c := <-o.Changes():
		return c
	case <-time.After(30 * time.Second):
		t.Fatal("no change came")
		return step.Change{}
	}
}

func TestChangesAreObserved(t *testing.T) {
	s := newServer(t)
	s.set("a", nil)
	o := watch(t, s)
	require.Equal(t, "a", next(t, o).Node.Name)
	<-o.Ready()
	require.True(t, o.IsSynced())
	s.waitFor(t, func() bool { return len(s.watches) == 1 })
	s.set("b", nil)
	require.Equal(t, "b", next(t, o).Node.Name)
	require.Len(t, o.Snapshot(), 2)
	s.remove("a")
	c := next(t, o)
	require.True(t, c.Gone)
	require.Zero(t, c.Late)
	require.Len(t, o.Snapshot(), 1)
	require.Empty(t, o.Gaps())
}

// waitFor waits for a condition of the server.
func (s *server) waitFor(t *testing.T, is func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return is()
	}, 30*time.Second, time.Millisecond)
}

func TestChangesDuringAnOutageAreLate(t *testing.T) {
	s := newServer(t)
	s.set("stays", nil)
	s.set("changes", nil)
	s.set("goes", nil)
	o := watch(t, s)
	for range 3 {
		next(t, o)
	}
	<-o.Ready()
	s.waitFor(t, func() bool { return len(s.watches) == 1 })
	s.stopServing()
	s.set("changes", map[string]string{"new": "true"})
	s.remove("goes")
	require.Eventually(t, func() bool { return !o.IsSynced() }, 30*time.Second, time.Millisecond)
	s.startServing()
	seen := map[string]step.Change{}
	for range 2 {
		c := next(t, o)
		seen[c.Node.Name] = c
	}
	require.Positive(t, seen["changes"].Late)
	require.False(t, seen["changes"].Gone)
	require.Positive(t, seen["goes"].Late)
	require.True(t, seen["goes"].Gone)
	require.Eventually(t, o.IsSynced, 30*time.Second, time.Millisecond)
	require.NotEmpty(t, o.Gaps())
}

func TestRefusedFirstListEndsTheRun(t *testing.T) {
	s := newServer(t)
	s.stopServing()
	client, err := cluster.ForConfig(&rest.Config{Host: s.URL}, 5*time.Second)
	require.NoError(t, err)
	defer client.Close()
	err = observe.New(client, step.DefaultSelectors(), observe.SystemClock()).Run(t.Context())
	require.ErrorContains(t, err, "list ")
}

// clock is a Clock that the test sets.
type clock struct {
	now  time.Duration
	wall time.Time
}

func (c *clock) Now() time.Duration { return c.now }
func (c *clock) Wall() time.Time    { return c.wall }

func TestJumpOfTheTimeOfDayIsDetected(t *testing.T) {
	c := &clock{wall: time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)}
	w := observe.NewJumpDetector(c)
	pass := func(d time.Duration) { c.now += d; c.wall = c.wall.Add(d) }
	pass(time.Minute)
	w.Check()
	require.Empty(t, w.Jumps())
	c.wall = c.wall.Add(-time.Hour)
	pass(time.Second)
	w.Check()
	w.Check()
	require.Equal(t, []observe.Jump{{At: time.Minute + time.Second, By: -time.Hour}}, w.Jumps())
}
