// Package sign signs a release that was pushed, attaches what was signed to the artifacts in the
// registry, and publishes the release.
//
// A statement is signed once: its bundle stays in the folder of the release, so that a run that was
// killed goes on where it stopped. A bundle that is there counts if it is about the same statement
// and of the same key.
package sign

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Options describe what to sign, with what.
type Options struct {
	Dir      string // the folder of the release
	Cosign   attest.Cosign
	Registry attest.Registry // an empty prefix is replaced by the release's own
	DryRun   bool            // only plan
	Done     func(Step)      // is called after each step, by one goroutine at a time; it may be nil
}

// Step is a part of the work.
type Step struct {
	Action  string `json:"action"`  // "sign", "attach" or "publish"
	What    string `json:"what"`    // "signature", "provenance", "SBOM" or "release"
	Subject string `json:"subject"` // an artifact with its digest, or a file
	Kept    bool   `json:"kept"`    // it was done before
}

// parallel is the number of artifacts that are worked on at a time.
const parallel = 4

type signer struct {
	Options
	release contents.Release
	run     contents.Run
	hint    string // at the key
	at      string // what the release's tag stands for before the run; "": it is not published

	mu    sync.Mutex
	steps []Step
	kept  []contents.Artifact // what a copy of the layout needs to be verified
}

// Run signs a release and publishes it. It returns the steps, sorted; in a dry run they are what
// a run would do.
func Run(ctx context.Context, o Options) ([]Step, error) {
	s := &signer{Options: o}
	var err error
	if s.release, err = contents.Read(o.Dir); err != nil {
		return nil, err
	}
	if s.run, err = contents.ReadRun(o.Dir); err != nil {
		return nil, err
	}
	if s.Registry.Prefix == "" {
		s.Registry.Prefix = s.release.Registry
	}
	if s.hint, err = o.Cosign.KeyHint(ctx); err != nil {
		return nil, err
	}
	if err := s.readTag(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", contents.Repository, err)
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, contents.Signatures), 0o755); err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, a := range s.release.Artifacts {
		group.Go(func() error {
			if err := s.artifact(groupCtx, a); err != nil {
				return fmt.Errorf("%s: %w", a.Name, err)
			}
			return nil
		})
	}
	group.Go(func() error { return s.files(groupCtx) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := s.publish(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", contents.Repository, err)
	}
	if !o.DryRun {
		if err := contents.WriteSigned(o.Dir, s.kept); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(s.steps, func(a, b Step) int {
		return strings.Compare(a.Action+" "+a.Subject+" "+a.What, b.Action+" "+b.Subject+" "+b.What)
	})
	return s.steps, nil
}

// add records a step.
func (s *signer) add(action, what, subject string, kept bool) {
	step := Step{Action: action, What: what, Subject: subject, Kept: kept}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step)
	if s.Done != nil {
		s.Done(step)
	}
}

// path returns the path of a bundle. Slashes are in the names of artifacts; plus signs are not.
func (s *signer) path(subject, what string) string {
	return filepath.Join(s.Dir, contents.Signatures, strings.ReplaceAll(subject, "/", "+")+"."+what+contents.BundleSuffix)
}

// artifact signs an artifact and attaches bundles and SBOMs to its digests.
func (s *signer) artifact(ctx context.Context, a contents.Artifact) error {
	sboms := map[string]referrer{} // by digest
	var byproducts []attest.Byproduct
	for _, p := range a.Platforms {
		if p.SBOM == "" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.Dir, contents.SBOMs, p.SBOM))
		if err != nil {
			return fmt.Errorf("SBOM of %s: %w; run release build again", p.Platform, err)
		}
		sum := sha256.Sum256(data)
		sboms[p.Digest] = referrer{what: p.SBOM, data: data}
		byproducts = append(byproducts, attest.Byproduct{Name: p.SBOM, MediaType: attest.SBOMType, Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	subjects := attest.Subjects(s.release, a)
	signature, err := attest.Sign(subjects)
	if err != nil {
		return err
	}
	provenance, err := attest.Describe(s.release, s.run, subjects, byproducts)
	if err != nil {
		return err
	}
	referrers := []referrer{{what: "signature", predicateType: attest.SignatureType}, {what: "provenance", predicateType: attest.ProvenanceType}}
	for i, statement := range [][]byte{signature, provenance} {
		if referrers[i].data, err = s.statement(ctx, a.Name, referrers[i].what, statement); err != nil {
			return err
		}
	}
	if err := s.requirePushed(ctx, a); err != nil {
		return err
	}
	// One after the other: where a registry has no API for referrers, they are entries of an index.
	for _, digest := range a.Digests() {
		all := referrers
		if sbom, has := sboms[digest]; has {
			all = append(slices.Clone(all), sbom)
		}
		if err := s.attachAll(ctx, a.Name, digest, all); err != nil {
			return fmt.Errorf("%s: %w", digest, err)
		}
	}
	return nil
}

// requirePushed returns an error unless the registry has the artifact with its tag.
func (s *signer) requirePushed(ctx context.Context, a contents.Artifact) error {
	if s.DryRun {
		return nil
	}
	tag, err := s.Registry.Tag(a.Name, a.Tag)
	if err != nil {
		return err
	}
	d, err := s.Registry.Head(ctx, tag)
	switch {
	case isMissing(err):
		return fmt.Errorf("the registry has no %s; run release push first", tag)
	case err != nil:
		return err
	case d.Digest.String() != a.Digest:
		return fmt.Errorf("%s is %s in the registry, and %s in %s; push this release, under a new version if that one was published", tag, d.Digest, a.Digest, contents.File)
	}
	return nil
}

func isMissing(err error) bool {
	failed, is := errors.AsType[*transport.Error](err)
	return is && failed.StatusCode == http.StatusNotFound
}

// referrer is a document to attach to a digest.
type referrer struct {
	what          string // "signature", "provenance", or the name of an SBOM's file
	predicateType string // of a bundle; "" for an SBOM
	data          []byte
}

// attachAll attaches referrers to a digest.
func (s *signer) attachAll(ctx context.Context, repository, digest string, referrers []referrer) error {
	ref, err := s.Registry.Digest(repository, digest)
	if err != nil {
		return err
	}
	var subject v1.Descriptor
	var there []v1.Descriptor
	switch d, err := s.Registry.Head(ctx, ref); {
	case isMissing(err) && s.DryRun:
	case err != nil:
		return err
	default:
		subject = v1.Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest}
		if there, err = s.Registry.Referrers(ctx, ref); err != nil {
			return err
		}
	}
	var all []*attest.Manifest
	for _, r := range referrers {
		m := attest.NewSBOM(subject, r.what, r.data)
		if r.predicateType != "" {
			m = attest.NewReferrer(subject, r.predicateType, r.data)
		}
		if err := s.attach(ctx, ref, there, r.what, m); err != nil {
			return fmt.Errorf("attach %s: %w", r.what, err)
		}
		all = append(all, m)
	}
	if s.DryRun {
		return nil
	}
	return s.keepReferrers(repository, digest, all)
}

// attach pushes a referrer, unless it is one of those there.
func (s *signer) attach(ctx context.Context, subject name.Digest, there []v1.Descriptor, what string, m *attest.Manifest) error {
	digest, err := m.Digest()
	if err != nil {
		return err
	}
	kept := slices.ContainsFunc(there, func(d v1.Descriptor) bool { return d.Digest == digest })
	if !kept && !s.DryRun {
		if err := m.Push(ctx, s.Registry, subject.Context().Digest(digest.String())); err != nil {
			return err
		}
	}
	s.add("attach", what, subject.String(), kept)
	return nil
}
