package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
)

// result describes an image in the output folder.
type result struct {
	Name      string `json:"name"`
	Reference string `json:"reference"`
	ID        string `json:"id"`
	Archive   string `json:"archive"`
	SBOM      string `json:"sbom"`
	Bytes     int64  `json:"bytes"`     // uncompressed, base and all
	BaseBytes int64  `json:"baseBytes"` // shared by all images
	Goal      int64  `json:"goalBytes,omitempty"`
	Built     bool   `json:"built"` // by this run
	Arch      string `json:"architecture"`
}

// record is stored for an image, so that it need not be built again.
type record struct {
	Key    string `json:"key"`
	SHA256 string `json:"sha256"` // of the archive
	Result result `json:"result"`
}

// job is one run of this program.
type job struct {
	*options
	cache   string
	buildah *buildah
	tool    string // version of the build tools, on which images depend
	logf    func(name, format string, args ...any)
}

func run(ctx context.Context, o *options, progress io.Writer) ([]result, error) {
	began := time.Now()
	j := &job{options: o, cache: filepath.Join(o.out, ".cache"), logf: func(name, format string, args ...any) {
		fmt.Fprintf(progress, "  %5.1fs  %-16s  %s\n", time.Since(began).Seconds(), name, fmt.Sprintf(format, args...))
	}}
	names, err := recipes(o)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(j.cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(j.cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if j.buildah, err = newBuildah(ctx, j.cache, o.arch, o.epoch); err != nil {
		return nil, err
	}
	defer j.buildah.close()
	if j.tool, err = tool(j.buildah.version); err != nil {
		return nil, err
	}
	bases := map[string]baseImage{} // by reference
	var results []result
	for _, name := range names {
		r, err := j.image(ctx, name, bases)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// recipes returns the names of the images to build.
func recipes(o *options) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(o.recipes, "*", "Containerfile"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, file := range found {
		if name := filepath.Base(filepath.Dir(file)); name != "base" {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no folder with a Containerfile; run this in the project's folder or give --recipes", o.recipes)
	}
	for _, name := range o.names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("%s: there is no such image; the images are %s", name, strings.Join(all, ", "))
		}
	}
	if len(o.names) > 0 {
		return o.names, nil
	}
	return all, nil
}

// lock prevents a second run in the same folder.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: another build of these images is running; wait for it, or use another --out", name)
	}
	return func() { _ = f.Close() }, nil
}

// tool identifies the build tools: others may build a different image.
func tool(buildah string) (string, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	return key(sha256.Sum256(self), buildah)
}

// image brings one image up to date.
func (j *job) image(ctx context.Context, name string, bases map[string]baseImage) (result, error) {
	in, err := j.readInputs(ctx, name, bases)
	if err != nil {
		return result{}, err
	}
	p, err := makePlan(in)
	if err != nil {
		return result{}, err
	}
	if r, ok := j.upToDate(p); ok {
		j.logf(name, "is up to date")
		return r, nil
	}
	j.logf(name, "building %s", p.Reference)
	return j.build(ctx, p, in)
}

// readInputs reads everything that an image depends on.
func (j *job) readInputs(ctx context.Context, name string, bases map[string]baseImage) (inputs, error) {
	in := inputs{
		Name: name, Version: j.version, Revision: j.revision, Repository: j.repository, Arch: j.arch,
		Files: map[string][]byte{}, At: j.at(), Tool: j.tool,
	}
	file := filepath.Join(j.recipes, name, "Containerfile")
	text, err := os.ReadFile(file)
	if err != nil {
		return in, err
	}
	in.Containerfile = string(text)
	if in.Recipe, err = parseRecipe(in.Containerfile); err != nil {
		return in, fmt.Errorf("%s: %w", file, err)
	}
	for _, f := range in.Recipe.Files {
		if f.Source == sbomSource(name) {
			continue
		}
		source := filepath.Join(j.bin, f.Source)
		if in.Files[f.Source], err = os.ReadFile(source); errors.Is(err, fs.ErrNotExist) {
			return in, fmt.Errorf("%s is missing; run make build", source)
		} else if err != nil {
			return in, err
		}
	}
	reference := j.base
	if reference == "default" {
		reference = in.Recipe.Base
	}
	if _, ok := bases[reference]; !ok {
		if bases[reference], err = j.baseImage(ctx, reference); err != nil {
			return in, fmt.Errorf("base: %w", err)
		}
	}
	in.Base = bases[reference]
	return in, nil
}

func (j *job) recordFile(name string) string { return filepath.Join(j.cache, name+".json") }

// upToDate reports whether the planned image exists already.
func (j *job) upToDate(p plan) (result, bool) {
	data, err := os.ReadFile(j.recordFile(p.Name))
	if err != nil {
		return result{}, false
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.Key != p.Key {
		return result{}, false
	}
	sum, err := hash(r.Result.Archive)
	document, sbomErr := os.ReadFile(r.Result.SBOM)
	r.Result.Built = false
	return r.Result, err == nil && sbomErr == nil && sum == r.SHA256 && string(document) == string(p.SBOM)
}

// build builds an image, compares it with the plan, and moves it into place.
func (j *job) build(ctx context.Context, p plan, in inputs) (result, error) {
	r := result{
		Name: p.Name, Reference: p.Reference, Goal: goals[p.Name], Built: true, Arch: j.arch,
		Archive: filepath.Join(j.out, p.Name+".tar"), SBOM: filepath.Join(j.out, p.Name+".spdx.json"),
		BaseBytes: in.Base.Image.Bytes,
	}
	if err := j.buildah.load(ctx, in.Base.Archive); err != nil {
		return r, err
	}
	archive, err := j.buildah.build(ctx, in.Containerfile, p)
	if err != nil {
		return r, err
	}
	defer os.Remove(archive)
	image, err := readArchive(archive)
	if err != nil {
		return r, err
	}
	if err := p.compare(image, in.Recipe); err != nil {
		return r, fmt.Errorf("the image built by buildah differs from its SBOM: %w", err)
	}
	r.ID, r.Bytes = image.ID, image.Bytes
	sum, err := hash(archive)
	if err != nil {
		return r, err
	}
	// Remove the record first and write it last, so that it only describes existing files.
	if err := os.Remove(j.recordFile(p.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if err := errors.Join(os.Rename(archive, r.Archive), os.WriteFile(r.SBOM, p.SBOM, 0o644)); err != nil {
		return r, err
	}
	data, err := json.Marshal(record{Key: p.Key, SHA256: sum, Result: r})
	if err != nil {
		return r, err
	}
	return r, os.WriteFile(j.recordFile(p.Name), data, 0o644)
}

func readArchive(name string) (rootfs.Image, error) {
	image, err := rootfs.Read(func() (io.ReadCloser, error) { return os.Open(name) })
	if err != nil {
		return rootfs.Image{}, fmt.Errorf("%s: %w", name, err)
	}
	return image, nil
}

func hash(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// writeContext writes a build's context; modes are those of the Containerfile.
func writeContext(dir string, files map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
