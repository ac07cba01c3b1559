package verify

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// readRelease verifies the artifact with release.json and the files, reads it, and writes its files
// into a folder that does not exist. It returns its digest, or "" if it is not to be trusted: then nothing else can be checked.
func (v *verifier) readRelease(ctx context.Context, dir string) (string, error) {
	const name = contents.Repository
	if v.Progress != nil {
		v.Progress(name)
	}
	tag, err := v.Registry.Tag(name, v.Version)
	if err != nil {
		return "", err
	}
	found, err := v.Registry.Resolve(ctx, tag)
	if isMissing(err) {
		v.add(name, Check{Subject: name, Name: Tag, Expected: tag.String(), Found: "no such tag",
			Next: "check --registry and --version; a release is there when release sign has ended"})
		return "", nil
	}
	if err != nil {
		return "", err
	}
	digest := found.String()
	statements, err := v.signed(ctx, name, part{name, digest, name}, attest.SignatureType)
	if err != nil || len(statements) == 0 {
		return "", err
	}
	layers, err := v.store.layers(ctx, tag.Context().Digest(digest), dir)
	if wrong, is := errors.AsType[*contentError](err); is {
		v.add(name, Check{Subject: name, Name: Blobs, Expected: wrong.expected, Found: wrong.found,
			Next: "do not use it: pull from another registry, and ask who publishes this one"})
		return "", nil
	}
	if err != nil {
		return "", err
	}
	v.add(name, Check{Subject: name, Name: Blobs, OK: true, Detail: fmt.Sprintf("%d files", len(layers)), Summary: fmt.Sprintf("%d files", len(layers))})
	c := Check{Subject: name, Name: List, Next: "do not use it, and ask who publishes the release"}
	r, err := contents.Read(dir)
	switch {
	case err != nil:
		c.Expected, c.Found = "a list of the release", err.Error()
	case r.Version != v.Version:
		c.Expected, c.Found = "version "+v.Version, "version "+r.Version
		c.Next = "the tag was moved: do not use it, and ask who publishes the registry"
	default:
		c.Expected = "release.json, SHA256SUMS and the files agree"
		if differences := compareFiles(r, dir, layers); len(differences) > 0 {
			c.Found = join(differences)
			break
		}
		c = Check{Subject: name, Name: List, OK: true, Detail: fmt.Sprintf("%d artifacts and %d files", len(r.Artifacts), len(r.Files))}
	}
	v.add(name, c)
	if !c.OK {
		return "", nil
	}
	v.release = r
	if v.Revision != "" && r.Revision != v.Revision {
		v.add(name, Check{Subject: contents.File, Name: List, Expected: "commit " + v.Revision, Found: "commit " + r.Revision, Next: "do not use it: it was built of another commit"})
	}
	if err := v.fileSignatures(ctx, dir); err != nil {
		return "", err
	}
	return digest, v.downloads()
}

// compareFiles returns how the files in the artifact, SHA256SUMS and release.json differ. The artifact
// was pulled by its digests.
func compareFiles(r contents.Release, dir string, layers map[string]v1.Descriptor) []string {
	var differences []string
	expected := map[string]string{} // the checksum by name
	for _, f := range r.Files {
		expected[f.Name] = f.SHA256
	}
	actual := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		folder, file := filepath.Split(name)
		switch {
		case folder == contents.Files+"/" && file != contents.Sums:
			actual[file] = layers[name].Digest.Hex
		case name != contents.File && file != contents.Sums && folder != contents.Signatures+"/":
			differences = append(differences, "the artifact: "+name+" is not expected")
		}
	}
	differences = append(differences, compareSums("the artifact", actual, expected)...)
	sums, err := readSums(filepath.Join(dir, contents.Files, contents.Sums))
	if err != nil {
		return append(differences, err.Error())
	}
	return append(differences, compareSums(contents.Sums, sums, expected)...)
}

func compareSums(where string, found, expected map[string]string) []string {
	var differences []string
	names := maps.Clone(found)
	maps.Copy(names, expected)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if found[name] != expected[name] {
			differences = append(differences, fmt.Sprintf("%s: %s has SHA-256 %s, and %s in %s", where, name, orFound(found[name], "none"), orFound(expected[name], "none"), contents.File))
		}
	}
	return differences
}

// readSums reads a file in the format of sha256sum.
func readSums(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || len(sum) != 64 || name == "" {
			return nil, fmt.Errorf("%s:%d: %.100q is not a line of sha256sum", contents.Sums, n, lines.Text())
		}
		sums[name] = sum
	}
	return sums, lines.Err()
}

// fileSignatures verifies what is signed about files, for those who have the files alone.
func (v *verifier) fileSignatures(ctx context.Context, dir string) error {
	bundle := func(of string) string { return filepath.Join(dir, contents.Signatures, of+contents.BundleSuffix) }
	for _, file := range []string{contents.File, filepath.Join(contents.Files, contents.Sums)} {
		err := v.Cosign.VerifyFile(ctx, filepath.Join(dir, file), bundle(filepath.Base(file)+".signature"))
		if err := v.addSigned(file, Signature, "the signature is by "+v.signer(), err); err != nil {
			return err
		}
	}
	if len(v.release.Files) == 0 {
		return nil
	}
	path := bundle(contents.Files + ".provenance")
	err := v.Cosign.VerifyFileStatement(ctx, filepath.Join(dir, contents.Files, v.release.Files[0].Name), path, attest.ProvenanceType)
	if err != nil {
		return v.addSigned(contents.Files, Provenance, "", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b, err := attest.ReadBundle(data)
	if err != nil {
		return err
	}
	s, err := attest.ReadStatement(b.Statement)
	if err != nil {
		return err
	}
	c, _ := v.checkProvenance(contents.Files, s)
	for _, f := range v.release.Files {
		if c.OK && !s.Covers("sha256:"+f.SHA256) {
			c = Check{Subject: contents.Files, Name: Provenance, Expected: f.Name + " among its subjects", Found: "it is not", Next: "do not use the file"}
		}
	}
	v.add(contents.Repository, c)
	return nil
}

// addSigned records what cosign said about a file.
func (v *verifier) addSigned(subject, name, detail string, err error) error {
	failed, refused := errors.AsType[*attest.CosignError](err)
	switch {
	case err == nil:
		v.add(contents.Repository, Check{Subject: subject, Name: name, OK: true, Detail: detail})
		return nil
	case !refused:
		return err
	}
	v.add(contents.Repository, Check{Subject: subject, Name: name, Expected: "a " + name + " by " + v.signer(), Found: failed.Error(), Next: "do not use the files"})
	return nil
}

// downloads checks the files in a folder by the signed list. The folder may have some of them.
func (v *verifier) downloads() error {
	if v.Files == "" {
		return nil
	}
	found := 0
	for _, f := range v.release.Files {
		sum, err := sumFile(filepath.Join(v.Files, f.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found++
		c := Check{Subject: filepath.Join(v.Files, f.Name), Name: Blobs, OK: true, Detail: "SHA-256 " + sum}
		if sum != f.SHA256 {
			c = Check{Subject: c.Subject, Name: Blobs, Expected: "SHA-256 " + f.SHA256, Found: "SHA-256 " + sum, Next: "download it again"}
		}
		v.add(contents.Repository, c)
	}
	if found == 0 {
		return fmt.Errorf("%s has no file of this release; name the folder with the downloads", v.Files)
	}
	return nil
}

func sumFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}
