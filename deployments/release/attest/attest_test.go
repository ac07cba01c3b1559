package attest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func example() (contents.Release, contents.Run) {
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	at := time.Unix(1_700_000_000, 0).UTC()
	return contents.Release{
		Version: "v0.2.0", Revision: strings.Repeat("0", 40), Registry: "registry.example.com/gpuready",
		Artifacts: []contents.Artifact{{Name: "operator", Digest: digest("a"), Platforms: []contents.Platform{{Platform: "linux/amd64", Digest: digest("b"), SBOM: "operator-amd64.spdx.json"}}}},
		Files:     []contents.Blob{{Name: "gpu.yaml", SHA256: strings.Repeat("c", 64)}},
		Materials: []contents.Material{
			{URI: "git+https://github.com/gpuready/gpuready", Digest: map[string]string{"gitCommit": strings.Repeat("0", 40)}},
			{Name: "libc6", URI: "pkg:deb/debian/libc6@2.36-9?arch=arm64", Digest: map[string]string{"sha256": strings.Repeat("d", 64)}},
		},
	}, contents.Run{ID: "https://example.com/runs/1", Builder: "https://example.com/builder", Started: at, Finished: at.Add(time.Minute)}
}

func TestProvenanceIsThatOfSLSA(t *testing.T) {
	r, run := example()
	statement, err := Describe(r, run, Subjects(r, r.Artifacts[0]), []Byproduct{{Name: "operator-amd64.spdx.json", MediaType: SBOMType, Digest: map[string]string{"sha256": strings.Repeat("e", 64)}}})
	require.NoError(t, err)
	var value any
	require.NoError(t, json.Unmarshal(statement, &value))
	indented, err := json.MarshalIndent(value, "", "  ")
	require.NoError(t, err)
	golden.Require(t, "testdata/provenance.json", append(indented, '\n'))

	s, err := ReadStatement(statement)
	require.NoError(t, err)
	require.True(t, s.Covers(r.Artifacts[0].Digest))
	require.True(t, s.Covers(r.Artifacts[0].Platforms[0].Digest))
	require.False(t, s.Covers("sha256:"+strings.Repeat("f", 64)))
	require.False(t, s.Covers(""))
	p, err := s.Provenance()
	require.NoError(t, err)
	require.Equal(t, r.Revision, p.Commit())
	require.Equal(t, r.Materials, p.BuildDefinition.ResolvedDependencies)
}

func TestWrongStatementsAreRefused(t *testing.T) {
	_, err := Sign(nil)
	require.ErrorContains(t, err, "subject")
	for text, want := range map[string]string{
		`{`:                                  "unexpected EOF",
		`{"_type":"x"}`:                      "_type",
		`{"_type":"` + StatementType + `"}x`: "text follows",
		`{"extra":1}`:                        "extra",
	} {
		_, err := ReadStatement([]byte(text))
		require.ErrorContains(t, err, want)
	}
	_, err = Statement{PredicateType: SignatureType}.Provenance()
	require.ErrorContains(t, err, ProvenanceType)
}

func TestBundlesAreRead(t *testing.T) {
	payload := base64.StdEncoding.EncodeToString([]byte("text"))
	b, err := ReadBundle(fmt.Appendf(nil, `{"mediaType":%q,"verificationMaterial":{"publicKey":{"hint":"h"}},"dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":%q}}`, BundleType, payload))
	require.NoError(t, err)
	require.Equal(t, Bundle{Statement: []byte("text"), KeyHint: "h"}, b)
	b, err = ReadBundle(fmt.Appendf(nil, `{"mediaType":%q,"messageSignature":{"messageDigest":{"digest":%q}}}`, BundleType, payload))
	require.NoError(t, err)
	require.Equal(t, Bundle{Digest: []byte("text")}, b)
	for _, wrong := range []string{`[]`, `{"mediaType":"x"}`, `{"mediaType":"` + BundleType + `"}`} {
		_, err := ReadBundle([]byte(wrong))
		require.Error(t, err, wrong)
	}
}

func TestReferrersAreFoundByTheirType(t *testing.T) {
	subject := v1.Descriptor{MediaType: "application/vnd.oci.image.index.v1+json", Size: 3, Digest: hash([]byte("x"))}
	data, err := NewReferrer(subject, SignatureType, []byte("{}")).RawManifest()
	require.NoError(t, err)
	golden.Require(t, "testdata/referrer.json", append(data, '\n'))
	data, err = NewSBOM(subject, "operator-amd64.spdx.json", []byte("{}")).RawManifest()
	require.NoError(t, err)
	golden.Require(t, "testdata/sbom.json", append(data, '\n'))
}

func TestCosignsErrorsAreOneLine(t *testing.T) {
	require.Equal(t, "no matching attestations: x", message("WARNING: Skipping tlog verification.\nError: no matching attestations: x\nerror during command execution: no\n"))
	require.Equal(t, "other", message("WARNING: x\n\nother\nmore\n"))
}

func FuzzReadBundle(f *testing.F) {
	f.Add([]byte(`{"mediaType":"` + BundleType + `","dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":"e30="}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ReadBundle(data)
		if err == nil && b.Statement == nil && b.Digest == nil {
			t.Fatal("a bundle of nothing")
		}
		if err == nil {
			_, _ = ReadStatement(b.Statement)
		}
	})
}

func TestNothingFollowsTheEndOfAStatement(t *testing.T) {
	var into struct{}
	require.NoError(t, decode([]byte("{}\n"), &into))
	for _, text := range []string{"{}{}", "{}]", "{}}", "{} x"} {
		require.Error(t, decode([]byte(text), &into), text)
	}
}
