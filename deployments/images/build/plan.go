package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
)

const megabyte = 1_000_000

// goals holds the uncompressed size, in bytes, that each image should not exceed.
var goals = map[string]int64{
	"device-plugin": 45 * megabyte,
	"dra-driver":    45 * megabyte,
	"toolkit":       45 * megabyte,
	"validator":     45 * megabyte,
	"cuda-samples":  25 * megabyte,
	"operator":      55 * megabyte,
}

// baseImage is the base of images.
type baseImage struct {
	Name    string // its reference, for the label org.opencontainers.image.base.name
	Archive string // path of its archive
	Image   rootfs.Image
}

// inputs holds everything that an image depends on.
type inputs struct {
	Name, Version, Revision, Repository, Arch string

	Containerfile string // the text
	Recipe        recipe
	Base          baseImage
	Files         map[string][]byte // by their name in COPY
	At            time.Time         // the image's creation time
	Tool          string            // a hash of the build tools: this program and buildah
}

// plan describes an image to build.
type plan struct {
	Name      string
	Reference string // "docker.io/gpuready/toolkit:TAG"
	Args      map[string]string
	SBOM      []byte
	Files     map[string][]byte // the context: the files in COPY
	Tree      rootfs.Tree       // everything in the image
	Key       string            // a hash of all inputs: an image with the same key is up to date
}

// sbomSource is the name by which a Containerfile copies the image's SBOM.
func sbomSource(name string) string { return "images/" + name + ".spdx.json" }

// registryClient is the image whose program connects to container registries by TLS, so that it
// needs certificate authorities.
const registryClient = "operator"

// makePlan plans an image, or returns all problems with it. The SBOM describes the tree of all
// other files, so it is made last.
func makePlan(in inputs) (plan, error) {
	p := plan{Name: in.Name, Reference: in.Repository + "/" + in.Name + ":" + in.Version, Files: map[string][]byte{}}
	files, copiedPaths := map[string]rootfs.File{}, []string{}
	sbom := copied{}
	for _, f := range in.Recipe.Files {
		if f.Source == sbomSource(in.Name) {
			sbom = f
			continue
		}
		data := in.Files[f.Source]
		file, err := rootfs.Regular(f.Path, f.Mode, data)
		if err != nil {
			return plan{}, fmt.Errorf("%s: %w", f.Source, err)
		}
		files[f.Path], p.Files[f.Source] = file, data
		copiedPaths = append(copiedPaths, f.Path)
	}
	if sbom.Path != rootfs.SBOMPath(in.Name) {
		return plan{}, fmt.Errorf("its Containerfile does not copy %s to %s; add that line", sbomSource(in.Name), rootfs.SBOMPath(in.Name))
	}
	p.Tree = in.Base.Image.Tree.With(files)
	var problems []error
	if have := cmp.Or(in.Base.Image.Config.Architecture, in.Arch); have != in.Arch {
		problems = append(problems, fmt.Errorf("the base %s is for %s; name one for %s", in.Base.Name, have, in.Arch))
	}
	if entry, ok := files[in.Recipe.Entrypoint[0]]; !ok || entry.Mode&0o111 == 0 {
		problems = append(problems, fmt.Errorf("its ENTRYPOINT %s is not a program that it copies", in.Recipe.Entrypoint[0]))
	}
	if _, ok := p.Tree.Resolve(rootfs.Bundle); !ok && in.Name == registryClient {
		problems = append(problems, fmt.Errorf("the base %s has no %s, without which the %s cannot connect to a public registry; use a base with certificate authorities", in.Base.Name, rootfs.Bundle, registryClient))
	}
	if problems = append(problems, rootfs.Check(p.Tree, in.Arch, copiedPaths)...); len(problems) > 0 {
		return plan{}, errors.Join(problems...)
	}
	var err error
	p.SBOM, err = rootfs.SBOM(rootfs.Description{Name: in.Name, Version: in.Version, Revision: in.Revision, Arch: in.Arch, Tree: p.Tree, At: in.At})
	if err != nil {
		return plan{}, fmt.Errorf("write its SBOM: %w", err)
	}
	p.Files[sbom.Source] = p.SBOM
	sbomFile, err := rootfs.Regular(sbom.Path, sbom.Mode, p.SBOM)
	if err != nil {
		return plan{}, err
	}
	p.Tree = p.Tree.With(map[string]rootfs.File{sbom.Path: sbomFile})
	p.Args = map[string]string{"BASE": in.Base.Name, "VERSION": in.Version, "REVISION": in.Revision}
	// The SBOM has the digest of the tree, and so stands for the files in the key.
	p.Key, err = key(in.Tool, in.Containerfile, in.Base.Image.ID, p.Reference, in.Arch, in.At.Unix(), p.Args, p.SBOM)
	return p, err
}

// key returns a hash of values, as they are in JSON.
func key(values ...any) (string, error) {
	data, err := json.Marshal(values)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}

// compare returns an error that lists how an image differs from the plan.
func (p plan) compare(have rootfs.Image, r recipe) error {
	var problems []error
	for _, line := range rootfs.Difference(have.Tree, p.Tree) {
		problems = append(problems, errors.New(line))
	}
	if c := have.Config.Config; c.User != r.User || !slices.Equal(c.Entrypoint, r.Entrypoint) {
		problems = append(problems, fmt.Errorf("it runs %q as %s; %q as %s expected", c.Entrypoint, c.User, r.Entrypoint, r.User))
	}
	for label := range r.Labels {
		if have.Config.Config.Labels[label] == "" {
			problems = append(problems, fmt.Errorf("its label %s is empty", label))
		}
	}
	if !slices.Equal(have.Names, []string{p.Reference}) {
		problems = append(problems, fmt.Errorf("it is named %q; %s expected", have.Names, p.Reference))
	}
	return errors.Join(problems...)
}
