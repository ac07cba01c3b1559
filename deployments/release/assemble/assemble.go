// Package assemble makes the folder of a release, as package contents describes it, from what `make`
// built: images, the programs that make chart and bundle, kubectl-gpu, the static manifests.
//
// The same inputs give the same bytes: archives are sorted and have the commit's time or none, and
// nothing depends on the clock or on where the folders are. A release is made beside its place and
// moved there when it is complete.
package assemble

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Options are the inputs.
type Options struct {
	Version  string // "v0.2.0"
	Registry string // where the release will be pushed: "registry.example.com/gpuready"
	Top      string // the repository's folder
	Out      string // the folder to make
	Images   string // has a folder for each architecture, with archives and SBOMs of images
	Kubectl  string // has the archives of kubectl-gpu, and krew's manifest
	Programs string // has chart and bundle, which make these
	Catalog  string // has a folder for each architecture, with the programs of a catalog's image
	// AllowDirty accepts changes that are not committed. The release then names a commit that it
	// was not made of: it is for experiments.
	AllowDirty bool
	Builder    string // who builds: a URI
	RunID      string // of the CI system's run; "": made of the time
	Logf       func(name, format string, args ...any)
	// Tools returns the Debian packages of the programs that build for an architecture, which are
	// recorded as materials; it may be nil.
	Tools func(ctx context.Context, arch string) ([]string, error)
}

// architectures lists the architectures of every image.
var architectures = []string{"amd64", "arm64"}

// pinned lists the images that chart and bundle name by digest: the operator, and what it deploys.
var pinned = []string{"device-plugin", "dra-driver", "driver-simulator", "operator", "toolkit", "validator"}

// builder is one run.
type builder struct {
	Options
	source source
	stage  string // where the release is made
	work   string // for intermediate files
	layers *cache
	oci    *store
	out    contents.Release
}

// Build makes a release, and returns its contents.
func Build(ctx context.Context, o Options) (contents.Release, error) {
	began := time.Now()
	b, err := newBuilder(ctx, o)
	if err != nil {
		return contents.Release{}, err
	}
	defer b.layers.close()
	defer os.RemoveAll(b.stage)
	defer os.RemoveAll(b.work)
	for _, step := range []func(context.Context) error{
		b.addImages, b.writeManifests, b.addChart, b.addBundle, b.addCatalog, b.addKubectl, b.addMaterials, b.finish,
	} {
		if err := step(ctx); err != nil {
			return contents.Release{}, err
		}
	}
	return b.out, b.replace(began)
}

// Check returns an error if no release can be made of the source as it is.
func Check(ctx context.Context, o Options) error {
	_, err := checkSource(ctx, o)
	return err
}

// checkSource returns the state of the source of a release.
func checkSource(ctx context.Context, o Options) (source, error) {
	if !contents.Version.MatchString(o.Version) {
		return source{}, fmt.Errorf("version %q: a semantic version such as v1.2.3 is required", o.Version)
	}
	if !contents.Registry.MatchString(o.Registry) {
		return source{}, fmt.Errorf("registry %q: host and path are required, such as registry.example.com/gpuready", o.Registry)
	}
	path := filepath.Join(o.Top, versionFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return source{}, err
	}
	if version := strings.TrimSpace(string(text)); version != o.Version {
		return source{}, fmt.Errorf("%s is %s, and the release %s: run make set-version VERSION=%[3]s and commit", path, version, o.Version)
	}
	s, err := readSource(ctx, o.Top)
	if err != nil {
		return source{}, err
	}
	if len(s.changes) > 0 && !o.AllowDirty {
		return source{}, fmt.Errorf("%s has changes that are not committed (%s): commit them, or give --allow-dirty for an experiment",
			o.Top, strings.Join(s.changes[:min(len(s.changes), 5)], ", "))
	}
	return s, nil
}

// versionFile has the version of the source.
const versionFile = "internal/version/VERSION"

func newBuilder(ctx context.Context, o Options) (*builder, error) {
	for _, path := range []*string{&o.Top, &o.Out, &o.Images, &o.Kubectl, &o.Programs, &o.Catalog} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	b := &builder{Options: o, stage: o.Out + ".new", work: o.Out + ".work"}
	var err error
	if b.source, err = checkSource(ctx, o); err != nil {
		return nil, err
	}
	if b.layers, err = newCache(filepath.Join(filepath.Dir(o.Out), ".cache")); err != nil {
		return nil, err
	}
	if err := b.restore(); err != nil {
		return nil, err
	}
	for _, dir := range []string{b.stage, b.work} {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{contents.SBOMs, contents.Files, contents.Signatures} {
		if err := os.MkdirAll(filepath.Join(b.stage, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if b.oci, err = newStore(filepath.Join(b.stage, contents.Layout)); err != nil {
		return nil, err
	}
	b.out = contents.Release{
		Schema: contents.Schema, Version: o.Version, Revision: b.source.commit, Created: b.source.time, Registry: o.Registry,
	}
	return b, os.MkdirAll(b.work, 0o755)
}

// revision returns what the images have as their revision.
func (b *builder) revision() string {
	if len(b.source.changes) > 0 {
		return b.source.commit + "-dirty"
	}
	return b.source.commit
}

// digests returns the digests of the pinned images, by name.
func (b *builder) digests() map[string]string {
	all := map[string]string{}
	for _, a := range b.out.Artifacts {
		if a.Kind == contents.Image && slices.Contains(pinned, a.Name) {
			all[a.Name] = a.Digest
		}
	}
	return all
}

// writeImages writes the file from which the chart is made, and returns its path.
func (b *builder) writeImages() (string, error) {
	data, err := json.Marshal(map[string]any{"registry": b.Registry, "version": b.Version, "digests": b.digests()})
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.work, "images.json")
	return path, os.WriteFile(path, data, 0o644)
}

// publish writes a file that is published beside the registry.
func (b *builder) publish(name string, data []byte) error {
	return os.WriteFile(filepath.Join(b.stage, contents.Files, name), data, 0o644)
}

// finish lists and sums the files, and writes release.json.
func (b *builder) finish(context.Context) error {
	dir := filepath.Join(b.stage, contents.Files)
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		blob := contents.Blob{Name: f.Name(), SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
		b.out.Files = append(b.out.Files, blob)
		fmt.Fprintf(&sums, "%s  %s\n", blob.SHA256, blob.Name)
	}
	if err := b.publish(contents.Sums, []byte(sums.String())); err != nil {
		return err
	}
	if err := errors.Join(b.oci.close(), b.layers.prune()); err != nil {
		return err
	}
	text, err := b.out.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.stage, contents.File), text, 0o644)
}

// keepBlobs links the blobs into the new layout that only the old one has: release sign wrote them.
func (b *builder) keepBlobs() error {
	const below = contents.Layout + "/blobs/sha256"
	blobs, err := os.ReadDir(filepath.Join(b.Out, below))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, blob := range blobs {
		to := filepath.Join(b.stage, below, blob.Name())
		if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
			if err := os.Link(filepath.Join(b.Out, below, blob.Name()), to); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepSigned copies the signatures and the run of the same release. Nothing is taken away from the old
// folder: signatures that were published cannot be made again, and a run may be killed here.
func (b *builder) keepSigned() error {
	if err := b.keepBlobs(); err != nil {
		return err
	}
	to := filepath.Join(b.stage, contents.Signatures)
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(filepath.Join(b.Out, contents.Signatures))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := os.Link(filepath.Join(b.Out, contents.RunFile), filepath.Join(b.stage, contents.RunFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// before returns the path of the release that is replaced, while its folder has no name.
func (b *builder) before() string { return b.Out + ".old" }

// restore gives the folder of a release its name again, if a run was killed when it had none.
func (b *builder) restore() error {
	if _, err := os.Stat(b.Out); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(b.before(), b.Out); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace moves the release to its place. If the same release is there already, its signatures and
// its run are kept.
func (b *builder) replace(began time.Time) error {
	before, err := os.ReadFile(filepath.Join(b.Out, contents.File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := b.out.Bytes()
	if err != nil {
		return err
	}
	same := string(before) == string(text)
	if same {
		if err := b.keepSigned(); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(b.stage, contents.RunFile)); errors.Is(err, fs.ErrNotExist) {
		run := contents.Run{ID: b.RunID, Builder: b.Builder, Started: began.UTC(), Finished: time.Now().UTC()}
		if run.ID == "" {
			run.ID = b.Version + "-" + began.UTC().Format("20060102T150405.000000000Z")
		}
		if err := contents.WriteRun(b.stage, run); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.before()); err != nil {
		return err
	}
	if err := os.Rename(b.Out, b.before()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(b.stage, b.Out); err != nil {
		return err
	}
	if err := os.RemoveAll(b.before()); err != nil {
		return err
	}
	state := "is made"
	if same {
		state = "is as before"
	}
	b.Logf("release", "%s %s: %d artifacts, %d files", b.Out, state, len(b.out.Artifacts), len(b.out.Files))
	return nil
}
