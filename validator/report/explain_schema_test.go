package report_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/gpuready/gpuready/internal/explain"
)

// asPublished validates the JSON by its schema.
func asPublished(t *testing.T, r explain.Report) {
	t.Helper()
	text, err := os.ReadFile("../../docs/explain.schema.json")
	require.NoError(t, err)
	s := &spec.Schema{}
	require.NoError(t, json.Unmarshal(text, s))
	var b bytes.Buffer
	require.NoError(t, r.JSON(&b))
	var file map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &file))
	valid := func() error {
		return validate.NewSchemaValidator(s, nil, "", strfmt.Default).Validate(file).AsError()
	}
	require.NoError(t, valid(), b.String())
	file["more"] = true
	require.Error(t, valid(), "what the schema does not know is refused")
}
