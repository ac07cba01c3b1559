package support

//go:generate go test -tags grpcnotrace -run ^TestTheTablesAreMadeOfTheRecords$ . -update

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/golden"
)

const docs = "../../../docs"

func TestTheTablesAreMadeOfTheRecords(t *testing.T) {
	m, err := ReadMatrix(docs + "/support/matrix.yaml")
	require.NoError(t, err)
	records, err := Read(docs + "/support")
	require.NoError(t, err)
	tables, err := Section(m, records, docs)
	require.NoError(t, err)
	golden.RequireSection(t, docs+"/support.md",
		"<!-- support matrix: made by go generate ./test/lab/support -->\n", "<!-- end of support matrix -->\n", tables)
}

func record() Record {
	return Record{
		Test: "TestX", Command: "make e2e", Date: "2026-11-27", Version: "v1.2.3", Commit: "0123abc", Seconds: 7,
		Environment: map[string]string{"kubelet": "v1.37.1", "runtime": "containerd://2.4.2"},
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	want := record()
	require.NoError(t, Write(dir, want))
	require.NoError(t, Write(dir, want), "it is replaced")
	require.FileExists(t, filepath.Join(dir, "x-v1.37.1-containerd-2.4.2.json"))
	all, err := Read(dir)
	require.NoError(t, err)
	want.Schema = Schema
	require.Equal(t, []Record{want}, all)
}

func TestAWrongRecordIsRefused(t *testing.T) {
	r := record()
	r.Environment["moon"] = "full"
	require.ErrorContains(t, Write(t.TempDir(), r), "environment.moon")
	r = record()
	r.Commit = "0123abc-dirty"
	require.ErrorContains(t, Write(t.TempDir(), r), `commit is "0123abc-dirty"`)
	for text, want := range map[string]string{
		`{"schema":"gpuready.io/support/v1","test":"T","command":"c","version":"v1","date":"2026-11-27","environment":{"os":"x"}}`:               `commit is ""`,
		`{"schema":"gpuready.io/support/v1","test":"T","command":"c","version":"v1","date":"2026-11-27","passed":true,"environment":{"os":"x"}}`: `unknown field "passed"`,
		`{"schema":"gpuready.io/support/v2"}`: "schema is",
		`{"schema":"gpuready.io/support/v1","test":"T","command":"c","version":"v1","date":"today","environment":{"os":"x"}}`: `date is "today"`,
		`{"schema":"gpuready.io/support/v1","test":"T","command":"c","version":"v1","date":"2026-11-27"}`:                     "environment is empty",
		`{"schema":"gpuready.io/support/v1","date":"2026-11-27"}`:                                                             "test, command and version are required",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(text), 0o644))
		_, err := Read(dir)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "a.json: ")
	}
}

// A row is tested only if a record or a measurement says so.
func TestARowClaimsOnlyWhatRan(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "h200.md"), []byte("Driver 580.1"), 0o644))
	row := func(r Row) string {
		page, err := Section(Matrix{Tables: []Table{{Title: "T", Rows: []Row{r}}}}, []Record{record()}, dir)
		require.NoError(t, err)
		return page
	}
	require.Contains(t, row(Row{Name: "1.37", Match: map[string]string{"kubelet": "v1.37."}, Documented: "install.md"}), "| 1.37 | **tested here** | `make e2e` (TestX, v1.2.3, 2026-11-27) | – |\n")
	require.Contains(t, row(Row{Name: "1.3", Match: map[string]string{"kubelet": "v1.3."}, Documented: "install.md#x"}), "| 1.3 | documented | [install](install.md#x) | – |\n")
	require.Contains(t, row(Row{Name: "both", Match: map[string]string{"kubelet": "v1.37.", "runtime": "cri-o"}, NotSupported: "no"}), "| both | not supported | no | – |\n")
	require.Contains(t, row(Row{Name: "no match", Documented: "install.md", Note: "a note"}), "| no match | documented | [install](install.md) | a note |\n")
	require.Contains(t, row(Row{Name: "H200", Measured: "h200.md", Contains: "580.1", Command: "make test-gpu", Documented: "x.md"}), "| **tested here** | `make test-gpu` ([measured](h200.md)) |")
	for _, r := range []Row{{Measured: "h200.md", Contains: "590", Documented: "x.md"}, {Measured: "h200.md", Documented: "x.md"}, {Measured: "b200.md", Contains: "1", Documented: "x.md"}} {
		_, err := Section(Matrix{Tables: []Table{{Rows: []Row{r}}}}, nil, dir)
		require.Error(t, err)
	}
}

func TestAWrongMatrixIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"tables: [{title: T, rows: [{name: a}]}]":                                        "T: a: exactly one of documented and notSupported",
		"tables: [{title: T, rows: [{name: a, tested: true}]}]":                          `unknown field "tested"`,
		"tables: [{title: T, rows: [{name: a, documented: x.md, match: {moon: full}}]}]": "T: a: match.moon",
	} {
		file := filepath.Join(t.TempDir(), "matrix.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		_, err := ReadMatrix(file)
		require.ErrorContains(t, err, want)
	}
}
