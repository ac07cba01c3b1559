// Which permission was missing when the API server refused a request, and what to do about it: in
// conditions, Events and the log.

package status

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
)

// RightsRemedy tells what to do if a permission is missing.
const RightsRemedy = "install its roles again: helm upgrade, kubectl apply -f operator.yaml, or the OLM bundle (docs/operator.md)"

// deniedText matches the API server's text for a request that RBAC did not authorize. Refusals by
// admission are Forbidden, too, but have another text.
var deniedText = regexp.MustCompile(`User "[^"]*" cannot (\S+) resource "([^"]+)" in API group "([^"]*)" (?:in the namespace "([^"]+)"|at the cluster scope)`)

// MissingRights returns the distinct permissions that an error's text reports as missing, in the form
// "patch daemonsets.apps in namespace gpu-operands". It returns none for any other error.
func MissingRights(text string) (all []string) {
	for _, m := range deniedText.FindAllStringSubmatch(text, -1) {
		verb, resource, group, namespace := m[1], m[2], m[3], m[4]
		if group != "" {
			resource += "." + group
		}
		one := verb + " " + resource + " in the cluster"
		if namespace != "" {
			one = verb + " " + resource + " in namespace " + namespace
		}
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	slices.Sort(all)
	return all
}

// RightsMessage names the missing permissions and tells what to do.
func RightsMessage(missing []string) string {
	some, more := missing[:min(len(missing), maxNamed)], ""
	if len(missing) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(missing)-maxNamed)
	}
	return fmt.Sprintf("the operator may not %s%s: %s", strings.Join(some, ", "), more, RightsRemedy)
}

// ExplainError returns an error's text, or the missing permissions that it reports.
func ExplainError(err error) string {
	if missing := MissingRights(err.Error()); len(missing) > 0 {
		return RightsMessage(missing)
	}
	return err.Error()
}

// LogHandler adds the missing permission and what to do to log records that report a refusal,
// whoever writes them.
func LogHandler(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is {
			text += " " + err.Error()
		}
		return true
	})
	if missing := MissingRights(text); len(missing) > 0 {
		r = r.Clone()
		r.AddAttrs(slog.String("missing", strings.Join(missing, ", ")), slog.String("next", RightsRemedy))
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
