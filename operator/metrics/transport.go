package metrics

import (
	"net/http"
	"strings"
)

// Transport counts all writes that go through next. It is suitable for rest.Config's
// WrapTransport.
func (m *Metrics) Transport(next http.RoundTripper) http.RoundTripper {
	return transport{m, next}
}

type transport struct {
	*Metrics
	next http.RoundTripper
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	verb, resource, writes := classify(r)
	response, err := t.next.RoundTrip(r)
	if writes {
		t.writes.WithLabelValues(verb, resource, outcome(verb, response, err)).Inc()
	}
	return response, err
}

// classify returns a request's verb and resource, and reports whether it writes.
func classify(r *http.Request) (verb, resource string, writes bool) {
	resource, sub := parsePath(r.URL.Path)
	switch r.Method {
	case http.MethodPost:
		verb = "create"
		if sub == "eviction" {
			verb = "evict"
		}
	case http.MethodPut:
		verb = "update"
	case http.MethodDelete:
		verb = "delete"
	case http.MethodPatch:
		verb = "patch"
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch") {
			verb = "apply"
		}
	default:
		return "", "", false
	}
	return verb, resource, resource != ""
}

// parsePath parses /api/VERSION/… and /apis/GROUP/VERSION/…, with or without a namespace. It
// ignores the prefix of a proxy.
func parsePath(p string) (resource, sub string) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		skip := map[string]int{"api": 2, "apis": 3}[part]
		if skip == 0 || i+skip > len(parts) {
			continue
		}
		rest := parts[i+skip:]
		if len(rest) > 2 && rest[0] == "namespaces" {
			rest = rest[2:]
		}
		if len(rest) > 2 {
			sub = rest[2]
		}
		if len(rest) > 0 {
			return rest[0], sub
		}
	}
	return "", ""
}

func outcome(verb string, r *http.Response, err error) string {
	switch {
	case err == nil && verb == "evict" && r.StatusCode == http.StatusTooManyRequests:
		return refused // a PodDisruptionBudget
	case err != nil || r.StatusCode >= 500 || r.StatusCode == http.StatusTooManyRequests:
		return failed
	case r.StatusCode == http.StatusConflict:
		return conflict
	case r.StatusCode >= 400:
		return refused
	}
	return ok
}
