package v1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const compatibilityPath = "../../../docs/compatibility.md"

func TestEveryFieldOfEveryReleaseIsKnown(t *testing.T) {
	s, h := load(t), loadHistory(t)
	require.GreaterOrEqual(t, len(h.fields), 599)
	for _, f := range h.fields {
		require.True(t, s.HasField(f.path), "NVIDIA's schema has spec.%s (%s to %s)", f.path, f.first, f.last)
	}
	require.False(t, s.HasField("driver.versions"))
	require.False(t, s.HasField("driver.env[].values"))
}

func TestCompatibilityPageListsTheFields(t *testing.T) {
	golden.RequireSection(t, compatibilityPath, begin, end, compatibility(load(t), loadHistory(t)))
}

// compatibility returns a table for each part of a policy.
func compatibility(s *schematest.Schema, h *history) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nReleases: %s.\n", strings.Join(h.releases, ", "))
	var own []string
	part := ""
	for _, path := range s.Fields() {
		releases := h.describe(path)
		if releases == "" {
			own = append(own, "`"+path+"`")
			continue
		}
		if name, _, _ := strings.Cut(path, "."); name != part {
			part = name
			fmt.Fprintf(&b, "\n### %s\n\n| field | releases | what happens |\n|---|---|---|\n", part)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", path, releases, strings.ReplaceAll(outcome(s, path), "|", `\|`))
	}
	fmt.Fprintf(&b, "\n### Fields of gpuready's own\n\nNVIDIA's schema does not have them: %s.\n\n", strings.Join(own, ", "))
	return b.String()
}

// outcome tells what the operator does about a field.
func outcome(s *schematest.Schema, path string) string {
	text := "followed"
	for _, f := range v1.IgnoredFields() {
		if path != f.Field && !strings.HasPrefix(path, f.Field+".") {
			continue
		}
		text = "accepted: " + f.Why
		if f.Without != "" {
			text = "followed; without `" + f.Without + "` accepted: " + f.Why
		}
	}
	for _, refused := range refusals(s, path) {
		text += "; refused " + refused
	}
	return text
}

// refusals describes which values the schema refuses.
func refusals(s *schematest.Schema, path string) (all []string) {
	at := s.Structural.Properties["spec"]
	for name := range strings.SplitSeq(path, ".") {
		at = at.Properties[name]
	}
	for _, rule := range at.XValidations {
		all = append(all, "with \""+rule.Message+"\"")
	}
	v := at.ValueValidation
	if v == nil || len(at.XValidations) > 0 {
		return all
	}
	var values []string
	for _, e := range v.Enum {
		if e.Object != "" {
			values = append(values, fmt.Sprintf("`%v`", e.Object))
		}
	}
	if len(values) > 0 {
		all = append(all, "unless one of "+strings.Join(values, ", "))
	}
	if text := limits(&at); text != "" {
		all = append(all, "unless "+text)
	}
	return all
}

func limits(s *schema.Structural) string {
	v := s.ValueValidation
	switch {
	case v.Minimum != nil && v.Maximum != nil:
		return fmt.Sprintf("from %.0f to %.0f", *v.Minimum, *v.Maximum)
	case v.Minimum != nil:
		return fmt.Sprintf("at least %.0f", *v.Minimum)
	case v.Maximum != nil:
		return fmt.Sprintf("at most %.0f", *v.Maximum)
	case v.Pattern != "":
		return "like `" + v.Pattern + "`"
	}
	return ""
}
