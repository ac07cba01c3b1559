package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
)

// pinned are the images of a release, as `release build` writes them.
type pinned struct {
	Registry string            `json:"registry"` // "registry.example.com/gpuready"
	Version  string            `json:"version"`  // "v0.2.0"
	Digests  map[string]string `json:"digests"`  // by name: "toolkit": "sha256:…"
}

var (
	digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	image  = regexp.MustCompile(`^[a-z0-9-]+$`)
)

// readPinned reads a file with the images of a release.
func readPinned(path string) (*pinned, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	p := &pinned{}
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if p.Registry == "" || p.Version == "" || p.Digests["operator"] == "" {
		return nil, fmt.Errorf("%s: registry, version and digests are required, the operator's among them", path)
	}
	for name, value := range p.Digests {
		if !image.MatchString(name) || !digest.MatchString(value) {
			return nil, fmt.Errorf("%s: digests.%.50s: %.80q is not sha256: and 64 hexadecimal digits", path, name, value)
		}
	}
	return p, nil
}

// digestsFile is the file of the chart of a release with the digests of its images.
const digestsFile = "files/digests.yaml"

// repositoryLines are the lines of the chart's files with the registry of its images: the value itself, with its
// comments, and the default that templates read.
var repositoryLines = map[string]string{
	"values.yaml":       "\n  repository: gpuready\n",
	"files/values.json": "\n   \"repository\": \"gpuready\",\n",
}

// write adds the images to the files of the chart, and returns them. The digests are no values: helm upgrade
// --reuse-values would keep those of the release before.
func (p *pinned) write(files []*archive.BufferedFile) ([]*archive.BufferedFile, error) {
	for name, old := range repositoryLines {
		at := slices.IndexFunc(files, func(f *archive.BufferedFile) bool { return f.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("the chart has no %s", name)
		}
		if n := bytes.Count(files[at].Data, []byte(old)); n != 1 {
			return nil, fmt.Errorf("%s has the line %q %d times, not once: adapt pinned.write", name, strings.TrimSpace(old), n)
		}
		files[at].Data = bytes.Replace(files[at].Data, []byte(old), []byte(strings.Replace(old, "gpuready", p.Registry, 1)), 1)
	}
	digests := []byte("# The images of this release; operator.digests has other ones.\n")
	for _, name := range slices.Sorted(maps.Keys(p.Digests)) {
		digests = fmt.Appendf(digests, "%s: %s\n", name, p.Digests[name])
	}
	return append(files, &archive.BufferedFile{Name: digestsFile, ModTime: fileTime, Data: digests}), nil
}
