package contents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func example() Release {
	digest := "sha256:" + strings.Repeat("a", 64)
	return Release{
		Schema: Schema, Version: "v0.2.0", Revision: strings.Repeat("0", 40), Created: time.Unix(0, 0).UTC(), Registry: "localhost:5000/gpuready",
		Artifacts: []Artifact{{Name: "operator", Kind: Image, Tag: "v0.2.0", Digest: digest, Platforms: []Platform{{Platform: "linux/amd64", Digest: digest, SBOM: "operator-amd64.spdx.json"}}}},
		Files:     []Blob{{Name: "gpu.yaml", SHA256: strings.Repeat("b", 64)}},
		Materials: []Material{{URI: "git+https://github.com/gpuready/gpuready", Digest: map[string]string{"gitCommit": strings.Repeat("0", 40)}}},
	}
}

func TestReleaseIsReadAsWritten(t *testing.T) {
	data, err := example().Bytes()
	require.NoError(t, err)
	r, err := Parse(data)
	require.NoError(t, err)
	require.Equal(t, example(), r)
	require.Equal(t, "localhost:5000/gpuready/operator@sha256:"+strings.Repeat("a", 64), r.Reference(r.Artifacts[0]))
}

func TestWrongReleasesAreRefusedByField(t *testing.T) {
	for name, change := range map[string]func(*Release){
		"schema":                         func(r *Release) { r.Schema = "v2" },
		"version":                        func(r *Release) { r.Version = "1.0" },
		"revision":                       func(r *Release) { r.Revision = "dirty" },
		"registry":                       func(r *Release) { r.Registry = "https://x/y" },
		"artifacts[0].name":              func(r *Release) { r.Artifacts[0].Name = "../operator" },
		"artifacts[0].tag":               func(r *Release) { r.Artifacts[0].Tag = "a/b" },
		"artifacts: ":                    func(r *Release) { r.Artifacts = nil },
		"files[1].name":                  func(r *Release) { r.Files = append(r.Files, r.Files[0]) },
		"files[0].name":                  func(r *Release) { r.Files[0].Name = "../x" },
		"artifacts[0].digest":            func(r *Release) { r.Artifacts[0].Digest = "sha256:1" },
		"artifacts[1].name":              func(r *Release) { r.Artifacts = append(r.Artifacts, r.Artifacts[0]) },
		"artifacts[0].platforms[0].sbom": func(r *Release) { r.Artifacts[0].Platforms[0].SBOM = "a/b" },
	} {
		r := example()
		change(&r)
		_, err := r.Bytes()
		require.ErrorContains(t, err, name)
	}
	for _, path := range []string{"/..", "/a/./b", "/a/", "/-a", "/a..b"} {
		require.False(t, Registry.MatchString("registry.example.com"+path), path)
	}
	require.True(t, Registry.MatchString("registry.example.com:5000/a_b/c--d/e.f"))
	_, err := Parse([]byte(`{"schema": "gpuready.io/release/v1", "extra": 1}`))
	require.ErrorContains(t, err, "extra")
}

func TestRunIsReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadRun(dir)
	require.ErrorContains(t, err, "release build writes it")
	run := Run{ID: "1", Builder: "https://example.com/builder", Started: time.Unix(1, 0).UTC(), Finished: time.Unix(2, 0).UTC()}
	require.NoError(t, WriteRun(dir, run))
	read, err := ReadRun(dir)
	require.NoError(t, err)
	require.Equal(t, run, read)
	for field, wrong := range map[string]Run{
		"id": {Builder: run.Builder, Started: run.Started, Finished: run.Finished}, "builder": {ID: "1", Builder: "me", Started: run.Started, Finished: run.Finished},
		"finished": {ID: "1", Builder: run.Builder, Started: run.Finished, Finished: run.Started},
	} {
		require.ErrorContains(t, WriteRun(dir, wrong), field)
	}
}

func TestTheReleaseIsLastOfWhatWasSigned(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, Signatures), 0o755))
	none, err := ReadSigned(dir)
	require.NoError(t, err)
	require.Empty(t, none)
	digest := "sha256:" + strings.Repeat("a", 64)
	referrers := strings.ReplaceAll(digest, ":", "-")
	list := Artifact{Name: Repository, Kind: List, Tag: "v0.2.0", Digest: digest}
	of := func(name string) Artifact {
		return Artifact{Name: name, Kind: Referrers, Tag: referrers, Digest: digest}
	}
	require.NoError(t, WriteSigned(dir, []Artifact{list, of("toolkit"), of("operator"), of(Repository)}))
	read, err := ReadSigned(dir)
	require.NoError(t, err)
	require.Equal(t, []Artifact{of("operator"), of(Repository), of("toolkit"), list}, read)
	require.NoError(t, WriteSigned(dir, []Artifact{{Name: "../operator", Tag: referrers, Digest: digest}}))
	_, err = ReadSigned(dir)
	require.ErrorContains(t, err, SignedFile+": [0]")
}

func TestNothingFollowsTheEndOfADocument(t *testing.T) {
	var into struct{}
	require.NoError(t, decode([]byte("{}\n"), &into))
	for _, text := range []string{"{}{}", "{}]", "{}}", "{} x"} {
		require.Error(t, decode([]byte(text), &into), text)
	}
}
