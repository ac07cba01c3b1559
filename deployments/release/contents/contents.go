// Package contents describes a release on disk: a folder with all that `make release` made for one
// version, before and after it was pushed.
//
//	release.json        the contents: Release
//	run.json            the run that made it: Run
//	oci/                an OCI image layout with every artifact that goes to the registry
//	sbom/               an SPDX document for each image and architecture
//	files/              what is published beside a registry: archives, manifests, SHA256SUMS
//	signatures/         what was signed: bundles of signatures and of provenances
//
// Images are indexes of one image per platform. Charts, bundles and catalogs are artifacts as well.
package contents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Schema identifies the format of release.json.
const Schema = "gpuready.io/release/v1"

// Names of files and folders in the folder of a release.
const (
	File       = "release.json"
	Layout     = "oci"
	SBOMs      = "sbom"
	Files      = "files"
	Signatures = "signatures"
	Sums       = "SHA256SUMS" // in Files

	BundleSuffix = ".sigstore.json" // of the files in Signatures
)

// Kind says what an artifact in the registry is.
type Kind string

// The kinds of artifacts.
const (
	Image   Kind = "image"   // an index of images for containers
	Chart   Kind = "chart"   // a Helm chart
	Bundle  Kind = "bundle"  // a bundle for the Operator Lifecycle Manager
	Catalog Kind = "catalog" // an index of images that serve a file-based catalog with the bundle

	// Those of Signed.
	Referrers Kind = "referrers" // an index of the referrers of a digest, with the tag sha256-<digest>
	List      Kind = "list"      // the artifact Repository
)

// Release lists the contents of one release.
type Release struct {
	Schema    string     `json:"schema"`
	Version   string     `json:"version"`  // "v0.2.0"
	Revision  string     `json:"revision"` // the commit, 40 hexadecimal digits
	Created   time.Time  `json:"created"`  // the commit's time
	Registry  string     `json:"registry"` // where it is pushed: host and path, "registry.example.com/gpuready"
	Artifacts []Artifact `json:"artifacts"`
	Files     []Blob     `json:"files"` // below Files, but for Sums
	Materials []Material `json:"materials"`
}

// Artifact is a manifest or an index in the registry. Its tag is the release's version, for a
// chart without the "v".
type Artifact struct {
	Name      string     `json:"name"` // below the registry's path: "operator", "charts/gpuready"
	Kind      Kind       `json:"kind"`
	Tag       string     `json:"tag"`
	Digest    string     `json:"digest"` // of the manifest or index: "sha256:…"
	MediaType string     `json:"mediaType"`
	Size      int64      `json:"size"` // of the manifest or index, in bytes
	Platforms []Platform `json:"platforms,omitempty"`
}

// Platform is one image of an index.
type Platform struct {
	Platform string `json:"platform"` // "linux/arm64"
	Digest   string `json:"digest"`   // of the manifest
	Size     int64  `json:"size"`     // of the manifest, in bytes
	SBOM     string `json:"sbom"`     // a file below SBOMs: "operator-arm64.spdx.json"
}

// Blob is a file.
type Blob struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Size   int64  `json:"size"`   // in bytes
}

// Material is an input of the build: the source, a Debian package, a compiler, as in the
// resolvedDependencies of SLSA's provenance v1.
type Material struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri"` // "git+https://github.com/gpuready/gpuready", "pkg:deb/debian/libc6@2.36-9?arch=arm64"
	Digest map[string]string `json:"digest"`
}

// Repository is the name of the artifact in the registry with release.json, Files and Signatures. It
// is pushed last, with the release's version as its tag, when all others are signed. Its type is
// ArtifactType, and each layer has the path of a file in the folder of the release.
const (
	Repository   = "release"
	ArtifactType = "application/vnd.gpuready.release.v1"
)

// Digests returns the digests of an artifact: of its manifest or index, and of each platform.
func (a Artifact) Digests() []string {
	all := []string{a.Digest}
	for _, p := range a.Platforms {
		all = append(all, p.Digest)
	}
	return all
}

// Reference returns the name of an artifact by its digest, "host/path/operator@sha256:…".
func (r Release) Reference(a Artifact) string {
	return r.Registry + "/" + a.Name + "@" + a.Digest
}

// maxSize bounds release.json, in bytes.
const maxSize = 4 << 20

// component matches a part of a repository's path, never "." or "..", as
// https://github.com/opencontainers/distribution-spec requires.
const component = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`

var (
	digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	sum    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	commit = regexp.MustCompile(`^[0-9a-f]{40}$`)
	// Version matches the versions of releases: semantic versions with a "v".
	Version = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)
	// Registry matches a registry's host and a path.
	Registry = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/` + component + `)+$`)
	name     = regexp.MustCompile(`^` + component + `(/` + component + `)*$`)
	tag      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// Read reads and checks release.json in the folder of a release.
func Read(dir string) (Release, error) {
	path := filepath.Join(dir, File)
	data, err := readBounded(path)
	if err != nil {
		return Release{}, err
	}
	r, err := Parse(data)
	if err != nil {
		return Release{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Parse decodes and checks the text of release.json.
func Parse(data []byte) (Release, error) {
	var r Release
	if err := decode(data, &r); err != nil {
		return Release{}, err
	}
	return r, r.check()
}

// readBounded reads a file of at most maxSize bytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("%s: over %d bytes", path, maxSize)
	}
	return data, err
}

// decode decodes one JSON value whose fields are all known.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) { // More would allow a bracket
		return errors.New("text follows after its end")
	}
	return nil
}

// Bytes returns the text of release.json.
func (r Release) Bytes() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// check returns all problems with the fields.
func (r Release) check() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Schema != Schema {
		problem("schema: %.40q; %q expected", r.Schema, Schema)
	}
	if !Version.MatchString(r.Version) {
		problem("version: %.40q is not a semantic version as v1.2.3", r.Version)
	}
	if !commit.MatchString(r.Revision) {
		problem("revision: %.60q is not a commit", r.Revision)
	}
	if !Registry.MatchString(r.Registry) {
		problem("registry: %.100q is not a host and a path, as registry.example.com/gpuready", r.Registry)
	}
	if len(r.Artifacts) == 0 {
		problem("artifacts: a release has at least one")
	}
	seen := map[string]bool{}
	for i, a := range r.Artifacts {
		if !name.MatchString(a.Name) || seen[a.Name+":"+a.Tag] {
			problem("artifacts[%d].name: %.100q is not the name of a repository, or occurs twice with one tag", i, a.Name)
		}
		seen[a.Name+":"+a.Tag] = true
		if !tag.MatchString(a.Tag) {
			problem("artifacts[%d].tag: %.200q is not a tag of a registry", i, a.Tag)
		}
		if !digest.MatchString(a.Digest) {
			problem("artifacts[%d].digest: %.100q is not sha256: and 64 hexadecimal digits", i, a.Digest)
		}
		for j, p := range a.Platforms {
			if !digest.MatchString(p.Digest) {
				problem("artifacts[%d].platforms[%d].digest: %.100q is not sha256: and 64 hexadecimal digits", i, j, p.Digest)
			}
			if p.SBOM != "" && !fileName.MatchString(p.SBOM) {
				problem("artifacts[%d].platforms[%d].sbom: %.100q is not the name of a file", i, j, p.SBOM)
			}
		}
	}
	files := map[string]bool{}
	for i, f := range r.Files {
		if !fileName.MatchString(f.Name) || files[f.Name] {
			problem("files[%d].name: %.100q is not the name of a file, or occurs twice", i, f.Name)
		}
		files[f.Name] = true
		if !sum.MatchString(f.SHA256) {
			problem("files[%d].sha256: %.100q is not 64 hexadecimal digits", i, f.SHA256)
		}
	}
	return errors.Join(problems...)
}
