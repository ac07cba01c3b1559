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
// ignores what is before /api or /apis, as the address of an API server behind a proxy has it.
func parsePath(p string) (resource, sub string) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		skip := map[string]int{"api": 2, "apis": 3}[part]
		if skip == 0 || i+skip > len(parts) {
			continue
		}
		rest := parts[i+skip:]
		isSubresource := len(rest) == 3 && (rest[2] == "finalize" || rest[2] == "status") // of the Namespace
		if len(rest) > 2 && rest[0] == "namespaces" && !isSubresource {
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

// outcome returns the value of the metric's label outcome.
func outcome(verb string, response *http.Response, err error) string {
	switch {
	case err == nil && verb == "evict" && response.StatusCode == http.StatusTooManyRequests:
		return refused // by a PodDisruptionBudget; any other 429 limits the rate
	case err != nil || response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests:
		return failed
	case response.StatusCode == http.StatusConflict:
		return conflict
	case response.StatusCode >= 400:
		return refused
	}
	return ok
}
