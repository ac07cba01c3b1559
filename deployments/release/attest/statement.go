// Package attest makes the statements about a release that are signed, and reads them again.
//
// A statement is an in-toto statement v1: a predicate about subjects, which are digests of artifacts
// in the registry or of files. The program cosign signs it and returns a bundle (Cosign). A bundle
// becomes a referrer of each of its subjects (Referrer), so that whoever has a digest finds
// what is signed about it. SBOMs are referrers too.
//
// There are two predicates: the one of cosign's signatures, which says nothing but that the signer
// knows the subject, and the provenance of SLSA v1, which says how the subject was built.
package attest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Types of statements and predicates.
const (
	StatementType  = "https://in-toto.io/Statement/v1"
	SignatureType  = "https://sigstore.dev/cosign/sign/v1"
	ProvenanceType = "https://slsa.dev/provenance/v1"
)

// BuildType says how to read the parameters of a provenance: docs/release.md describes them.
const BuildType = "https://github.com/gpuready/gpuready/blob/main/docs/release.md#build-type-v1"

// Statement is an in-toto statement v1.
type Statement struct {
	Type          string          `json:"_type"`
	Subject       []Subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// Subject is an artifact or a file that a statement is about.
type Subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"` // "sha256": 64 hexadecimal digits
}

// Provenance is the predicate of SLSA v1: https://slsa.dev/spec/v1.0/provenance.
type Provenance struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition lists the inputs of a build.
type BuildDefinition struct {
	BuildType            string              `json:"buildType"`
	ExternalParameters   Parameters          `json:"externalParameters"`
	ResolvedDependencies []contents.Material `json:"resolvedDependencies"`
}

// Parameters are the parameters of `make release`.
type Parameters struct {
	Version  string `json:"version"`  // "v0.2.0"
	Registry string `json:"registry"` // where it was pushed first
}

// RunDetails describes one run of a build.
type RunDetails struct {
	Builder    Builder     `json:"builder"`
	Metadata   Metadata    `json:"metadata"`
	Byproducts []Byproduct `json:"byproducts,omitempty"` // the SBOM of each platform
}

// Byproduct is a document that describes a subject.
type Byproduct struct {
	Name      string            `json:"name"` // of a file
	MediaType string            `json:"mediaType"`
	Digest    map[string]string `json:"digest"`
}

// Builder is the party that built, as a URI.
type Builder struct {
	ID string `json:"id"`
}

// Metadata identifies a run.
type Metadata struct {
	InvocationID string    `json:"invocationId"`
	StartedOn    time.Time `json:"startedOn"`
	FinishedOn   time.Time `json:"finishedOn"`
}

// Subjects returns the digests of an artifact: of its index or manifest, then of each platform.
func Subjects(r contents.Release, a contents.Artifact) []Subject {
	subjects := []Subject{{Name: r.Registry + "/" + a.Name, Digest: digest(a.Digest)}}
	for _, p := range a.Platforms {
		subjects = append(subjects, Subject{Name: r.Registry + "/" + a.Name + " " + p.Platform, Digest: digest(p.Digest)})
	}
	return subjects
}

// FileSubjects returns the digests of a release's files.
func FileSubjects(r contents.Release) []Subject {
	var subjects []Subject
	for _, f := range r.Files {
		subjects = append(subjects, Subject{Name: f.Name, Digest: map[string]string{"sha256": f.SHA256}})
	}
	return subjects
}

func digest(text string) map[string]string {
	algorithm, value, _ := strings.Cut(text, ":")
	return map[string]string{algorithm: value}
}

// Sign returns the statement of a signature, as cosign makes it.
func Sign(subjects []Subject) ([]byte, error) {
	return encode(Statement{Type: StatementType, Subject: subjects, PredicateType: SignatureType, Predicate: json.RawMessage("{}")})
}

// Describe returns the statement of the provenance of subjects of a release. The byproducts are
// documents that describe the subjects, such as SBOMs.
func Describe(r contents.Release, run contents.Run, subjects []Subject, byproducts []Byproduct) ([]byte, error) {
	predicate, err := json.Marshal(Provenance{
		BuildDefinition: BuildDefinition{
			BuildType:            BuildType,
			ExternalParameters:   Parameters{Version: r.Version, Registry: r.Registry},
			ResolvedDependencies: r.Materials,
		},
		RunDetails: RunDetails{
			Builder:    Builder{ID: run.Builder},
			Metadata:   Metadata{InvocationID: run.ID, StartedOn: run.Started, FinishedOn: run.Finished},
			Byproducts: byproducts,
		},
	})
	if err != nil {
		return nil, err
	}
	return encode(Statement{Type: StatementType, Subject: subjects, PredicateType: ProvenanceType, Predicate: predicate})
}

func encode(s Statement) ([]byte, error) {
	if len(s.Subject) == 0 {
		return nil, errors.New("a statement needs a subject")
	}
	return json.Marshal(s)
}

// ReadStatement decodes a statement.
func ReadStatement(data []byte) (Statement, error) {
	var s Statement
	if err := decode(data, &s); err != nil {
		return Statement{}, fmt.Errorf("statement: %w", err)
	}
	if s.Type != StatementType {
		return Statement{}, fmt.Errorf("statement: _type is %.80q; %q expected", s.Type, StatementType)
	}
	return s, nil
}

// Covers reports whether a digest, "sha256:…", is one of the subjects.
func (s Statement) Covers(wanted string) bool {
	algorithm, value, _ := strings.Cut(wanted, ":")
	return value != "" && slices.ContainsFunc(s.Subject, func(subject Subject) bool { return subject.Digest[algorithm] == value })
}

// Provenance decodes the predicate of a provenance.
func (s Statement) Provenance() (Provenance, error) {
	if s.PredicateType != ProvenanceType {
		return Provenance{}, fmt.Errorf("predicateType is %.80q; %q expected", s.PredicateType, ProvenanceType)
	}
	var p Provenance
	if err := decode(s.Predicate, &p); err != nil {
		return Provenance{}, fmt.Errorf("predicate: %w", err)
	}
	return p, nil
}

// Commit returns the commit that was built, or "".
func (p Provenance) Commit() string {
	for _, m := range p.BuildDefinition.ResolvedDependencies {
		if c := m.Digest["gitCommit"]; c != "" {
			return c
		}
	}
	return ""
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
