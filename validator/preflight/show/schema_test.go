package show

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/gpuready/gpuready/validator/preflight/result"
)

func TestTheJSONMatchesThePublishedSchema(t *testing.T) {
	text, err := os.ReadFile("../../../docs/preflight.schema.json")
	require.NoError(t, err)
	var generic map[string]any
	require.NoError(t, json.Unmarshal(text, &generic))
	text, err = json.Marshal(expand(generic, generic["definitions"].(map[string]any)))
	require.NoError(t, err)
	s := &spec.Schema{}
	require.NoError(t, json.Unmarshal(text, s))
	for _, r := range []result.Result{preflight(t, false, nil), preflight(t, false, sick), preflight(t, true, nil)} {
		var b bytes.Buffer
		require.NoError(t, Write(&b, r, "json", false))
		var file map[string]any
		require.NoError(t, json.Unmarshal(b.Bytes(), &file))
		valid := func() error {
			return validate.NewSchemaValidator(s, nil, "", strfmt.Default).Validate(file).AsError()
		}
		require.NoError(t, valid())
		file["gpus"].([]any)[0].(map[string]any)["verdict"] = "splendid"
		require.Error(t, valid(), "what the schema does not know is refused")
	}
}

// expand replaces references by their definitions, since the validator does not resolve
// them.
func expand(v any, definitions map[string]any) any {
	switch v := v.(type) {
	case map[string]any:
		if ref, is := v["$ref"].(string); is {
			return expand(definitions[strings.TrimPrefix(ref, "#/definitions/")], definitions)
		}
		out := map[string]any{}
		for key, value := range v {
			out[key] = expand(value, definitions)
		}
		return out
	case []any:
		for i := range v {
			v[i] = expand(v[i], definitions)
		}
	}
	return v
}
