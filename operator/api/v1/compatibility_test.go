package v1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

func TestEveryFieldOfEveryReleaseIsKnown(t *testing.T) {
	s, h := load(t), loadHistory(t)
	require.GreaterOrEqual(t, len(h.fields), 599)
	for _, f := range h.fields {
		require.True(t, s.HasField(f.path), "NVIDIA's schema has spec.%s (%s to %s)", f.path, f.first, f.last)
	}
	require.False(t, s.HasField("driver.versions"))
	require.False(t, s.HasField("driver.env[].values"))
}

// refusals describes which values the schema refuses, beside those that are not in an enumeration.
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
