package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// A refusal is an error answered as a Status.
type refusal struct {
	code   int
	reason metav1.StatusReason
	text   string
}

func (r *refusal) Error() string { return r.text }

func notFound(what string) error {
	return &refusal{http.StatusNotFound, metav1.StatusReasonNotFound, what + " not found"}
}

func (s *Server) logRequest(r *http.Request, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, status))
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	decide, token := s.fault, s.token
	s.mu.Unlock()
	if decide != nil {
		if f := decide(r); f != nil {
			s.serveFault(w, r, *f)
			return
		}
	}
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		s.serveFault(w, r, Fault{Status: http.StatusUnauthorized, Message: "Unauthorized"})
		return
	}
	if r.URL.Query().Get("watch") != "" {
		s.logRequest(r, http.StatusOK)
		s.watch(w, r)
		return
	}
	object, err := s.handle(r)
	status := http.StatusOK
	if err != nil {
		status = http.StatusUnprocessableEntity
		refused := &refusal{status, metav1.StatusReasonInvalid, err.Error()}
		if is := (*refusal)(nil); errors.As(err, &is) {
			refused, status = is, is.code
		}
		object = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Code: int32(status), Reason: refused.reason, Message: refused.text}
	} else if r.Method == http.MethodPost {
		status = http.StatusCreated
	}
	encode(w, status, object)
	s.logRequest(r, status)
}

func (s *Server) serveFault(w http.ResponseWriter, r *http.Request, f Fault) {
	if f.Hang {
		s.logRequest(r, 0)
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the request is not noticed
		<-r.Context().Done()
		return
	}
	st := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(f.Status), Message: f.Message}
	switch f.Status {
	case http.StatusConflict:
		st.Reason = metav1.StatusReasonConflict
	case http.StatusTooManyRequests:
		st.Reason = metav1.StatusReasonTooManyRequests
	case http.StatusForbidden:
		st.Reason = metav1.StatusReasonForbidden
	case http.StatusUnauthorized:
		st.Reason = metav1.StatusReasonUnauthorized
	case http.StatusInternalServerError:
		st.Reason = metav1.StatusReasonInternalError
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		st.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(f.RetryAfter)}
	}
	encode(w, f.Status, st)
	s.logRequest(r, f.Status)
}

// handle executes a request and returns the object of its answer.
func (s *Server) handle(r *http.Request) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case r.URL.Path == "/api/v1/pods":
		return s.listPods(r)
	case parts[0] == "namespaces" && len(parts) == 3 && parts[2] == "events" && r.Method == http.MethodGet:
		return s.listEvents(r, parts[1])
	case parts[0] == "nodes" && len(parts) >= 2:
		return s.node(r, parts[1], strings.Join(parts[2:], "/"), body)
	case parts[0] == "namespaces" && len(parts) >= 3 && parts[2] == "events":
		return s.event(r, parts[1], strings.Join(parts[3:], "/"), body)
	case parts[0] == "namespaces" && len(parts) >= 3 && parts[2] == "pods":
		return s.pod(r, parts[1], strings.Join(parts[3:], "/"), body)
	}
	return nil, notFound(r.URL.Path)
}

func (s *Server) node(r *http.Request, name, sub string, body []byte) (any, error) {
	old, ok := s.nodes[name]
	if !ok {
		return nil, notFound("nodes " + name)
	}
	if r.Method == http.MethodGet {
		return old, nil
	}
	if r.Method != http.MethodPatch {
		return nil, &refusal{http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method}
	}
	next, err := applyPatch(r, old, body)
	if err != nil {
		return nil, err
	}
	if sub == "status" { // and nothing else of it
		status := next.Status
		next = old.DeepCopy()
		next.Status = status
	} else {
		next.Status = old.Status
	}
	if !reflect.DeepEqual(old, next) {
		s.store("MODIFIED", next)
	}
	return next, nil
}

func (s *Server) event(r *http.Request, namespace, name string, body []byte) (any, error) {
	if r.Method == http.MethodPost {
		e := &corev1.Event{}
		if err := json.Unmarshal(body, e); err != nil {
			return nil, err
		}
		key := namespace + "/" + e.Name
		if e.InvolvedObject.Namespace == "" && namespace != metav1.NamespaceDefault {
			return nil, errors.New("involvedObject.namespace does not match event.namespace")
		}
		if _, there := s.events[key]; there {
			return nil, &refusal{http.StatusConflict, metav1.StatusReasonAlreadyExists, key + " already exists"}
		}
		e.ResourceVersion = s.nextVersion()
		s.events[key] = e
		return e, nil
	}
	old, ok := s.events[namespace+"/"+name]
	if !ok {
		return nil, notFound("events " + name)
	}
	if r.Method != http.MethodPatch {
		return nil, &refusal{http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method}
	}
	next, err := applyPatch(r, old, body)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(old, next) {
		next.ResourceVersion = s.nextVersion()
		s.events[namespace+"/"+name] = next
	}
	return next, nil
}

func (s *Server) pod(r *http.Request, namespace, name string, body []byte) (any, error) {
	if r.Method == http.MethodPost {
		p := &corev1.Pod{}
		if err := json.Unmarshal(body, p); err != nil {
			return nil, err
		}
		if _, there := s.pods[namespace+"/"+p.Name]; there {
			return nil, &refusal{http.StatusConflict, metav1.StatusReasonAlreadyExists, "pods " + p.Name + " already exists"}
		}
		p.Namespace = namespace
		created := s.add(p)
		if s.onPod != nil {
			s.update(created, s.onPod)
		}
		return created, nil
	}
	old, ok := s.pods[namespace+"/"+name]
	if !ok {
		return nil, notFound("pods " + name)
	}
	switch r.Method {
	case http.MethodGet:
		return old, nil
	case http.MethodDelete:
		var o metav1.DeleteOptions
		if err := json.Unmarshal(body, &o); err != nil {
			return nil, err
		}
		if o.Preconditions != nil && o.Preconditions.UID != nil && *o.Preconditions.UID != old.UID {
			return nil, &refusal{http.StatusConflict, metav1.StatusReasonConflict, "the UID in the precondition does not match"}
		}
		if s.linger {
			now := metav1.Now()
			s.update(old, func(p *corev1.Pod) { p.DeletionTimestamp = &now })
			return s.pods[namespace+"/"+name], nil
		}
		s.remove(namespace + "/" + name)
		return old, nil
	}
	return nil, &refusal{http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method}
}

// watch streams the changes of the pods, or of the Nodes, that the field selector names.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	nodes := strings.HasSuffix(r.URL.Path, "/nodes")
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher)
	flush.Flush()
	for {
		s.mu.Lock()
		changed := s.changed
		var news []change
		for _, c := range s.history {
			if _, node := c.Object.(*corev1.Node); c.version > from && c.Object.GetName() == name && node == nodes {
				news = append(news, c)
			}
		}
		expired := from < s.since
		from = s.version
		s.mu.Unlock()
		if expired {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"}})
			return
		}
		for _, c := range news {
			if json.NewEncoder(w).Encode(c) != nil {
				return
			}
		}
		flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// applyPatch applies a patch of the request's content type.
func applyPatch[T any](r *http.Request, old *T, patch []byte) (*T, error) {
	data, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	switch kind := r.Header.Get("Content-Type"); kind {
	case "application/strategic-merge-patch+json":
		data, err = strategicpatch.StrategicMergePatch(data, patch, old)
	case "application/merge-patch+json":
		data, err = jsonpatch.MergePatch(data, patch)
	case "application/json-patch+json":
		data, err = jsonPatch(data, patch)
	default:
		err = &refusal{http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, kind}
	}
	if err != nil {
		return nil, err
	}
	next := new(T)
	return next, json.Unmarshal(data, next)
}

// jsonPatch applies a patch by RFC 6902, with the code of the API server.
func jsonPatch(document, change []byte) ([]byte, error) {
	patch, err := jsonpatch.DecodePatch(change)
	if err != nil {
		return nil, err
	}
	return patch.Apply(document)
}
