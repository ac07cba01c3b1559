package assemble

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// bundleDir returns the folder with the files of the bundle.
func (b *builder) bundleDir() string { return filepath.Join(b.work, "bundle") }

// addBundle makes the bundle for the Operator Lifecycle Manager, and adds its image. It holds files
// only, so the images of all architectures have the same layer.
func (b *builder) addBundle(ctx context.Context) error {
	program, dir := filepath.Join(b.Programs, "bundle"), filepath.Join(b.Top, ".ci/olm")
	if _, err := run(ctx, dir, program, "generate", filepath.Join(b.manifests(), "operator.yaml"), b.bundleDir()); err != nil {
		return err
	}
	if out, err := run(ctx, dir, program, "validate", b.bundleDir()); err != nil {
		return fmt.Errorf("%w %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(b.bundleDir(), "metadata/annotations.yaml"))
	if err != nil {
		return err
	}
	var metadata struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := yaml.UnmarshalStrict(text, &metadata); err != nil {
		return fmt.Errorf("metadata/annotations.yaml: %w", err)
	}
	labels := b.labels("bundle", "The bundle of gpuready for the Operator Lifecycle Manager")
	maps.Copy(labels, metadata.Annotations)
	var entries []rootfs.Entry
	for _, name := range []string{"manifests", "metadata"} {
		below, err := readEntries(filepath.Join(b.bundleDir(), name), "/"+name)
		if err != nil {
			return err
		}
		entries = append(entries, below...)
	}
	var parts []part
	for _, arch := range architectures {
		p, err := b.assemble("bundle", arch, v1.Config{Labels: labels}, entries)
		if err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
		parts = append(parts, p)
	}
	return b.addIndex("bundle", contents.Bundle, parts)
}

// addCatalog adds the image of a catalog with the bundle. It serves the catalog by itself, as the
// Operator Lifecycle Manager expects, which queries it with grpc_health_probe.
func (b *builder) addCatalog(ctx context.Context) error {
	catalog, err := b.makeCatalog(ctx)
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	licence, err := os.ReadFile(filepath.Join(b.Top, "LICENSE"))
	if err != nil {
		return err
	}
	labels := b.labels("catalog", "A catalog with the bundle of gpuready for the Operator Lifecycle Manager")
	labels["operators.operatorframework.io.index.configs.v1"] = "/configs"
	var parts []part
	for _, arch := range architectures {
		programs, err := readEntries(filepath.Join(b.Catalog, arch), "/bin")
		if err != nil {
			return err
		}
		for i := range programs {
			programs[i].Mode = 0o755
		}
		p, err := b.assemble("catalog", arch, v1.Config{
			Labels: labels, User: "1001:0", Env: []string{"PATH=/bin"}, WorkingDir: "/tmp",
			ExposedPorts: map[string]struct{}{"50051/tcp": {}},
			Entrypoint:   []string{"/bin/opm"},
			Cmd:          []string{"serve", "/configs", "--cache-dir=/tmp/cache", "--cache-enforce-integrity=false", "--pprof-addr="},
		}, append(programs,
			rootfs.Entry{Path: "/configs/gpuready/catalog.json", Mode: 0o644, Data: catalog},
			rootfs.Entry{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/sbin/nologin\ncatalog:x:1001:0:catalog:/tmp:/sbin/nologin\n")},
			rootfs.Entry{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			rootfs.Entry{Path: "/usr/share/doc/gpuready/LICENSE", Mode: 0o644, Data: licence},
		))
		if err != nil {
			return fmt.Errorf("catalog: %w", err)
		}
		parts = append(parts, p)
	}
	return b.addIndex("catalog", contents.Catalog, parts)
}

// makeCatalog returns the file-based catalog: opm renders the bundle, which gets the name of its image.
func (b *builder) makeCatalog(ctx context.Context) ([]byte, error) {
	opm := filepath.Join(b.Catalog, runtime.GOARCH, "opm")
	out, err := run(ctx, b.work, opm, "render", b.bundleDir(), "-o", "json")
	if err != nil {
		return nil, err
	}
	image := b.out.Reference(b.out.Artifacts[len(b.out.Artifacts)-1])
	bare := strings.TrimPrefix(b.Version, "v")
	blobs := []map[string]any{
		{"schema": "olm.package", "name": "gpuready", "defaultChannel": "stable"},
		{"schema": "olm.channel", "package": "gpuready", "name": "stable", "entries": []any{
			// It takes the place of any older version, which the catalog need not have.
			map[string]any{"name": "gpuready." + b.Version, "skipRange": "<" + bare},
		}},
	}
	rendered := json.NewDecoder(strings.NewReader(out))
	for {
		var blob map[string]any
		if err := rendered.Decode(&blob); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("opm render: %w", err)
		}
		if blob["schema"] == "olm.bundle" {
			if blob["name"] != "gpuready."+b.Version {
				return nil, fmt.Errorf("the bundle is %v, and the release %s: set the version first (docs/release.md)", blob["name"], b.Version)
			}
			related, _ := blob["relatedImages"].([]any)
			blob["image"], blob["relatedImages"] = image, append(related, map[string]any{"name": "", "image": image})
		}
		blobs = append(blobs, blob)
	}
	var catalog bytes.Buffer
	encoder := json.NewEncoder(&catalog)
	encoder.SetEscapeHTML(false)
	for _, blob := range blobs {
		if err := encoder.Encode(blob); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(b.work, "catalog")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "catalog.json"), catalog.Bytes(), 0o644)); err != nil {
		return nil, err
	}
	_, err = run(ctx, b.work, opm, "validate", dir)
	return catalog.Bytes(), err
}

// labels returns the labels of an image.
func (b *builder) labels(title, description string) map[string]string {
	return map[string]string{
		annotationPrefix + "title": "gpuready " + title, annotationPrefix + "description": description,
		annotationPrefix + "source": repositoryURL, annotationPrefix + "licenses": "Apache-2.0",
		annotationPrefix + "version": b.Version, annotationPrefix + "revision": b.revision(),
	}
}

// assemble puts an image of one layer into the layout: the entries, and the SBOM.
func (b *builder) assemble(name, arch string, config v1.Config, entries []rootfs.Entry) (part, error) {
	tree := rootfs.Tree{}
	for _, e := range entries {
		if e.Mode.IsRegular() {
			f, err := rootfs.Regular(e.Path, e.Mode, e.Data)
			if err != nil {
				return part{}, err
			}
			tree[e.Path] = f
		}
	}
	sbom, err := rootfs.SBOM(rootfs.Description{Name: name, Version: b.Version, Revision: b.revision(), Arch: arch, Tree: tree, At: b.source.time})
	if err != nil {
		return part{}, err
	}
	var layer bytes.Buffer
	all := append(slices.Clip(entries), rootfs.Entry{Path: rootfs.SBOMPath(name), Mode: 0o644, Data: sbom})
	if err := rootfs.WriteBase(&layer, all, b.source.time); err != nil {
		return part{}, err
	}
	content, _, err := v1.SHA256(bytes.NewReader(layer.Bytes()))
	if err != nil {
		return part{}, err
	}
	d, err := b.layers.add(b.oci, content, func() (io.ReadCloser, error) { return io.NopCloser(&layer), nil })
	if err != nil {
		return part{}, err
	}
	created := v1.Time{Time: b.source.time}
	text, err := json.Marshal(v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: created, Config: config,
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{content}},
		History: []v1.History{{Created: created, CreatedBy: "release build"}},
	})
	if err != nil {
		return part{}, err
	}
	return b.putImage(arch, text, []v1.Descriptor{d}, config.Labels, sbom)
}

// readEntries returns the files of a folder as entries below a path.
func readEntries(dir, below string) ([]rootfs.Entry, error) {
	var entries []rootfs.Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		entries = append(entries, rootfs.Entry{Path: below + "/" + filepath.ToSlash(name), Mode: 0o644, Data: data})
		return err
	})
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("%s is empty: run make release", dir)
	}
	return entries, err
}
