// Package kubetest provides an in-process API server with the parts that the validator
// uses: Nodes, Events and Pods, with resource versions, strategic merge and JSON patches
// as the real one applies them, watches, and preconditions. It can also fail: refuse
// requests, hang, leave a connection without answer, and refuse expired tokens.
package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Server is a running API server. Its methods may be called concurrently.
type Server struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	version int           // the resource version
	nodes   map[string]*corev1.Node
	events  map[string]*corev1.Event
	pods    map[string]*corev1.Pod
	history []change // of pods and nodes
	since   int      // the oldest version from which a watch may begin
	log     []string // "PATCH /api/v1/nodes/n1/status 200"
	fault   func(*http.Request) *Fault
	onPod   func(*corev1.Pod)
	linger  bool
	token   string

	addr string
	http *httptest.Server
}

type change struct {
	Type    string        `json:"type"`
	Object  metav1.Object `json:"object"`
	version int
}

// Fault replaces the answer to a request.
type Fault struct {
	Hang       bool // until the client gives up
	Status     int
	RetryAfter int    // seconds; with Status
	Message    string // with Status
}

// Start starts a server with one Node.
func Start(node string) *Server {
	s := &Server{
		changed: make(chan struct{}), nodes: map[string]*corev1.Node{}, events: map[string]*corev1.Event{}, pods: map[string]*corev1.Pod{},
	}
	s.AddNode(node)
	s.listen("127.0.0.1:0")
	return s
}

func (s *Server) listen(addr string) {
	ln, err := net.Listen("tcp", addr) //nolint:noctx // a test's server on this machine
	if err != nil {
		panic(err) // no port on the loopback interface: nothing can be tested
	}
	s.addr = ln.Addr().String()
	s.http = &httptest.Server{Listener: ln, Config: &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}}
	s.http.Start()
}

// Stop stops the server: connections are refused from then on.
func (s *Server) Stop() {
	_ = s.http.Listener.Close() // first, or a watch that starts now would never end
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.http.Close()
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s.http.CloseClientConnections() // including those accepted meanwhile
		select {
		case <-closed:
			return
		case <-tick.C:
		}
	}
}

// Restart starts a stopped server again on the same address, with its objects.
func (s *Server) Restart() { s.listen(s.addr) }

// Config returns the configuration of a client.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: "http://" + s.addr} }

// URL returns the server's URL.
func (s *Server) URL() string { return "http://" + s.addr }

// AddNode adds a Node.
func (s *Server) AddNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store("ADDED", &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
}

// RemoveNode removes a Node.
func (s *Server) RemoveNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name].DeepCopy()
	delete(s.nodes, name)
	n.ResourceVersion = s.nextVersion()
	s.history = append(s.history, change{"DELETED", n, s.version})
}

// store stores a Node and records the change.
func (s *Server) store(kind string, n *corev1.Node) {
	n.ResourceVersion = s.nextVersion()
	s.nodes[n.Name] = n
	s.history = append(s.history, change{kind, n, s.version})
}

// Forget compacts the history: watches from an earlier version are refused, and running ones
// end, as after a restart of an API server.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = nil
	s.nextVersion()
	s.since = s.version
}

// nextVersion increments the resource version and signals a change.
func (s *Server) nextVersion() string {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
	return strconv.Itoa(s.version)
}

// Fail sets a function that chooses the Fault of each request, nil for none.
func (s *Server) Fail(decide func(*http.Request) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = decide
}

// Token sets the only accepted token; "" accepts any.
func (s *Server) Token(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// OnPod sets a function that acts as scheduler and kubelet. It is called with each created
// pod, on the request's goroutine, and may change its status.
func (s *Server) OnPod(f func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPod = f
}

// Linger keeps deleted pods, with a deletion time, until Remove.
func (s *Server) Linger(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linger = on
}

// Update changes a pod, as its kubelet would.
func (s *Server) Update(key string, f func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pods[key]; ok {
		s.update(p, f)
	}
}

func (s *Server) update(p *corev1.Pod, f func(*corev1.Pod)) {
	next := p.DeepCopy()
	f(next)
	next.ResourceVersion = s.nextVersion()
	s.pods[next.Namespace+"/"+next.Name] = next
	s.history = append(s.history, change{"MODIFIED", next, s.version})
}

// AddPod adds a pod, as another client would.
func (s *Server) AddPod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(p)
}

func (s *Server) add(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	p.ResourceVersion = s.nextVersion()
	p.UID = types.UID(fmt.Sprintf("pod-%d", s.version))
	p.Status.Phase = corev1.PodPending
	s.pods[p.Namespace+"/"+p.Name] = p
	s.history = append(s.history, change{"ADDED", p, s.version})
	return p
}

// Remove removes a pod.
func (s *Server) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

func (s *Server) remove(key string) {
	p, ok := s.pods[key]
	if !ok {
		return
	}
	delete(s.pods, key)
	p = p.DeepCopy()
	p.ResourceVersion = s.nextVersion()
	s.history = append(s.history, change{"DELETED", p, s.version})
}

// Node returns a Node; change, when not nil, is applied to it first.
func (s *Server) Node(name string, change func(*corev1.Node)) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if change != nil {
		n = n.DeepCopy()
		change(n)
		s.store("MODIFIED", n)
	}
	return n.DeepCopy()
}

// Condition returns a condition of a Node, nil if it has none of that type.
func (s *Server) Condition(node string, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for _, c := range s.Node(node, nil).Status.Conditions {
		if c.Type == kind {
			return &c
		}
	}
	return nil
}

// Events returns all Events, the latest at the end.
func (s *Server) Events() []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []corev1.Event
	for _, e := range s.events {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b corev1.Event) int {
		va, _ := strconv.Atoi(a.ResourceVersion)
		vb, _ := strconv.Atoi(b.ResourceVersion)
		return va - vb
	})
	return out
}

// ExpireEvents removes all Events, as their time to live does.
func (s *Server) ExpireEvents() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.events)
}

// Pods returns the names, "namespace/name", of all pods.
func (s *Server) Pods() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.pods))
}

// Pod returns a copy of a pod, nil if there is none.
func (s *Server) Pod(key string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[key].DeepCopy()
}

// Requests returns the requests and the status of their answers:
// "PATCH /api/v1/nodes/n1/status 200".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Wait waits until cond holds. It calls cond at each change and each request.
func (s *Server) Wait(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; requests: %q", ctx.Err(), s.Requests())
		case <-changed:
		}
	}
}

func encode(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
