package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/observe"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// server is an API server with a node that offers a GPU, a ClusterPolicy, and a workload's
// pod that may be stuck.
type server struct {
	*httptest.Server

	mu       sync.Mutex
	policy   string        // "there", "terminating", "gone"
	ends     time.Duration // how long the policy is terminating
	deleted  chan struct{} // closed when the policy is deleted
	creates  int
	refuse   int         // how many requests about the policy fail from now on
	silent   int         // how many creations of the policy succeed without an answer from now on
	stuck    string      // the label of a pod that does not go
	forbids  string      // a path that may not be listed
	events   chan string // events of the Node, which is not there before; nil: it always is
	requests []string
}

func newServer(t *testing.T) *server {
	s := &server{policy: "there", deleted: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		var events chan string
		if r.URL.Path == "/api/v1/nodes" {
			events = s.events
		}
		for {
			select {
			case e := <-events:
				_, _ = fmt.Fprintf(w, `{"type":%q,"object":{"metadata":{"name":"n","uid":"n","resourceVersion":"2","labels":{"nvidia.com/gpu.product":"SIMULATED NVIDIA H100"}}}}`+"\n", e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	fail := func(code int, reason string) {
		w.WriteHeader(code)
		answer(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
	}
	list := func(items ...any) {
		answer(map[string]any{"metadata": map[string]string{"resourceVersion": "1"}, "items": append([]any{}, items...)})
	}
	meta := func(extra map[string]any) map[string]any {
		m := map[string]any{"name": "p", "uid": "1", "resourceVersion": "1"}
		maps.Copy(m, extra)
		return map[string]any{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": m}
	}
	about := strings.HasPrefix(r.URL.Path, policiesPath)
	switch {
	case r.URL.Path == s.forbids:
		fail(http.StatusForbidden, "Forbidden")
	case about && s.refuse > 0:
		s.refuse--
		fail(http.StatusServiceUnavailable, "ServiceUnavailable")
	case r.URL.Path == policiesPath && r.Method == http.MethodPost && s.policy != "gone":
		fail(http.StatusConflict, "AlreadyExists")
	case r.URL.Path == policiesPath && r.Method == http.MethodPost:
		s.policy = "there"
		s.creates++
		if s.silent > 0 {
			s.silent--
			panic(http.ErrAbortHandler)
		}
		answer(meta(nil))
	case r.URL.Path == policiesPath:
		list(meta(nil))
	case about && r.Method == http.MethodDelete:
		if s.policy == "there" {
			s.policy = "terminating"
			close(s.deleted)
			time.AfterFunc(s.ends, func() { s.mu.Lock(); s.policy = "gone"; s.mu.Unlock() })
		}
		answer(meta(nil))
	case about && s.policy == "gone":
		fail(http.StatusNotFound, "NotFound")
	case about && s.policy == "terminating":
		answer(meta(map[string]any{"deletionTimestamp": "2026-01-01T00:00:00Z"}))
	case about:
		answer(meta(nil))
	case r.URL.Path == "/api/v1/nodes" && s.events == nil:
		list(map[string]any{"metadata": map[string]any{"name": "n", "uid": "n", "resourceVersion": "1"}, "status": map[string]any{"allocatable": map[string]string{"nvidia.com/gpu": "1"}}})
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods") && s.stuck != "":
		list(map[string]any{"metadata": map[string]any{"name": "w", "namespace": "default", "uid": "w", "resourceVersion": "1", "labels": map[string]string{step.WorkloadLabel: s.stuck}}})
	default:
		list()
	}
}

func (s *server) created() (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy, s.creates
}

// session returns a Session that measures against the server.
func (s *server) session(t *testing.T) *Session {
	t.Helper()
	connect := func() *cluster.Client {
		c, err := cluster.ForConfig(&rest.Config{Host: s.URL}, 5*time.Second)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	clock := observe.SystemClock()
	return &Session{
		Client: connect(), Observer: observe.New(connect(), step.DefaultSelectors(), clock), Clock: clock, Log: slog.New(slog.DiscardHandler), Run: "run",
		Options: Options{
			Samples: 1, Timeout: time.Minute, RestoreWithin: 10 * time.Second, Resource: "nvidia.com/gpu", Selectors: step.DefaultSelectors(),
			Workload: Workload{Pod: NewWorkload("image", "nvidia.com/gpu"), Namespace: "default", Result: regexp.MustCompile("x")},
		},
	}
}

func reset() *Reset {
	return &Reset{SavePolicy: func([]byte) (string, error) { return "file", nil }}
}

// interrupt runs a measurement and interrupts it once the policy is deleted.
func (s *server) interrupt(t *testing.T, session *Session) (*report.Report, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-s.deleted:
		case <-ctx.Done():
		}
		cancel()
	}()
	rep := &report.Report{}
	return rep, Run(ctx, session, reset(), rep)
}

// The policy is recreated however long it terminates and whatever fails meanwhile.
func TestPolicyIsRestored(t *testing.T) {
	for name, given := range map[string]func(*server){
		"it is gone at once":                  func(*server) {},
		"it is terminating for a while":       func(s *server) { s.ends = 2 * time.Second },
		"the API server is away for a moment": func(s *server) { time.AfterFunc(0, func() { <-s.deleted; s.mu.Lock(); s.refuse = 2; s.mu.Unlock() }) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			given(s)
			rep, err := s.interrupt(t, s.session(t))
			require.ErrorIs(t, err, context.Canceled)
			require.Contains(t, rep.Ended, "prepare sample 1")
			policy, creates := s.created()
			require.Equal(t, "there", policy)
			require.Equal(t, 1, creates)
		})
	}
}

// The policy is recreated even if a workload does not terminate.
func TestPolicyIsRestoredBeforeWorkloadsAreGone(t *testing.T) {
	s := newServer(t)
	session := s.session(t)
	session.Options.RestoreWithin = time.Second
	go func() {
		<-s.deleted
		s.mu.Lock()
		s.stuck = "run-1"
		s.mu.Unlock()
	}()
	_, err := s.interrupt(t, session)
	require.Error(t, err)
	policy, _ := s.created()
	require.Equal(t, "there", policy)
}

func TestNothingIsDeletedWithoutTheRightToWatch(t *testing.T) {
	s := newServer(t)
	s.forbids = "/api/v1/events"
	err := Run(t.Context(), s.session(t), reset(), &report.Report{})
	require.ErrorContains(t, err, "list Events")
	policy, creates := s.created()
	require.Equal(t, "there", policy)
	require.Zero(t, creates)
}

func TestCleanupWaitsForTerminatingPolicy(t *testing.T) {
	s := newServer(t)
	s.forbids = "/apis/karpenter.sh/v1/nodeclaims" // as without Karpenter, for who has few rights
	session := s.session(t)
	s.ends = time.Second
	require.NoError(t, session.Client.Delete(t.Context(), policiesPath+"/p", nil, nil))
	policy := map[string]any{"kind": "ClusterPolicy", "metadata": map[string]any{"name": "p"}}
	said, err := Cleanup(t.Context(), session.Client, policy, true)
	require.NoError(t, err)
	require.Equal(t, []string{"create ClusterPolicy p"}, said)
	_, err = Cleanup(t.Context(), session.Client, policy, false)
	require.NoError(t, err)
	now, _ := s.created()
	require.Equal(t, "there", now)
	said, err = Cleanup(t.Context(), session.Client, policy, false)
	require.NoError(t, err)
	require.Empty(t, said, "it is there")
}

// passing is a test whose node comes when it is asked for, and goes when the sample is over.
type passing struct{ server *server }

func (passing) Prepare(context.Context, *Session) error { return nil }
func (p passing) Request(ctx context.Context, s *Session) error {
	p.server.events <- "ADDED"
	return s.waitFor(ctx, "wait for the node", func(all []step.Change) (bool, string) { return len(all) == 1, "it is not there" })
}
func (passing) Nodes(*Session) []string { return []string{"n"} }
func (p passing) Finish(ctx context.Context, s *Session, _ *report.Sample) error {
	p.server.events <- "DELETED"
	return s.waitFor(ctx, "wait until the node is removed", func(all []step.Change) (bool, string) { return len(all) == 0, "it is there" })
}
func (passing) Restore(context.Context, *Session) error { return nil }
func (passing) Reboots() bool                           { return false }

func TestAReportSaysWhatWasSimulatedOnANodeThatIsGone(t *testing.T) {
	s := newServer(t)
	s.events = make(chan string)
	session := s.session(t)
	session.Options.Timeout = time.Second // the sample is not complete
	rep := &report.Report{}
	require.NoError(t, Run(t.Context(), session, passing{s}, rep))
	require.Contains(t, rep.Notice, "SIMULATED")
	require.Equal(t, 1, rep.Cluster.Nodes)
}

func TestACreationWithoutAnAnswerHasSucceeded(t *testing.T) {
	s := newServer(t)
	s.policy, s.silent = "gone", 1
	session := s.session(t)
	policy := map[string]any{"kind": "ClusterPolicy", "metadata": map[string]any{"name": "p"}}
	require.NoError(t, session.create(t.Context(), policiesPath, policy))
	there, creates := s.created()
	require.Equal(t, "there", there)
	require.Equal(t, 1, creates)
	require.ErrorContains(t, session.create(t.Context(), policiesPath, policy), "conflict", "it was there before")
}
