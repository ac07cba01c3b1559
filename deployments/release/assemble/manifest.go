package assemble

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

var (
	// ownImage matches one of our images in a manifest.
	ownImage = regexp.MustCompile(`(image: |value: )("?)gpuready/([a-z-]+):(v[0-9A-Za-z.-]+)("?)`)
	// repositoryVariable matches the operator's variable with the repository of our images.
	repositoryVariable = regexp.MustCompile(`(?m)^( *)- \{ name: IMAGE_REPOSITORY, value: "gpuready" \}\n`)
)

// manifests returns the folder with the release's manifests.
func (b *builder) manifests() string { return filepath.Join(b.work, "manifests") }

// quickstart is the example that docs/install.md runs.
const quickstart = "examples/vectoradd.yaml"

// writeManifests writes the static manifests with the images of the release, by digest: each, and the
// quickstart's example, as a file of the release, and all, examples included, in an archive.
func (b *builder) writeManifests(context.Context) error {
	from := filepath.Join(b.Top, "deployments/static")
	top := "gpuready-" + b.Version
	var entries []rootfs.Entry
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(from, path)
		if d != nil && d.IsDir() && name != "." && name != "examples" {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = b.pin(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		to := filepath.Join(b.manifests(), name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		entries = append(entries, rootfs.Entry{Path: "/" + top + "/" + filepath.ToSlash(name), Mode: 0o644, Data: text})
		if name == filepath.Base(name) || filepath.ToSlash(name) == quickstart {
			if err := b.publish(filepath.Base(name), text); err != nil {
				return err
			}
		}
		return os.WriteFile(to, text, 0o644)
	})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := rootfs.WriteBase(&archive, entries, b.source.time); err != nil {
		return err
	}
	data, _, err := compress(archive.Bytes())
	if err != nil {
		return err
	}
	return b.publish("manifests-"+b.Version+".tar.gz", data)
}

// pin replaces our images in a manifest by those of the release.
func (b *builder) pin(text []byte) ([]byte, error) {
	var problem error
	text = ownImage.ReplaceAllFunc(text, func(match []byte) []byte {
		part := ownImage.FindSubmatch(match)
		name, version := string(part[3]), string(part[4])
		i := slices.IndexFunc(b.out.Artifacts, func(a contents.Artifact) bool { return a.Name == name })
		switch {
		case i < 0:
			problem = fmt.Errorf("%s: there is no image %s", match, name)
		case version != b.Version:
			problem = fmt.Errorf("%s: the release is %s: set the version first (docs/release.md)", match, b.Version)
		default:
			return fmt.Appendf(nil, "%s%s%s%s", part[1], part[2], b.out.Reference(b.out.Artifacts[i]), part[5])
		}
		return match
	})
	text = repositoryVariable.ReplaceAllFunc(text, func(match []byte) []byte {
		indent := repositoryVariable.FindSubmatch(match)[1]
		out := fmt.Appendf(nil, "%s- { name: IMAGE_REPOSITORY, value: %q }\n", indent, b.Registry)
		digests := b.digests()
		for _, name := range pinned {
			if name != "operator" {
				out = fmt.Appendf(out, "%s- { name: %s, value: %q }\n", indent, variable(name), b.Registry+"/"+name+"@"+digests[name])
			}
		}
		return out
	})
	if problem == nil && bytes.Contains(text, []byte(": gpuready/")) {
		problem = fmt.Errorf("an image of ours was not replaced: adapt ownImage")
	}
	return text, problem
}

// variable returns the operator's variable for an image: "RELATED_IMAGE_DEVICE_PLUGIN".
func variable(image string) string {
	return "RELATED_IMAGE_" + strings.ToUpper(strings.ReplaceAll(image, "-", "_"))
}
