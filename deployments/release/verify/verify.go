// Package verify verifies a published release as a stranger would: it knows a registry, a version and
// whose signature counts, and pulls everything anew.
//
// Trust goes from the signature of the artifact "release" to the digests in its release.json, and from
// them to every byte. A tag is only compared. Each artifact must be signed itself, too, since others
// verify only the image that they run.
package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Options say what to verify, and what to expect.
type Options struct {
	Registry attest.Registry
	Version  string
	Cosign   attest.Cosign
	Builder  string       // who must have built it, a URI; "": anybody whose signature counts
	Revision string       // the commit that must have been built; "": the one that release.json names
	Files    string       // a folder with files of the release that were downloaded elsewhere; "": none
	Save     string       // a folder for the list and the files of the release, if nothing failed; "": none
	Progress func(string) // is called with each artifact that is begun; it may be nil
}

// Check is one thing that was checked.
type Check struct {
	Subject string `json:"subject"` // "operator", "operator linux/arm64", "files/gpu.yaml"
	Name    string `json:"check"`   // one of the constants
	OK      bool   `json:"ok"`
	Detail  string `json:"detail,omitempty"` // what was found, if it is as expected
	Summary string `json:"-"`                // of it, in a few words; "": "ok"

	// Of a failure.
	Expected string `json:"expected,omitempty"`
	Found    string `json:"found,omitempty"`
	Next     string `json:"next,omitempty"` // what to do
}

// Names of checks.
const (
	Tag        = "tag"        // the tag stands for the digest in release.json
	Signature  = "signature"  // the digest is signed by the key or the identity
	Provenance = "provenance" // signed, and of this version, registry and commit
	Blobs      = "blobs"      // every manifest, configuration, layer and file has its digest
	SBOM       = "SBOM"       // it is the signed one, and lists what the image contains, no more and no less
	List       = "list"       // release.json and SHA256SUMS agree with each other and with the files
)

// Result is the outcome of all checks.
type Result struct {
	Registry string  `json:"registry"`
	Version  string  `json:"version"`
	Digest   string  `json:"digest"`   // of the artifact "release"
	Origin   string  `json:"origin"`   // the registry that the release was made for; its chart names images there
	Revision string  `json:"revision"` // the commit
	Checks   []Check `json:"checks"`
	Bytes    int64   `json:"bytes"` // that were pulled
	Seconds  float64 `json:"seconds"`

	Release contents.Release `json:"-"`
}

// Failures returns the checks that failed.
func (r Result) Failures() []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.OK })
}

// parallel is the number of artifacts that are verified at a time.
const parallel = 4

type verifier struct {
	Options
	release contents.Release
	store   *store

	mu     sync.Mutex
	checks map[string][]Check // by artifact
}

// Run verifies a release. Its error says that something could not be checked; a Result without
// Failures that the release is as it was signed.
func Run(ctx context.Context, o Options) (Result, error) {
	began := time.Now()
	if err := checkEmpty(o.Save); err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "gpuready-verify-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	v := &verifier{Options: o, checks: map[string][]Check{}}
	if v.store, err = newStore(dir, o.Registry); err != nil {
		return Result{}, err
	}
	result := Result{Registry: o.Registry.Prefix, Version: o.Version}
	order := []string{contents.Repository}
	files := filepath.Join(dir, "release")
	if result.Digest, err = v.readRelease(ctx, files); err != nil {
		return Result{}, fmt.Errorf("%s: %w", contents.Repository, err)
	}
	if result.Digest != "" && v.release.Version != "" {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(parallel)
		for _, a := range v.release.Artifacts {
			order = append(order, a.Name)
			group.Go(func() error {
				if err := v.artifact(ctx, a); err != nil {
					return fmt.Errorf("%s: %w", a.Name, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return Result{}, err
		}
	}
	for _, name := range order {
		result.Checks = append(result.Checks, v.checks[name]...)
	}
	result.Release, result.Origin, result.Revision = v.release, v.release.Registry, v.release.Revision
	result.Bytes, result.Seconds = v.store.pulled(), time.Since(began).Seconds()
	if o.Save != "" && len(result.Failures()) == 0 { // what was verified: asking again may get another answer
		err = os.CopyFS(o.Save, os.DirFS(files))
	}
	return result, err
}

// checkEmpty returns an error if a folder has something in it. It need not exist.
func checkEmpty(dir string) error {
	if dir == "" {
		return nil
	}
	switch there, err := os.ReadDir(dir); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case len(there) > 0:
		return fmt.Errorf("%s is not empty; name another folder", dir)
	}
	return nil
}

// RefusedError says that something is not as it was signed.
type RefusedError struct{ Check }

// Error returns one line. Parts of it come from the registry, which must not control a terminal.
func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s: %s: expected %s; found %s; %s", e.Subject, e.Name, e.Expected, e.Found, e.Next)
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// add records a check of an artifact.
func (v *verifier) add(artifact string, c Check) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.checks[artifact] = append(v.checks[artifact], c)
}

// artifact verifies an artifact of release.json.
func (v *verifier) artifact(ctx context.Context, a contents.Artifact) error {
	if v.Progress != nil {
		v.Progress(a.Name)
	}
	if err := v.tag(ctx, a.Name, a.Tag, a.Digest); err != nil {
		return err
	}
	var provenance *attest.Provenance
	for _, part := range parts(a) {
		if _, err := v.signed(ctx, a.Name, part, attest.SignatureType); err != nil {
			return err
		}
		p, err := v.provenance(ctx, a.Name, part)
		if err != nil {
			return err
		}
		if p != nil {
			provenance = p
		}
	}
	whole, err := v.blobs(ctx, a)
	if err != nil || !whole || provenance == nil {
		return err
	}
	for i, p := range a.Platforms {
		if p.SBOM == "" && a.Kind != contents.Image {
			continue
		}
		if err := v.sbom(ctx, a, i, *provenance); err != nil {
			return err
		}
	}
	return nil
}

// part is an artifact, or one of its platforms.
type part struct{ repository, digest, subject string }

func parts(a contents.Artifact) []part {
	all := []part{{a.Name, a.Digest, a.Name}}
	for _, p := range a.Platforms {
		all = append(all, part{a.Name, p.Digest, a.Name + " " + p.Platform})
	}
	return all
}

// tag checks that a tag stands for a digest.
func (v *verifier) tag(ctx context.Context, repository, tag, digest string) error {
	ref, err := v.Registry.Tag(repository, tag)
	if err != nil {
		return err
	}
	c := Check{Subject: repository, Name: Tag, Expected: fmt.Sprintf("%s to be %s, as in the signed %s", ref, digest, contents.File)}
	found, err := v.Registry.Resolve(ctx, ref)
	switch {
	case isMissing(err):
		c.Found, c.Next = "no such tag", "use "+digest+", and ask who publishes the registry for the tag"
	case err != nil:
		return err
	case found.String() != digest:
		c.Found = "that it was moved to " + found.String()
		c.Next = "do not pull by this tag; use the digest, and ask who publishes the registry"
	default:
		c = Check{Subject: repository, Name: Tag, OK: true, Detail: tag + " is " + digest, Summary: tag}
	}
	v.add(repository, c)
	return nil
}

func isMissing(err error) bool {
	failed, is := errors.AsType[*transport.Error](err)
	return is && failed.StatusCode == http.StatusNotFound
}

// signed checks that a statement of a type about a part is signed, and returns those that are.
func (v *verifier) signed(ctx context.Context, artifact string, p part, predicateType string) ([]attest.Statement, error) {
	name := Signature
	if predicateType == attest.ProvenanceType {
		name = Provenance
	}
	ref, err := v.Registry.Digest(p.repository, p.digest)
	if err != nil {
		return nil, err
	}
	statements, err := v.Cosign.VerifyStatements(ctx, ref.String(), predicateType)
	statements = slices.DeleteFunc(statements, func(s attest.Statement) bool { return !s.Covers(p.digest) })
	failed, refused := errors.AsType[*attest.CosignError](err)
	switch {
	case err != nil && !refused:
		return nil, err
	case err == nil && len(statements) > 0:
		if name == Signature {
			v.add(artifact, Check{Subject: p.subject, Name: name, OK: true, Detail: p.digest + " is signed by " + v.signer()})
		}
		return statements, nil
	}
	c := Check{Subject: p.subject, Name: name, Expected: fmt.Sprintf("a %s of %s by %s", name, p.digest, v.signer())}
	c.Found, c.Next = "none", "do not use it; if you publish this release, run release sign"
	there, err := v.Registry.Referrers(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, d := range there {
		if d.ArtifactType == attest.BundleType && d.Annotations["dev.sigstore.bundle.predicateType"] == predicateType {
			c.Found, c.Next = "one that is damaged, or not by that signer, or not about this digest", "do not use it; check --key or the identity with who publishes the release"
			if failed != nil {
				c.Found += " (" + failed.Error() + ")"
			}
		}
	}
	v.add(artifact, c)
	return nil, nil
}

// signer describes whose signatures count.
func (v *verifier) signer() string {
	if v.Cosign.Key != "" {
		return "the key " + v.Cosign.Key
	}
	return v.Cosign.Identity + " (" + v.Cosign.Issuer + ")"
}

// provenance checks what is signed about the build of a part. It returns a provenance that is as
// expected, or nil.
func (v *verifier) provenance(ctx context.Context, artifact string, p part) (*attest.Provenance, error) {
	statements, err := v.signed(ctx, artifact, p, attest.ProvenanceType)
	if err != nil || len(statements) == 0 {
		return nil, err
	}
	var c Check
	for _, s := range statements { // one that is as expected does
		var found *attest.Provenance
		if c, found = v.checkProvenance(p.subject, s); c.OK {
			v.add(artifact, c)
			return found, nil
		}
	}
	v.add(artifact, c)
	return nil, nil
}

// checkProvenance compares a provenance with what is expected.
func (v *verifier) checkProvenance(subject string, s attest.Statement) (Check, *attest.Provenance) {
	c := Check{Subject: subject, Name: Provenance, Next: "do not use it: it was built of something else, or by somebody else"}
	p, err := s.Provenance()
	if err != nil {
		c.Expected, c.Found = "a provenance of SLSA v1", err.Error()
		return c, nil
	}
	commit := v.Revision
	if commit == "" {
		commit = v.release.Revision
	}
	for _, field := range []struct{ name, expected, found string }{
		{"buildType", attest.BuildType, p.BuildDefinition.BuildType},
		{"version", v.release.Version, p.BuildDefinition.ExternalParameters.Version},
		{"registry", v.release.Registry, p.BuildDefinition.ExternalParameters.Registry},
		{"commit", commit, p.Commit()},
		{"builder", orFound(v.Builder, p.RunDetails.Builder.ID), p.RunDetails.Builder.ID},
	} {
		if field.expected != field.found || field.found == "" {
			c.Expected, c.Found = field.name+" "+field.expected, field.name+" "+orFound(field.found, "is missing")
			return c, nil
		}
	}
	if expected, found := encode(v.release.Materials), encode(p.BuildDefinition.ResolvedDependencies); expected != found {
		c.Expected, c.Found = "the materials that release.json lists", "others"
		return c, nil
	}
	return Check{Subject: subject, Name: Provenance, OK: true, Detail: fmt.Sprintf("commit %s, %d materials, built by %s", commit, len(v.release.Materials), p.RunDetails.Builder.ID)}, &p
}

func orFound(expected, found string) string {
	if expected == "" {
		return found
	}
	return expected
}

func encode(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// blobs pulls an artifact, and checks digests, and that its platforms are those of release.json.
func (v *verifier) blobs(ctx context.Context, a contents.Artifact) (bool, error) {
	c := Check{Subject: a.Name, Name: Blobs}
	n, err := v.store.pull(ctx, a)
	wrong, refused := errors.AsType[*contentError](err)
	switch {
	case refused:
		c.Expected, c.Found, c.Next = wrong.expected, wrong.found, "do not use it: pull from another registry, and ask who publishes this one"
	case err != nil:
		return false, err
	default:
		c = Check{Subject: a.Name, Name: Blobs, OK: true, Detail: fmt.Sprintf("%d blobs, %d bytes", n.count, n.bytes), Summary: fmt.Sprintf("%d, %.1f MB", n.count, float64(n.bytes)/1e6)}
	}
	v.add(a.Name, c)
	return c.OK, nil
}

// join returns a list for a person, of at most three entries.
func join(all []string) string {
	const limit = 3
	if len(all) > limit {
		return strings.Join(all[:limit], "; ") + fmt.Sprintf("; and %d more", len(all)-limit)
	}
	return strings.Join(all, "; ")
}
