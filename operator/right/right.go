// Package right says what the API server refused for want of a right, and what to do
// about it: in conditions, Events and the log.
package right

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
)

// Next is what to do where a right is missing.
const Next = "install its roles again: helm upgrade, kubectl apply -f operator.yaml, or the OLM bundle (docs/operator.md)"

// denied is how the API server says it of a request that it did not authorize; what
// admission refuses is Forbidden, too, and is put otherwise.
var denied = regexp.MustCompile(`User "[^"]*" cannot (\S+) resource "([^"]+)" in API group "([^"]*)" (?:in the namespace "([^"]+)"|at the cluster scope)`)

// Missing are the rights that the text of an error says are missing, each once, in the
// form "patch daemonsets.apps in namespace gpu-operands"; none: it is about something else.
func Missing(text string) (all []string) {
	for _, m := range denied.FindAllStringSubmatch(text, -1) {
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

// maxNamed are named at once: a condition is short.
const maxNamed = 3

// Message names missing rights and says what to do.
func Message(missing []string) string {
	some, more := missing[:min(len(missing), maxNamed)], ""
	if len(missing) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(missing)-maxNamed)
	}
	return fmt.Sprintf("the operator may not %s%s: %s", strings.Join(some, ", "), more, Next)
}

// Tell is an error's text, or what rights it says are missing.
func Tell(err error) string {
	if missing := Missing(err.Error()); len(missing) > 0 {
		return Message(missing)
	}
	return err.Error()
}

// Handler has log lines that tell of a refusal, whoever writes them, say what right is
// missing and what to do.
func Handler(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is {
			text += " " + err.Error()
		}
		return true
	})
	if missing := Missing(text); len(missing) > 0 {
		r = r.Clone()
		r.AddAttrs(slog.String("missing", strings.Join(missing, ", ")), slog.String("next", Next))
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
