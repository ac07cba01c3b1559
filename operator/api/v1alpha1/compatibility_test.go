package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const (
	pagePath = "../../../docs/clusterpolicy.md"
	begin    = "<!-- fields of NVIDIADriver: made by go generate ./operator/api/v1alpha1 -->\n"
	end      = "<!-- end of NVIDIADriver -->\n"
)

func TestThePageListsTheFields(t *testing.T) {
	golden.RequireSection(t, pagePath, begin, end, table(load(t), recorded(t)))
}

// table tells what the operator does about each field. releases are those that are known to have
// a field.
func table(s *schematest.Schema, releases map[string]string) string {
	var b strings.Builder
	var own []string
	b.WriteString("\n| field | read in | what happens |\n|---|---|---|\n")
	for _, path := range s.Fields() {
		in := ""
		for _, suffix := range []string{"", "[]", ".*"} {
			in += releases[path+suffix]
		}
		if in == "" {
			own = append(own, "`"+path+"`")
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", path, in, strings.ReplaceAll(outcome(s, path), "|", `\|`))
	}
	fmt.Fprintf(&b, "\nOf gpuready's own, which NVIDIA's schema does not have: %s.\n\n", strings.Join(own, ", "))
	return b.String()
}

func outcome(s *schematest.Schema, path string) string {
	text := "followed"
	for _, f := range v1alpha1.IgnoredFields() {
		if path == f.Field || strings.HasPrefix(path, f.Field+".") {
			text = "no effect: " + f.Why
		}
		if part, below := strings.CutPrefix(f.Field, path+"."); below {
			text = "followed; `" + part + "` no effect: " + f.Why
		}
	}
	if path == "driverType" {
		text = "`gpu`, `vgpu`: followed by the image that is named; `vgpu-host-manager`: no effect, its nodes keep what they have"
	}
	at := s.Structural.Properties["spec"]
	for name := range strings.SplitSeq(path, ".") {
		at = at.Properties[name]
	}
	for _, rule := range at.XValidations {
		text += "; refused with \"" + rule.Message + "\""
	}
	return text
}

func TestIgnoredFieldsAreFieldsWithAReasonAndAnAction(t *testing.T) {
	fields := load(t).Fields()
	for _, f := range v1alpha1.IgnoredFields() {
		require.True(t, slices.ContainsFunc(fields, func(path string) bool {
			return path == f.Field || strings.HasPrefix(path, f.Field+".") || strings.HasPrefix(f.Field, path+".")
		}), "%s is no field", f.Field)
		require.Regexp(t, `: [a-z]`, f.Why, f.Field)
		require.Less(t, len(f.Field+": "+f.Why), 300, f.Field)
	}
}
