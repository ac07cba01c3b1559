package release

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/mirror"
	"github.com/gpuready/gpuready/deployments/release/publish"
	"github.com/gpuready/gpuready/deployments/release/sign"
	"github.com/gpuready/gpuready/deployments/release/verify"
)

const version = "v0.2.0"

// published is a small release that is signed, in a registry of its own.
type published struct {
	contents.Release
	dir      string // its folder
	storage  string // of the registry
	registry string // host and path now
	key, pub string
}

// makeKey makes a pair of keys in a folder.
func makeKey(t *testing.T, dir string) (key, pub string) {
	t.Helper()
	cmd := exec.Command(tool(t, "cosign"), "generate-key-pair")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "COSIGN_PASSWORD=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return filepath.Join(dir, "cosign.key"), filepath.Join(dir, "cosign.pub")
}

func publishSmall(t *testing.T) *published {
	t.Helper()
	t.Setenv("COSIGN_PASSWORD", "")
	p := &published{dir: t.TempDir(), storage: t.TempDir()}
	p.key, p.pub = makeKey(t, t.TempDir())
	p.registry = serve(t, p.storage) + "/gpuready"
	p.Release = writeSmall(t, p.dir, p.registry, version)
	p.sign(t)
	return p
}

// sign signs and publishes the release, and returns the steps.
func (p *published) sign(t *testing.T) []sign.Step {
	t.Helper()
	steps, err := sign.Run(t.Context(), sign.Options{Dir: p.dir, Registry: attest.Registry{Prefix: p.registry}, Cosign: p.cosign(t, p.key)})
	require.NoError(t, err)
	return steps
}

func (p *published) cosign(t *testing.T, key string) attest.Cosign {
	return attest.Cosign{Program: tool(t, "cosign"), Key: key}
}

// copy returns the release in another registry, which a test may change.
func (p *published) copy(t *testing.T) *published {
	t.Helper()
	c := *p
	c.storage = t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(c.storage, "docker"), os.DirFS(filepath.Join(p.storage, "docker"))))
	c.registry = serve(t, c.storage) + "/gpuready"
	return &c
}

// verify verifies the release and returns the checks that failed, a line each.
func (p *published) verify(t *testing.T, change ...func(*verify.Options)) string {
	t.Helper()
	o := verify.Options{Registry: attest.Registry{Prefix: p.registry}, Version: version, Cosign: p.cosign(t, p.pub)}
	for _, f := range change {
		f(&o)
	}
	result, err := verify.Run(t.Context(), o)
	require.NoError(t, err)
	require.NotEmpty(t, result.Checks)
	var lines []string
	for _, c := range result.Failures() {
		require.NotEmpty(t, c.Expected, c)
		require.NotEmpty(t, c.Found, c)
		require.NotEmpty(t, c.Next, c)
		lines = append(lines, c.Subject+": "+c.Name+": expected "+c.Expected+"; found "+c.Found)
	}
	t.Logf("%d checks; refused: %s", len(result.Checks), strings.Join(lines, "\n"))
	return strings.Join(lines, "\n")
}

// through serves a registry under another address. The function may answer a request itself.
func through(t *testing.T, registry string, answer func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	host, _, _ := strings.Cut(registry, "/")
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // Out has the client's Host, for redirects
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", host, r.In.Host
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/gpuready"
}

// lie serves a registry that answers GET for a path with other bytes. If claimed is not "", they have
// the type of Docker's first schema and that digest, as the headers say.
func lie(t *testing.T, registry, path, claimed string, body []byte) string {
	t.Helper()
	return through(t, registry, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.Path != "/v2/gpuready/"+path {
			return false
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		if claimed != "" {
			w.Header().Set("Content-Type", string(types.DockerManifestSchema1Signed))
			w.Header().Set("Docker-Content-Digest", claimed)
		}
		if _, err := w.Write(body); err != nil {
			t.Log(err)
		}
		return true
	})
}

// damage changes a byte in the middle of a blob in the registry's storage.
func (p *published) damage(t *testing.T, digest string) {
	t.Helper()
	hex := strings.TrimPrefix(digest, "sha256:")
	path := filepath.Join(p.storage, "docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

// manifest returns the manifest of a reference.
func (p *published) manifest(t *testing.T, ref string) v1.Manifest {
	t.Helper()
	var m v1.Manifest
	require.NoError(t, json.Unmarshal(p.manifestBytes(t, ref), &m))
	return m
}

func (p *published) manifestBytes(t *testing.T, ref string) []byte {
	t.Helper()
	parsed, err := name.ParseReference(p.registry + "/" + ref)
	require.NoError(t, err)
	d, err := remote.Get(parsed)
	require.NoError(t, err)
	return d.Manifest
}

// referrers returns the referrers of a digest.
func (p *published) referrers(t *testing.T, repository, digest string) []v1.Descriptor {
	t.Helper()
	ref, err := name.NewDigest(p.registry + "/" + repository + "@" + digest)
	require.NoError(t, err)
	there, err := attest.Registry{Prefix: p.registry}.Referrers(t.Context(), ref)
	require.NoError(t, err)
	return there
}

// detach removes the referrers of a digest that match.
func (p *published) detach(t *testing.T, repository, digest string, match func(v1.Descriptor) bool) {
	t.Helper()
	var index v1.ImageIndex = empty.Index
	removed := 0
	for _, d := range p.referrers(t, repository, digest) {
		if match(d) {
			removed++
			continue
		}
		ref, err := name.NewDigest(p.registry + "/" + repository + "@" + d.Digest.String())
		require.NoError(t, err)
		img, err := remote.Image(ref)
		require.NoError(t, err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: d})
	}
	require.Positive(t, removed)
	require.NoError(t, remote.WriteIndex(tag(t, p.registry, repository, strings.ReplaceAll(digest, ":", "-")), index))
}

// bundleOf matches the bundles of a predicate type.
func bundleOf(predicateType string) func(v1.Descriptor) bool {
	return func(d v1.Descriptor) bool { return d.Annotations["dev.sigstore.bundle.predicateType"] == predicateType }
}

// bundle returns the digest of the blob with a bundle.
func (p *published) bundle(t *testing.T, repository, digest, predicateType string) string {
	t.Helper()
	all := p.referrers(t, repository, digest)
	i := slices.IndexFunc(all, bundleOf(predicateType))
	require.GreaterOrEqual(t, i, 0)
	return p.manifest(t, repository+"@"+all[i].Digest.String()).Layers[0].Digest.String()
}

func TestRelease(t *testing.T) {
	p := publishSmall(t)

	t.Run("WhatWasSignedIsVerified", func(t *testing.T) {
		require.Empty(t, p.verify(t))
		require.Empty(t, p.verify(t, func(o *verify.Options) {
			o.Builder, o.Revision, o.Files = "https://example.com/builder", revision, filepath.Join(p.dir, contents.Files)
		}))
	})
	t.Run("NothingIsSignedTwice", func(t *testing.T) {
		for _, s := range p.sign(t) {
			require.True(t, s.Kept, s)
		}
	})
	t.Run("ARunThatWasKilledGoesOn", func(t *testing.T) {
		c := p.copy(t)
		c.detach(t, "operator", p.Artifacts[0].Digest, bundleOf(attest.SignatureType))
		var again []string
		for _, s := range c.sign(t) {
			if !s.Kept {
				again = append(again, s.Action+" "+s.What)
			}
		}
		require.Equal(t, []string{"attach signature"}, again)
		require.Empty(t, c.verify(t))
	})

	image, chart := p.Artifacts[0], p.Artifacts[1]
	amd64 := p.manifest(t, "operator@"+image.Platforms[0].Digest)
	list := p.manifest(t, "release:"+version)
	for where, c := range map[string]struct{ digest, check string }{
		"AnIndex":         {image.Digest, "operator: blobs"},
		"AManifest":       {image.Platforms[1].Digest, "operator: blobs"},
		"AConfiguration":  {amd64.Config.Digest.String(), "operator: blobs"},
		"ALayer":          {amd64.Layers[0].Digest.String(), "operator: blobs"},
		"AChart":          {p.manifest(t, "charts/gpuready@"+chart.Digest).Layers[0].Digest.String(), "charts/gpuready: blobs"},
		"TheList":         {list.Layers[0].Digest.String(), "release: blobs"},
		"AFile":           {layerOf(t, list, "files/gpuready.yaml"), "release: blobs"},
		"TheSums":         {layerOf(t, list, "files/SHA256SUMS"), "release: blobs"},
		"ASignature":      {p.bundle(t, "operator", image.Digest, attest.SignatureType), "operator: signature"},
		"AProvenance":     {p.bundle(t, "operator", image.Platforms[0].Digest, attest.ProvenanceType), "operator linux/amd64: provenance"},
		"TheListsOwn":     {p.bundle(t, "release", p.digestOf(t, "release:"+version), attest.SignatureType), "release: signature"},
		"AnSBOM":          {p.sbom(t, image.Platforms[1].Digest), "operator linux/arm64: SBOM"},
		"AFilesSignature": {layerOf(t, list, "signatures/SHA256SUMS.signature.sigstore.json"), "release: blobs"},
	} {
		t.Run("AChangedByteIn"+where, func(t *testing.T) {
			t.Parallel()
			copied := p.copy(t)
			copied.damage(t, c.digest)
			require.Contains(t, copied.verify(t), c.check)
		})
	}

	t.Run("WhatWasVerifiedIsSaved", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		var resolved atomic.Int32 // a registry may answer otherwise the second time
		c.registry = through(t, c.registry, func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/gpuready/release/manifests/"+version {
				resolved.Add(1)
			}
			return false
		})
		dir := filepath.Join(t.TempDir(), "saved")
		require.Empty(t, c.verify(t, func(o *verify.Options) { o.Save = dir }))
		require.EqualValues(t, 1, resolved.Load())
		saved, err := contents.Read(dir)
		require.NoError(t, err)
		require.Equal(t, p.Release, saved)
		_, err = verify.Run(t.Context(), verify.Options{Save: dir})
		require.ErrorContains(t, err, dir+" is not empty")
	})
	t.Run("WhatIsRefusedIsNotSaved", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "saved")
		refused := p.verify(t, func(o *verify.Options) { o.Save, o.Revision = dir, strings.Repeat("f", 40) })
		require.Contains(t, refused, "release.json: list: expected commit "+strings.Repeat("f", 40)+"; found commit "+revision)
		require.NoDirExists(t, dir)
	})
	t.Run("AnotherKey", func(t *testing.T) {
		t.Parallel()
		_, other := makeKey(t, t.TempDir())
		require.Contains(t, p.verify(t, func(o *verify.Options) { o.Cosign.Key = other }), "found one that is damaged, or not by that signer")
	})
	t.Run("AKeyThatIsNotThereIsNoRefusal", func(t *testing.T) {
		t.Parallel()
		cosign := p.cosign(t, filepath.Join(t.TempDir(), "cosign.pub"))
		_, err := verify.Run(t.Context(), verify.Options{Registry: attest.Registry{Prefix: p.registry}, Version: version, Cosign: cosign})
		require.ErrorContains(t, err, "name the file of a key with --key")
	})
	t.Run("AMissingSignature", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.detach(t, "operator", image.Platforms[0].Digest, bundleOf(attest.SignatureType))
		require.Regexp(t, `^operator linux/amd64: signature: expected a signature of `+image.Platforms[0].Digest+` by the key .*; found none$`, c.verify(t))
	})
	t.Run("AMissingSBOM", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.detach(t, "operator", image.Platforms[0].Digest, func(d v1.Descriptor) bool { return d.ArtifactType == attest.SBOMType })
		require.Regexp(t, `^operator linux/amd64: SBOM: .*; found no SBOM$`, c.verify(t))
	})
	t.Run("ATagThatMoved", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		other, _ := smallImage(t, "other", version, "amd64")
		require.NoError(t, remote.Write(tag(t, c.registry, "operator", version), other))
		digest, err := other.Digest()
		require.NoError(t, err)
		require.Contains(t, c.verify(t), "found that it was moved to "+digest.String())
	})
	// Registries that answer otherwise than what they store.
	t.Run("ATagThatMovedForThoseWhoPull", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		other := c.manifestBytes(t, "operator@"+image.Platforms[0].Digest)
		c.registry = lie(t, c.registry, "operator/manifests/"+version, "", other)
		require.Contains(t, c.verify(t), "operator: tag: ")
	})
	t.Run("AnotherManifestOfAnOldType", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		other := c.manifestBytes(t, "operator@"+image.Platforms[0].Digest)
		layer := c.manifest(t, "operator@"+image.Platforms[0].Digest)
		for _, d := range append(layer.Layers, layer.Config) { // the repository has all that it names
			blob, err := remote.Layer(tag(t, c.registry, "operator", version).Context().Digest(d.Digest.String()))
			require.NoError(t, err)
			require.NoError(t, remote.WriteLayer(tag(t, c.registry, "charts/gpuready", "x").Context(), blob))
		}
		c.registry = lie(t, c.registry, "charts/gpuready/manifests/"+chart.Digest, chart.Digest, other)
		require.Contains(t, c.verify(t), "charts/gpuready: blobs: expected manifest "+chart.Digest+" unchanged; found other bytes")
	})
	t.Run("AnOlderReleaseUnderThisTag", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.dir = t.TempDir()
		c.Release = writeSmall(t, c.dir, c.registry, "v0.1.9")
		c.sign(t)
		moved, err := remote.Get(tag(t, c.registry, "release", "v0.1.9"))
		require.NoError(t, err)
		require.NoError(t, remote.Tag(tag(t, c.registry, "release", version), moved))
		require.Contains(t, c.verify(t), "expected version v0.2.0; found version v0.1.9")
	})
	t.Run("AnSBOMOfAnotherImage", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t) // whoever can push replaces it
		c.detach(t, "operator", image.Platforms[0].Digest, func(d v1.Descriptor) bool { return d.ArtifactType == attest.SBOMType })
		c.attachSBOM(t, image.Platforms[0].Digest, "operator-arm64.spdx.json")
		require.Contains(t, c.verify(t), "operator linux/amd64: SBOM: expected a referrer of "+image.Platforms[0].Digest)
	})
	t.Run("ASignedSBOMOfAnotherImage", func(t *testing.T) {
		t.Parallel()
		c := p.remake(t, func(dir string, _ *contents.Release) { // the publisher mixes them up
			one, two := filepath.Join(dir, "sbom/operator-amd64.spdx.json"), filepath.Join(dir, "sbom/operator-arm64.spdx.json")
			require.NoError(t, os.Rename(one, one+".old"))
			require.NoError(t, os.Rename(two, one))
			require.NoError(t, os.Rename(one+".old", two))
		})
		refused := c.verify(t)
		require.Contains(t, refused, "operator linux/amd64: SBOM: expected what the image contains; found the image's own copy, /usr/share/sbom/operator.spdx.json, is another document; "+
			"file ./usr/share/doc/operator/HELP is listed with")
		require.Contains(t, refused, "operator linux/arm64: SBOM")
	})
	t.Run("AProvenanceOfAnotherCommit", func(t *testing.T) {
		t.Parallel()
		other := strings.Repeat("f", 40)
		require.Contains(t, p.verify(t, func(o *verify.Options) { o.Revision = other }), "operator: provenance: expected commit "+other+"; found commit "+revision)

		c := p.copy(t) // signed by the right key, of another build
		c.detach(t, "operator", image.Digest, bundleOf(attest.ProvenanceType))
		c.attachProvenance(t, image, func(r *contents.Release) { r.Materials[0].Digest = map[string]string{"gitCommit": other} })
		require.Regexp(t, `^operator: provenance: expected commit `+revision+`; found commit `+other+`$`, c.verify(t))
	})
	t.Run("AnotherBuilder", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, p.verify(t, func(o *verify.Options) { o.Builder = "https://example.com/other" }), "expected builder https://example.com/other; found builder https://example.com/builder")
	})
	t.Run("ADownloadThatDiffers", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "gpuready.yaml"), []byte("kind: Other\n"), 0o644))
		require.Contains(t, p.verify(t, func(o *verify.Options) { o.Files = dir }), "gpuready.yaml: blobs: expected SHA-256 "+p.Files[0].SHA256)
	})
	t.Run("APublishedReleaseDoesNotChange", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.dir = t.TempDir()
		writeSmall(t, c.dir, c.registry, version)
		_, err := sign.Run(t.Context(), sign.Options{Dir: c.dir, Cosign: p.cosign(t, p.key)})
		require.ErrorContains(t, err, "a published release does not change")
	})
	t.Run("AnotherKeyReplacesNoSignature", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.dir = t.TempDir()
		require.NoError(t, os.CopyFS(c.dir, os.DirFS(p.dir)))
		other, _ := makeKey(t, t.TempDir())
		options := sign.Options{Dir: c.dir, Registry: attest.Registry{Prefix: c.registry}, Cosign: p.cosign(t, other)}
		_, err := sign.Run(t.Context(), options)
		require.ErrorContains(t, err, "use the key and the folder with which it was published")
		require.Len(t, c.referrers(t, "operator", image.Digest), 2)
		for _, step := range c.sign(t) { // with the key of before
			require.True(t, step.Kept, step)
		}
	})
	t.Run("WhatWasNotPushedIsNotSigned", func(t *testing.T) {
		t.Parallel()
		c := p.copy(t)
		c.registry = serve(t, t.TempDir()) + "/gpuready"
		_, err := sign.Run(t.Context(), sign.Options{Dir: c.dir, Registry: attest.Registry{Prefix: c.registry}, Cosign: p.cosign(t, p.key)})
		require.ErrorContains(t, err, "run release push first")
	})
}

// TestAMirrorIsVerified copies a release through an archive, as into a network without others, twice:
// the second time, the registry has more referrers of an image.
func TestAMirrorIsVerified(t *testing.T) {
	p := publishSmall(t)
	signed, err := contents.ReadSigned(p.dir)
	require.NoError(t, err)
	var images []mirror.Image
	for _, a := range append(signed, p.Artifacts...) {
		images = append(images, mirror.Image{Repository: p.registry + "/" + a.Name, Tag: a.Tag, Digest: a.Digest, Kind: a.Kind})
	}
	var archive bytes.Buffer
	require.NoError(t, mirror.Write(&archive, p.Release, images, layout.Path(filepath.Join(p.dir, contents.Layout))))
	there := serve(t, t.TempDir()) + "/mirror"
	c := *p
	c.registry = there + "/gpuready"
	load := func() {
		dir := t.TempDir()
		_, err = mirror.Unpack(bytes.NewReader(archive.Bytes()), dir, there)
		require.NoError(t, err)
		to, err := publish.New(publish.Options{Dir: dir, Jobs: 2, Logf: func(_, format string, args ...any) { t.Logf(format, args...) }})
		require.NoError(t, err)
		items, err := to.Plan(t.Context(), false)
		require.NoError(t, err)
		require.NoError(t, to.Push(t.Context(), items))
	}
	load()
	require.Empty(t, c.verify(t))

	image := p.Artifacts[0]
	c.detach(t, "operator", image.Digest, bundleOf(attest.SignatureType))
	c.attachProvenance(t, image, func(*contents.Release) {})
	require.NotEmpty(t, c.verify(t))
	load()
	require.Empty(t, c.verify(t))
	require.Len(t, c.referrers(t, "operator", image.Digest), 3)
}

// TestEveryBlobCounts changes each blob of a release, one at a time. It takes minutes, and runs only
// with GPUREADY_E2E_LONG.
func TestEveryBlobCounts(t *testing.T) {
	if os.Getenv("GPUREADY_E2E_LONG") == "" {
		t.Skip("GPUREADY_E2E_LONG is not set; TestRelease changes a blob of each kind")
	}
	p := publishSmall(t)
	blobs, err := filepath.Glob(filepath.Join(p.storage, "docker/registry/v2/blobs/sha256/*/*"))
	require.NoError(t, err)
	lists := map[string]bool{} // of referrers: unsigned, and replaced with each new referrer
	for _, a := range append(p.Artifacts, contents.Artifact{Name: contents.Repository, Digest: p.digestOf(t, "release:"+version)}) {
		tags, err := filepath.Glob(filepath.Join(p.storage, "docker/registry/v2/repositories/gpuready", a.Name, "_manifests/tags/sha256-*/index/sha256/*"))
		require.NoError(t, err)
		require.NotEmpty(t, tags)
		for _, list := range tags {
			lists[filepath.Base(list)] = true
		}
	}
	for _, blob := range blobs {
		digest := filepath.Base(blob)
		if lists[digest] {
			continue
		}
		t.Run(digest, func(t *testing.T) {
			t.Parallel()
			c := p.copy(t)
			c.damage(t, digest)
			require.NotEmpty(t, c.verify(t))
		})
	}
}

// TestCosignVerifiesWhatIsSigned runs the commands of docs/release.md.
func TestCosignVerifiesWhatIsSigned(t *testing.T) {
	p := publishSmall(t)
	cosign := func(args ...string) {
		t.Helper()
		out, err := exec.Command(tool(t, "cosign"), args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	for _, digest := range p.Artifacts[0].Digests() {
		image := p.registry + "/operator@" + digest
		cosign("verify", "--key", p.pub, "--insecure-ignore-tlog", image)
		cosign("verify-attestation", "--key", p.pub, "--insecure-ignore-tlog", "--type", "https://slsa.dev/provenance/v1", image)
	}
	cosign("verify", "--key", p.pub, "--insecure-ignore-tlog", p.registry+"/release:"+version)
	cosign("verify-blob", "--key", p.pub, "--insecure-ignore-tlog", "--bundle", filepath.Join(p.dir, "signatures/SHA256SUMS.signature.sigstore.json"), filepath.Join(p.dir, "files/SHA256SUMS"))
	sums := exec.Command("sha256sum", "--check", contents.Sums)
	sums.Dir = filepath.Join(p.dir, contents.Files)
	out, err := sums.CombinedOutput()
	require.NoError(t, err, string(out))
}

func layerOf(t *testing.T, m v1.Manifest, file string) string {
	t.Helper()
	for _, l := range m.Layers {
		if attest.FileName(l) == file {
			return l.Digest.String()
		}
	}
	t.Fatalf("the artifact has no %s", file)
	return ""
}

func (p *published) digestOf(t *testing.T, ref string) string {
	t.Helper()
	parsed, err := name.ParseReference(p.registry + "/" + ref)
	require.NoError(t, err)
	d, err := remote.Head(parsed)
	require.NoError(t, err)
	return d.Digest.String()
}

// sbom returns the digest of the blob with the SBOM of an image.
func (p *published) sbom(t *testing.T, digest string) string {
	t.Helper()
	all := p.referrers(t, "operator", digest)
	i := slices.IndexFunc(all, func(d v1.Descriptor) bool { return d.ArtifactType == attest.SBOMType })
	require.GreaterOrEqual(t, i, 0)
	return p.manifest(t, "operator@"+all[i].Digest.String()).Layers[0].Digest.String()
}

// subject returns the descriptor of a digest, and its reference.
func (p *published) subject(t *testing.T, digest string) (v1.Descriptor, name.Digest) {
	t.Helper()
	ref, err := name.NewDigest(p.registry + "/operator@" + digest)
	require.NoError(t, err)
	d, err := remote.Head(ref)
	require.NoError(t, err)
	return v1.Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest}, ref
}

func (p *published) push(t *testing.T, m *attest.Manifest, ref name.Digest) {
	t.Helper()
	digest, err := m.Digest()
	require.NoError(t, err)
	require.NoError(t, m.Push(t.Context(), attest.Registry{Prefix: p.registry}, ref.Context().Digest(digest.String())))
}

// attachSBOM attaches an SBOM of the release to an image.
func (p *published) attachSBOM(t *testing.T, digest, file string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, contents.SBOMs, file))
	require.NoError(t, err)
	d, ref := p.subject(t, digest)
	p.push(t, attest.NewSBOM(d, file, data), ref)
}

// attachProvenance signs the provenance of a changed release, and attaches it to an artifact.
func (p *published) attachProvenance(t *testing.T, a contents.Artifact, change func(*contents.Release)) {
	t.Helper()
	r, err := contents.Read(p.dir)
	require.NoError(t, err)
	change(&r)
	run, err := contents.ReadRun(p.dir)
	require.NoError(t, err)
	statement, err := attest.Describe(r, run, attest.Subjects(r, a), nil)
	require.NoError(t, err)
	bundle := filepath.Join(t.TempDir(), "bundle")
	require.NoError(t, p.cosign(t, p.key).SignStatement(t.Context(), statement, bundle))
	data, err := os.ReadFile(bundle)
	require.NoError(t, err)
	d, ref := p.subject(t, a.Digest)
	p.push(t, attest.NewReferrer(d, attest.ProvenanceType, bytes.Clone(data)), ref)
}

// remake makes the release anew in a registry of its own, changed before it is signed.
func (p *published) remake(t *testing.T, change func(dir string, r *contents.Release)) *published {
	t.Helper()
	c := &published{dir: t.TempDir(), storage: t.TempDir(), key: p.key, pub: p.pub}
	c.registry = serve(t, c.storage) + "/gpuready"
	c.Release = writeSmall(t, c.dir, c.registry, version)
	change(c.dir, &c.Release)
	c.sign(t)
	return c
}
