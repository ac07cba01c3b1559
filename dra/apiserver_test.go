package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServer is the part of an API server that the driver uses: one Node, ResourceClaims to get, and
// ResourceSlices to list, watch and write. Whatever else is requested is refused.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	slices  map[string]*resourceapi.ResourceSlice
	claims  map[string]*resourceapi.ResourceClaim // by namespace/name
	changed chan struct{}                         // closed at each change of a slice
	events  []metav1.WatchEvent
	refused []string
	down    bool
	unsure  bool // it does not list slices
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{slices: map[string]*resourceapi.ResourceSlice{}, claims: map[string]*resourceapi.ResourceClaim{}, changed: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// kubeconfig writes a file that names the server.
func (s *apiServer) kubeconfig(t *testing.T, dir string) string {
	path := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: s.URL}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
	}, path))
	require.NoError(t, os.Chmod(path, 0o600))
	return path
}

const (
	slicesPath = "/apis/resource.k8s.io/v1/resourceslices"
	claimsPath = "/apis/resource.k8s.io/v1/namespaces/"
)

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, slicesPath), "/")
	switch s.mu.Lock(); {
	case s.down, s.unsure && r.Method == http.MethodGet && r.URL.Path == slicesPath && r.URL.Query().Get("watch") == "":
		s.mu.Unlock()
		writeObject(w, http.StatusServiceUnavailable, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Message: "down"})
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes/node-1":
		s.mu.Unlock()
		writeObject(w, http.StatusOK, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid"}})
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, claimsPath):
		namespace, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, claimsPath), "/")
		c := s.claims[namespace+"/"+strings.TrimPrefix(rest, "resourceclaims/")]
		s.mu.Unlock()
		if c == nil {
			writeObject(w, http.StatusNotFound, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Message: "no such claim", Code: http.StatusNotFound})
			return
		}
		writeObject(w, http.StatusOK, c)
	case !strings.HasPrefix(r.URL.Path, slicesPath):
		s.refused = append(s.refused, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		writeObject(w, http.StatusForbidden, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Message: "forbidden", Code: http.StatusForbidden})
	case r.URL.Query().Get("watch") != "":
		s.mu.Unlock()
		s.watch(w, r)
	default:
		code, object := s.handleSlice(r, name)
		s.mu.Unlock()
		writeObject(w, code, object)
	}
}

// handleSlice serves a request for slices; s.mu is held.
func (s *apiServer) handleSlice(r *http.Request, name string) (int, any) {
	switch r.Method {
	case http.MethodGet:
		list := &resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
		for _, name := range slices.Sorted(maps.Keys(s.slices)) {
			list.Items = append(list.Items, *s.slices[name])
		}
		return http.StatusOK, list
	case http.MethodDelete:
		gone := s.slices[name]
		delete(s.slices, name)
		s.record("DELETED", gone)
		return http.StatusOK, &metav1.Status{Status: metav1.StatusSuccess}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest, &metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	slice, is := object.(*resourceapi.ResourceSlice)
	if err != nil || !is {
		return http.StatusBadRequest, &metav1.Status{Status: metav1.StatusFailure, Message: fmt.Sprint(err)}
	}
	slice.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
	event := "MODIFIED"
	if r.Method == http.MethodPost {
		event = "ADDED"
		if slice.Name == "" {
			slice.Name = slice.GenerateName + strconv.Itoa(s.version)
		}
		slice.UID = "uid"
	}
	s.slices[slice.Name] = slice
	s.record(event, slice)
	return http.StatusOK, slice
}

// record adds an event for the watchers; s.mu is held.
func (s *apiServer) record(event string, slice *resourceapi.ResourceSlice) {
	if slice == nil {
		return
	}
	s.version++
	slice.ResourceVersion = strconv.Itoa(s.version)
	data, _ := json.Marshal(slice)
	e := metav1.WatchEvent{Type: event}
	e.Object.Raw = data
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch sends the events after a version.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" { // as servers before 1.32
		writeObject(w, http.StatusUnprocessableEntity, &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Message: "sendInitialEvents is not served", Code: http.StatusUnprocessableEntity})
		return
	}
	next, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		s.mu.Lock()
		events, changed := s.events[min(next, len(s.events)):], s.changed
		next = max(next, len(s.events))
		s.mu.Unlock()
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(e)
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func writeObject(w http.ResponseWriter, code int, object any) {
	if status, is := object.(*metav1.Status); is {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

// devices returns the published devices by name, and a channel that is closed at the next change.
func (s *apiServer) devices() (map[string]resourceapi.Device, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]resourceapi.Device{}
	for _, slice := range s.slices {
		for _, d := range slice.Spec.Devices {
			all[d.Name] = d
		}
	}
	return all, s.changed
}
