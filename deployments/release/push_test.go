package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/publish"
	"github.com/gpuready/gpuready/internal/program"
)

func TestADryRunIsListed(t *testing.T) {
	items := []publish.Item{
		{Name: "operator", Tag: "v1.2.3", Digest: "sha256:0123456789abcdef", State: publish.Missing, Blobs: make([]publish.Blob, 9), Bytes: 40_000_000, Absent: 30_000_000},
		{Name: "charts/gpuready", Tag: "1.2.3", Digest: "sha256:fedcba9876543210", State: publish.Present, Blobs: make([]publish.Blob, 3), Bytes: 200_000},
	}
	var out bytes.Buffer
	require.NoError(t, listItems(&out, items, "table"))
	require.Equal(t, ""+
		"ARTIFACT          TAG      DIGEST                REGISTRY   BLOBS   SIZE      TO PUSH\n"+
		"operator          v1.2.3   sha256:0123456789ab   missing    9       40.0 MB   30.0 MB\n"+
		"charts/gpuready   1.2.3    sha256:fedcba987654   present    3       0.2 MB    0.0 MB\n"+
		"40.2 MB in total, 30.0 MB to push; blobs that several artifacts have are pushed once.\n", out.String())
	out.Reset()
	require.NoError(t, listItems(&out, items, "json"))
	require.Contains(t, out.String(), `"absentBytes": 30000000`)
}

func TestWrongUseNamesTheCorrection(t *testing.T) {
	for says, args := range map[string][]string{
		"as bin/release/v0.2.0":  {"push"},
		"say table or json":      {"push", "--dir=x", "-o", "xml"},
		"push takes no argument": {"push", "--dir=x", "now"},
		"such as v1.2.3":         {"build"},
		"such as registry.":      {"build", "--version=v1.2.3"},
	} {
		t.Setenv("VERSION", "")
		t.Setenv("REGISTRY", "")
		t.Setenv("RELEASE_DIR", "")
		var stdout, stderr bytes.Buffer
		code := program.Program{Name: "release", Help: help, Commands: commands}.Run(t.Context(), args, &stdout, &stderr)
		require.Equal(t, program.Usage, code, args)
		require.Contains(t, stderr.String(), says)
	}
}
