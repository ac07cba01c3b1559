package assemble

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

const version = "v1.2.3"

// write writes a file below a folder, and the folders above it.
func write(t *testing.T, dir, name, text string, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
}

// git runs git in a folder, with times and names that do not depend on the machine.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		cmd.Env = append(cmd.Environ(), "GIT_"+who+"_NAME=n", "GIT_"+who+"_EMAIL=n@example.com", "GIT_"+who+"_DATE=2026-01-02T03:04:05Z")
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// chartScript imitates the program that makes charts: it puts the images into one.
const chartScript = `#!/bin/sh
set -e
mkdir -p "$3/gpuready" && cp "$2" "$3/gpuready/values.yaml"
printf 'name: gpuready\nversion: 1.2.3\ndescription: A chart\nhome: https://example.com\n' >"$3/gpuready/Chart.yaml"
tar --sort=name --owner=0 --group=0 --numeric-owner --mode=644 --mtime=@0 -cf - -C "$3" gpuready/Chart.yaml gpuready/values.yaml | gzip -n >"$3/gpuready-1.2.3.tgz"
rm -r "$3/gpuready"
`

// bundleScript imitates the program that makes bundles.
const bundleScript = `#!/bin/sh
set -e
[ "$1" = generate ] || exit 0
mkdir -p "$3/manifests" "$3/metadata" && cp "$2" "$3/manifests/csv.yaml"
printf 'annotations: { package: gpuready }\n' >"$3/metadata/annotations.yaml"
`

// opmScript imitates opm.
const opmScript = `#!/bin/sh
[ "$1" = validate ] || echo '{"schema": "olm.bundle", "name": "gpuready.v1.2.3", "relatedImages": [{"name": "operator", "image": "x"}]}'
`

// makeInputs writes what make would have built, and returns the options.
func makeInputs(t *testing.T) Options {
	t.Helper()
	top := t.TempDir()
	write(t, top, ".gitignore", "/bin/\n", 0o644)
	write(t, top, versionFile, version+"\n", 0o644)
	write(t, top, "LICENSE", "a licence\n", 0o644)
	for _, name := range locks {
		write(t, top, name, name+"\n", 0o644)
	}
	write(t, top, ".ci/helm/x", "", 0o644)
	write(t, top, ".ci/olm/x", "", 0o644)
	write(t, top, "deployments/static/gpuready.yaml", "image: gpuready/toolkit:v1.2.3\nvalue: \"gpuready/validator:v1.2.3\"\n", 0o644)
	write(t, top, "deployments/static/operator.yaml", "image: gpuready/operator:v1.2.3\n  - { name: IMAGE_REPOSITORY, value: \"gpuready\" }\n", 0o644)
	write(t, top, "deployments/static/examples/job.yaml", "image: gpuready/toolkit:v1.2.3\n", 0o644)
	write(t, top, "deployments/static/examples/vectoradd.yaml", "image: gpuready/validator:v1.2.3\n", 0o644)
	write(t, top, "deployments/static/parts/part.yaml", "image: gpuready/unknown:v1.2.3\n", 0o644)
	git(t, top, "init", "-q")
	git(t, top, "add", "-A")
	git(t, top, "commit", "-qm", "all")

	write(t, top, "bin/tools/chart", chartScript, 0o755)
	write(t, top, "bin/tools/bundle", bundleScript, 0o755)
	for _, arch := range architectures {
		write(t, top, "bin/catalog/"+arch+"/opm", opmScript, 0o755)
		write(t, top, "bin/catalog/"+arch+"/grpc_health_probe", "probe of "+arch, 0o755)
		write(t, top, "bin/images/"+arch+"/.cache/packages-"+arch+"/plan.json", `{"Packages": [{"Name": "libc6", "File": "libc6_2.36-9+deb12u1_`+arch+`.deb", "SHA256": "`+strings.Repeat("c", 64)+`"}]}`, 0o644)
		for _, name := range pinned {
			writeImage(t, filepath.Join(top, "bin/images", arch, name), name, arch, git(t, top, "rev-parse", "HEAD"))
		}
	}
	for _, platform := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"} {
		write(t, top, "bin/krew/kubectl-gpu-"+version+"-"+platform+".tar.gz", platform, 0o644)
	}
	write(t, top, "bin/krew/gpu.yaml", "kind: Plugin\n", 0o644)
	return Options{
		Version: version, Registry: "localhost:5000/gpu", Top: top, Out: filepath.Join(top, "bin/release", version), Images: filepath.Join(top, "bin/images"),
		Kubectl: filepath.Join(top, "bin/krew"), Programs: filepath.Join(top, "bin/tools"), Catalog: filepath.Join(top, "bin/catalog"),
		Builder: "https://example.com/builder", Logf: func(name, format string, args ...any) { t.Logf(name+": "+format, args...) },
	}
}

// writeImage writes an archive and an SBOM as make images does.
func writeImage(t *testing.T, path, title, arch, revision string) {
	t.Helper()
	image := empty.Image
	for _, text := range []string{"base " + arch, title + arch} {
		var layer bytes.Buffer
		require.NoError(t, rootfs.WriteBase(&layer, []rootfs.Entry{{Path: "/file", Mode: 0o644, Data: []byte(text)}}, epoch))
		var err error
		image, err = mutate.AppendLayers(image, static.NewLayer(layer.Bytes(), types.DockerUncompressedLayer))
		require.NoError(t, err)
	}
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config.Architecture, config.OS = arch, "linux"
	config.Config.Labels = map[string]string{annotationPrefix + "title": title, annotationPrefix + "version": version, annotationPrefix + "revision": revision, "other": "label"}
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	tag, err := name.NewTag("docker.io/gpuready/" + title + ":" + version)
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(path+".tar", tag, image))
	require.NoError(t, os.WriteFile(path+".spdx.json", []byte("{}"), 0o644))
}

var epoch = time.Unix(0, 0)

// readAll returns the content of every file of a release by name, but for those of the run.
func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == contents.RunFile {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(data)
		return err
	}))
	return all
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	one, two := makeInputs(t), makeInputs(t)
	_, err := Build(t.Context(), one)
	require.NoError(t, err)
	_, err = Build(t.Context(), two)
	require.NoError(t, err)
	require.Equal(t, readAll(t, one.Out), readAll(t, two.Out))
}

func TestAReleaseIsWhole(t *testing.T) {
	o := makeInputs(t)
	r, err := Build(t.Context(), o)
	require.NoError(t, err)
	read, err := contents.Read(o.Out)
	require.NoError(t, err)
	require.Equal(t, r, read)
	_, err = contents.ReadRun(o.Out)
	require.NoError(t, err)
	require.Equal(t, git(t, o.Top, "rev-parse", "HEAD"), r.Revision)
	require.Equal(t, "2026-01-02T03:04:05Z", r.Created.Format(time.RFC3339))

	path, err := layout.FromPath(filepath.Join(o.Out, contents.Layout))
	require.NoError(t, err)
	kinds := map[contents.Kind]int{}
	for _, a := range r.Artifacts {
		kinds[a.Kind]++
		digest, err := v1.NewHash(a.Digest)
		require.NoError(t, err)
		if a.Kind == contents.Chart {
			require.Equal(t, "charts/gpuready:1.2.3", a.Name+":"+a.Tag)
			continue
		}
		require.Equal(t, version, a.Tag)
		root, err := path.ImageIndex()
		require.NoError(t, err)
		index, err := root.ImageIndex(digest)
		require.NoError(t, err)
		require.NoError(t, validate.Index(index), a.Name)
		m, err := index.IndexManifest()
		require.NoError(t, err)
		require.Equal(t, version, m.Annotations[annotationPrefix+"version"])
		require.NotContains(t, m.Annotations, "other")
		require.Len(t, m.Manifests, 2)
		for i, arch := range architectures {
			require.Equal(t, "linux/"+arch, a.Platforms[i].Platform)
			require.Equal(t, a.Platforms[i].Digest, m.Manifests[i].Digest.String())
			require.FileExists(t, filepath.Join(o.Out, contents.SBOMs, a.Platforms[i].SBOM))
			image, err := index.Image(m.Manifests[i].Digest)
			require.NoError(t, err)
			config, err := image.ConfigFile()
			require.NoError(t, err)
			require.Equal(t, arch, config.Architecture)
		}
	}
	require.Equal(t, map[contents.Kind]int{contents.Image: len(pinned), contents.Chart: 1, contents.Bundle: 1, contents.Catalog: 1}, kinds)
	require.Contains(t, fmt.Sprint(r.Materials), "/libc6@2.36-9%2Bdeb12u1?arch=arm64")

	sums := exec.CommandContext(t.Context(), "sha256sum", "-c", "--strict", contents.Sums)
	sums.Dir = filepath.Join(o.Out, contents.Files)
	out, err := sums.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, len(r.Files), strings.Count(string(out), ": OK"))
}

// reference returns the name by digest of an artifact.
func reference(t *testing.T, r contents.Release, name string) string {
	t.Helper()
	for _, a := range r.Artifacts {
		if a.Name == name {
			return r.Reference(a)
		}
	}
	require.Fail(t, name)
	return ""
}

func TestEverythingNamesTheImagesByDigest(t *testing.T) {
	o := makeInputs(t)
	r, err := Build(t.Context(), o)
	require.NoError(t, err)
	files := readAll(t, filepath.Join(o.Out, contents.Files))
	require.Equal(t, "image: "+reference(t, r, "toolkit")+"\nvalue: \""+reference(t, r, "validator")+"\"\n", files["gpuready.yaml"])
	operator := files["operator.yaml"]
	require.Contains(t, operator, "image: "+reference(t, r, "operator")+"\n")
	require.Contains(t, operator, "  - { name: IMAGE_REPOSITORY, value: \"localhost:5000/gpu\" }\n")
	require.Contains(t, operator, "  - { name: RELATED_IMAGE_DEVICE_PLUGIN, value: \""+reference(t, r, "device-plugin")+"\" }\n")
	require.NotContains(t, operator, "RELATED_IMAGE_OPERATOR")
	inArchive := unpack(t, []byte(files["manifests-"+version+".tar.gz"]))
	require.Equal(t, "image: "+reference(t, r, "toolkit")+"\n", inArchive["gpuready-v1.2.3/examples/job.yaml"])
	require.Equal(t, operator, inArchive["gpuready-v1.2.3/operator.yaml"])
	require.NotContains(t, inArchive, "gpuready-v1.2.3/parts/part.yaml")
	require.Equal(t, "image: "+reference(t, r, "validator")+"\n", files["vectoradd.yaml"], "the quickstart downloads it")
	require.NotContains(t, files, "job.yaml")

	var images struct {
		Registry, Version string
		Digests           map[string]string
	}
	require.NoError(t, json.Unmarshal([]byte(unpack(t, []byte(files["gpuready-1.2.3.tgz"]))["gpuready/values.yaml"]), &images))
	require.Equal(t, "localhost:5000/gpu", images.Registry)
	require.Len(t, images.Digests, len(pinned))
	require.Equal(t, reference(t, r, "toolkit"), "localhost:5000/gpu/toolkit@"+images.Digests["toolkit"])

	bundle, catalog := layerOf(t, o, r, "bundle"), layerOf(t, o, r, "catalog")
	require.Equal(t, operator, bundle["manifests/csv.yaml"])
	require.Contains(t, catalog["configs/gpuready/catalog.json"], `"image":"`+reference(t, r, "bundle")+`"`)
	require.Contains(t, catalog["configs/gpuready/catalog.json"], `{"name":"gpuready.v1.2.3","skipRange":"<1.2.3"}`)
	require.Equal(t, "probe of amd64", catalog["bin/grpc_health_probe"])
}

// unpack returns the files of a compressed archive.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	all, files := map[string]string{}, tar.NewReader(unzipped)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		data, err := io.ReadAll(files)
		require.NoError(t, err)
		all[h.Name] = string(data)
	}
}

// layerOf returns the files in the only layer of an artifact's image for amd64.
func layerOf(t *testing.T, o Options, r contents.Release, name string) map[string]string {
	t.Helper()
	blob := func(digest string) []byte {
		data, err := os.ReadFile(filepath.Join(o.Out, contents.Layout, "blobs/sha256", strings.TrimPrefix(digest, "sha256:")))
		require.NoError(t, err)
		return data
	}
	for _, a := range r.Artifacts {
		if a.Name == name {
			var m v1.Manifest
			require.NoError(t, json.Unmarshal(blob(a.Platforms[0].Digest), &m))
			require.Len(t, m.Layers, 1)
			return unpack(t, blob(m.Layers[0].Digest.String()))
		}
	}
	require.Fail(t, name)
	return nil
}

func TestInputsThatDoNotFitAreRefused(t *testing.T) {
	for says, change := range map[string]func(*Options){
		"changes that are not committed (LICENSE): commit them": func(o *Options) { write(t, o.Top, "LICENSE", "another", 0o644) },
		"not committed (new.yaml)":                              func(o *Options) { write(t, o.Top, "new.yaml", "", 0o644) },
		"run make set-version VERSION=v1.2.4":                   func(o *Options) { o.Version = "v1.2.4" },
		"registry \"https://x\"":                                func(o *Options) { o.Registry = "https://x" },
		"its revision is":                                       func(o *Options) { git(t, o.Top, "commit", "-q", "--allow-empty", "-m", "later") },
		"arm64 has other images":                                func(o *Options) { require.NoError(t, os.Remove(filepath.Join(o.Images, "arm64/toolkit.tar"))) },
		"gpuready/unknown:v1.2.3: there is no image unknown": func(o *Options) {
			write(t, o.Top, "deployments/static/new.yaml", "image: gpuready/unknown:v1.2.3\n", 0o644)
			o.AllowDirty = true
			for _, arch := range architectures {
				for _, name := range pinned {
					writeImage(t, filepath.Join(o.Images, arch, name), name, arch, git(t, o.Top, "rev-parse", "HEAD")+"-dirty")
				}
			}
		},
	} {
		o := makeInputs(t)
		change(&o)
		_, err := Build(t.Context(), o)
		require.ErrorContains(t, err, says)
		require.NoDirExists(t, o.Out, "nothing is left")
		require.NoDirExists(t, o.Out+".new")
	}
}

func TestTheSameReleaseKeepsItsSignatures(t *testing.T) {
	o := makeInputs(t)
	r, err := Build(t.Context(), o)
	require.NoError(t, err)
	before, err := contents.ReadRun(o.Out)
	require.NoError(t, err)
	write(t, o.Out, contents.Signatures+"/x", "signature", 0o644)
	write(t, o.Out, contents.Files+"/stray", "", 0o644)
	// A damaged blob is made anew. It is the cache's file, too.
	blob := filepath.Join(o.Out, contents.Layout, "blobs/sha256")
	for _, f := range listFiles(t, blob) {
		write(t, blob, f, "damaged", 0o644)
	}
	attached := sha256.Sum256([]byte("attached"))
	write(t, blob, hex.EncodeToString(attached[:]), "attached", 0o644)
	again, err := Build(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, r, again)
	after, err := contents.ReadRun(o.Out)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.FileExists(t, filepath.Join(o.Out, contents.Signatures, "x"))
	require.NoFileExists(t, filepath.Join(o.Out, contents.Files, "stray"))
	require.FileExists(t, filepath.Join(blob, hex.EncodeToString(attached[:])), "release sign wrote it")
	for _, f := range listFiles(t, blob) {
		sum, err := hashFile(filepath.Join(blob, f))
		require.NoError(t, err)
		require.Equal(t, f, sum)
	}

	// A run that is killed while the folder has no name loses no signature.
	require.NoError(t, os.Rename(o.Out, o.Out+".old"))
	write(t, o.Out+".new", contents.File, "{", 0o644)
	_, err = Build(t.Context(), o)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(o.Out, contents.Signatures, "x"))
	require.NoDirExists(t, o.Out+".old")
	after, err = contents.ReadRun(o.Out)
	require.NoError(t, err)
	require.Equal(t, before, after)

	o.Registry = "localhost:5000/other"
	_, err = Build(t.Context(), o)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(o.Out, contents.Signatures, "x"), "another release has other signatures")
}

// TestAKilledRunLosesNoSignature fails the last step of a run, after it has taken over the signatures.
func TestAKilledRunLosesNoSignature(t *testing.T) {
	o := makeInputs(t)
	_, err := Build(t.Context(), o)
	require.NoError(t, err)
	write(t, o.Out, contents.Signatures+"/x", "signature", 0o644)
	b, err := newBuilder(t.Context(), o)
	require.NoError(t, err)
	defer b.layers.close()
	require.NoError(t, b.keepSigned())
	require.FileExists(t, filepath.Join(b.stage, contents.Signatures, "x"))
	require.FileExists(t, filepath.Join(b.stage, contents.RunFile))
	require.FileExists(t, filepath.Join(o.Out, contents.Signatures, "x"))
	require.FileExists(t, filepath.Join(o.Out, contents.RunFile))
}

func TestAnExperimentIsNotDescribedAsACommit(t *testing.T) {
	o := makeInputs(t)
	write(t, o.Top, "LICENSE", "another", 0o644)
	o.AllowDirty = true
	for _, arch := range architectures {
		for _, name := range pinned {
			writeImage(t, filepath.Join(o.Images, arch, name), name, arch, git(t, o.Top, "rev-parse", "HEAD")+"-dirty")
		}
	}
	r, err := Build(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, "source, with changes that are not committed", r.Materials[0].Name)
}

func listFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTwoRunsAtOnceAreRefused(t *testing.T) {
	o := makeInputs(t)
	other, err := newCache(filepath.Join(filepath.Dir(o.Out), ".cache"))
	require.NoError(t, err)
	_, err = Build(t.Context(), o)
	require.ErrorContains(t, err, "another release is being made in this folder")
	other.close()
	_, err = Build(t.Context(), o)
	require.NoError(t, err)
}
