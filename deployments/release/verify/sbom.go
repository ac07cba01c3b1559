package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// maxSBOM bounds an SBOM, in bytes.
const maxSBOM = 64 << 20

// sbom checks the SBOM of a platform: that the signed provenance names it, and that it lists the
// files and packages of the image that was pulled, no more and no less.
func (v *verifier) sbom(ctx context.Context, a contents.Artifact, platform int, provenance attest.Provenance) error {
	p := a.Platforms[platform]
	c := Check{Subject: a.Name + " " + p.Platform, Name: SBOM, Next: "do not rely on it; ask who publishes the release"}
	digest := ""
	for _, b := range provenance.RunDetails.Byproducts {
		if b.Name == p.SBOM && p.SBOM != "" {
			digest = "sha256:" + b.Digest["sha256"]
		}
	}
	if digest == "" {
		c.Expected, c.Found = "an SBOM among the byproducts of the provenance", "none"
		v.add(a.Name, c)
		return nil
	}
	data, found, err := v.fetchSBOM(ctx, a.Name, p.Digest, digest)
	if err != nil {
		return err
	}
	if data == nil {
		c.Expected, c.Found = "a referrer of "+p.Digest+" of type "+attest.SBOMType+" with "+digest+", as the signed provenance says", found
		v.add(a.Name, c)
		return nil
	}
	image, err := v.store.imageOf(a, platform)
	if err != nil {
		return err
	}
	files, differences, err := compareSBOM(data, image, a.Name, v.release, p.Platform)
	switch {
	case err != nil:
		c.Expected, c.Found = "an SPDX document of an image", err.Error()
	case len(differences) > 0:
		c.Expected, c.Found = "what the image contains", join(differences)
	default:
		c = Check{Subject: c.Subject, Name: SBOM, OK: true, Detail: files, Summary: files}
	}
	v.add(a.Name, c)
	return nil
}

// fetchSBOM fetches the SBOM with a digest that is attached to an image. If there is none, it returns
// nil and what there is instead.
func (v *verifier) fetchSBOM(ctx context.Context, repository, image, wanted string) (data []byte, found string, err error) {
	ref, err := v.Registry.Digest(repository, image)
	if err != nil {
		return nil, "", err
	}
	there, err := v.Registry.Referrers(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	var others []string
	for _, d := range there {
		if d.ArtifactType != attest.SBOMType {
			continue
		}
		data, err := v.Registry.Manifest(ctx, ref.Context().Digest(d.Digest.String()))
		var m v1.Manifest
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err == nil && (len(m.Layers) != 1 || m.Subject == nil || m.Subject.Digest.String() != image) {
			err = errors.New("it is not the manifest of one SBOM with this subject")
		}
		if err == nil && m.Layers[0].Digest.String() == wanted {
			if data, err = v.Registry.Bytes(ctx, ref.Context(), m.Layers[0], maxSBOM); err == nil {
				return data, "", nil
			}
		}
		if err != nil {
			others = append(others, fmt.Sprintf("%s: %v", d.Digest, err))
		} else {
			others = append(others, m.Layers[0].Digest.String())
		}
	}
	if len(others) == 0 {
		return nil, "no SBOM", nil
	}
	return nil, join(others), nil
}

// compareSBOM returns how an SBOM differs from the content of an image, or a summary.
func compareSBOM(document []byte, image v1.Image, name string, r contents.Release, platform string) (summary string, differences []string, err error) {
	have, err := readSBOM(document)
	if err != nil {
		return "", nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", nil, err
	}
	tree, err := rootfs.Extract(image)
	if err != nil {
		return "", nil, err
	}
	inside, err := rootfs.Regular("", 0, document)
	if err != nil {
		return "", nil, err
	}
	path := rootfs.SBOMPath(name)
	if got := tree[path].SHA256; got != inside.SHA256 {
		differences = append(differences, "the image's own copy, "+path+", is another document")
	}
	delete(tree, path) // it does not list itself
	_, arch, _ := strings.Cut(platform, "/")
	actual, err := rootfs.SBOM(rootfs.Description{Name: name, Version: r.Version, Revision: r.Revision, Arch: arch, Tree: tree, At: config.Created.Time})
	if err != nil {
		return "", nil, err
	}
	want, err := readSBOM(actual)
	if err != nil {
		return "", nil, err
	}
	differences = append(differences, compareLists("file", have.files, want.files)...)
	differences = append(differences, compareLists("package", have.packages, want.packages)...)
	return fmt.Sprintf("%d files, %d packages", len(want.files), len(want.packages)), differences, nil
}

// listed is the content of an SBOM: checksums by file, and packages.
type listed struct{ files, packages map[string]string }

func readSBOM(document []byte) (listed, error) {
	d, err := spdxjson.Read(bytes.NewReader(document))
	if err != nil {
		return listed{}, fmt.Errorf("SPDX: %w", err)
	}
	l := listed{map[string]string{}, map[string]string{}}
	for _, f := range d.Files {
		for _, sum := range f.Checksums {
			if sum.Algorithm == common.SHA256 {
				l.files[f.FileName] = sum.Value
			}
		}
		if l.files[f.FileName] == "" {
			return listed{}, fmt.Errorf("SPDX: %.200q has no SHA256", f.FileName)
		}
	}
	for _, p := range d.Packages {
		id := []string{p.PackageName, p.PackageVersion, p.PackageFileName}
		for _, r := range p.PackageExternalReferences {
			id = append(id, r.Locator)
		}
		l.packages[strings.Join(id, " ")] = "listed"
	}
	return l, nil
}

// compareLists returns the differences between what an SBOM lists and what is there.
func compareLists(what string, listed, actual map[string]string) []string {
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		switch is, there := actual[name]; {
		case !there:
			differences = append(differences, what+" "+name+" is listed and not in the image")
		case is != listed[name]:
			differences = append(differences, fmt.Sprintf("%s %s is listed with %s and is %s in the image", what, name, listed[name], is))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(actual)) {
		if _, there := listed[name]; !there {
			differences = append(differences, what+" "+name+" is in the image and not listed")
		}
	}
	return differences
}
