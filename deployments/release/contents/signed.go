package contents

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// SignedFile is the name of the file, in Signatures, that lists what `release sign` has written into
// Layout beside the artifacts of the release.
const SignedFile = "artifacts.json"

// ReferrersTag matches the tag of an index of referrers, which grows with each of them. Registries without
// an API for referrers have it: https://github.com/opencontainers/distribution-spec, referrers tag schema.
var ReferrersTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)

// WriteSigned writes the list of what was signed and attached: for each digest its referrers, and the
// artifact Repository, which is last: a copy that was not finished has no release. With them, a copy of
// the release can be verified.
func WriteSigned(dir string, artifacts []Artifact) error {
	slices.SortFunc(artifacts, func(a, b Artifact) int {
		if (a.Kind == List) != (b.Kind == List) {
			return map[bool]int{true: 1, false: -1}[a.Kind == List]
		}
		return strings.Compare(a.Name+":"+a.Tag, b.Name+":"+b.Tag)
	})
	data, err := json.MarshalIndent(artifacts, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, Signatures, SignedFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // a run that was killed leaves no half of it
}

// ReadSigned reads that list. It is empty if the release is not signed.
func ReadSigned(dir string) ([]Artifact, error) {
	path := filepath.Join(dir, Signatures, SignedFile)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Artifact
	if err := decode(data, &all); err != nil {
		return nil, fmt.Errorf("%s: %w; run release sign again", path, err)
	}
	for i, a := range all {
		if !name.MatchString(a.Name) || !tag.MatchString(a.Tag) || !digest.MatchString(a.Digest) {
			return nil, fmt.Errorf("%s: [%d]: %.100q with %.200q and %.100q is not a repository with a tag and a digest; run release sign again", path, i, a.Name, a.Tag, a.Digest)
		}
	}
	return all, nil
}
