package report

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/preflight"
)

const docs = "../../docs/"

// published returns the schema of the JSON.
func published(t *testing.T) *spec.Schema {
	t.Helper()
	text, err := os.ReadFile(docs + "report.schema.json")
	require.NoError(t, err)
	s := &spec.Schema{}
	require.NoError(t, json.Unmarshal(text, s))
	return s
}

func TestTheJSONMatchesItsSchema(t *testing.T) {
	s := published(t)
	check := func(data []byte) error {
		var file any
		require.NoError(t, json.Unmarshal(data, &file))
		return validate.NewSchemaValidator(s, nil, "", strfmt.Default).Validate(file).AsError()
	}
	for name, r := range reports() {
		var b bytes.Buffer
		require.NoError(t, r.Write(&b, "json", false))
		require.NoError(t, check(b.Bytes()), name)
		for from, to := range map[string]string{
			`"result": "`: `"result": "PERHAPS `, `"layer": "driver"`: `"layer": "drive"`, `"seconds": `: `"seconds": -`, `"node":`: `"host":`, `"layers": [`: `"more": 1, "layers": [`,
		} {
			require.Contains(t, b.String(), from)
			require.Error(t, check([]byte(strings.Replace(strings.ReplaceAll(b.String(), `"seconds": 0,`, `"seconds": 1,`), from, to, 1))), to)
		}
	}
}

// A report with a layer that is not in the schema would be refused.
func TestTheSchemaHasEveryLayer(t *testing.T) {
	text, err := os.ReadFile(docs + "report.schema.json")
	require.NoError(t, err)
	for _, l := range append(readiness.Layers(), readiness.Optional()...) {
		require.Contains(t, string(text), `"`+string(l)+`"`)
	}
}

// xmllint runs libxml2's validator, which is independent of ours.
func xmllint(t *testing.T, file string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("xmllint")
	require.NoError(t, err, "install libxml2-utils (.ci/packages.txt)")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--nonet", "--noout", "--schema", docs+"junit.xsd", file).CombinedOutput()
	return string(out), err
}

func TestTheJUnitMatchesItsSchema(t *testing.T) {
	for name, r := range reports() {
		var b bytes.Buffer
		require.NoError(t, r.Write(&b, "junit", false))
		file := filepath.Join(t.TempDir(), "gpu.xml")
		require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
		out, err := xmllint(t, file)
		require.NoError(t, err, "%s: %s", name, out)
	}
	for from, to := range map[string]string{
		`tests="`: `tests="-`, `hostname="`: `host="`, `<testcase `: `<case/><testcase `, `time="`: `time="soon `, `timestamp="2026`: `timestamp="26`,
	} {
		var b bytes.Buffer
		require.NoError(t, reports()["failed"].Write(&b, "junit", false))
		require.Contains(t, b.String(), from)
		file := filepath.Join(t.TempDir(), "wrong.xml")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(b.String(), from, to, 1)), 0o644))
		out, err := xmllint(t, file)
		require.Error(t, err, out)
		require.Contains(t, out, "fails to validate", to)
	}
}

func TestThePreflightsJSONMatchesItsSchema(t *testing.T) {
	text, err := os.ReadFile(docs + "preflight.schema.json")
	require.NoError(t, err)
	var generic map[string]any
	require.NoError(t, json.Unmarshal(text, &generic))
	text, err = json.Marshal(expand(generic, generic["definitions"].(map[string]any)))
	require.NoError(t, err)
	s := &spec.Schema{}
	require.NoError(t, json.Unmarshal(text, s))
	for _, r := range []preflight.Result{newResult(t, false, nil), newResult(t, false, sick), newResult(t, true, nil)} {
		var b bytes.Buffer
		require.NoError(t, WritePreflight(&b, r, "json", false))
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
