package assemble

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Media types of charts in registries (https://helm.sh/docs/topics/registries/).
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// addChart makes the chart with the digests of the images, and adds it as an artifact and as a file.
func (b *builder) addChart(ctx context.Context) error {
	images, err := b.writeImages()
	if err != nil {
		return err
	}
	dir := filepath.Join(b.work, "chart")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, filepath.Join(b.Top, ".ci/helm"), filepath.Join(b.Programs, "chart"), "package", images, dir); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("chart: one archive expected in %s, not %d: %w", dir, len(files), err)
	}
	archive, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	metadata, err := readMetadata(archive)
	if err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	tag := strings.TrimPrefix(b.Version, "v")
	if metadata["version"] != tag {
		return fmt.Errorf("the chart has version %v, and the release %s: set the version first (docs/release.md)", metadata["version"], tag)
	}
	config, err := b.oci.putJSON(metadata, chartConfig)
	if err != nil {
		return err
	}
	layer, err := b.oci.put(archive, chartContent)
	if err != nil {
		return err
	}
	d, err := b.oci.putJSON(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: []v1.Descriptor{layer},
		Annotations: map[string]string{
			annotationPrefix + "title": fmt.Sprint(metadata["name"]), annotationPrefix + "version": tag,
			annotationPrefix + "description": fmt.Sprint(metadata["description"]), annotationPrefix + "url": fmt.Sprint(metadata["home"]),
			annotationPrefix + "source": repositoryURL, annotationPrefix + "licenses": "Apache-2.0",
			annotationPrefix + "revision": b.revision(), annotationPrefix + "created": b.source.time.Format(time.RFC3339),
		},
	}, types.OCIManifestSchema1)
	if err != nil {
		return err
	}
	b.addArtifact(contents.Artifact{Name: "charts/" + fmt.Sprint(metadata["name"]), Kind: contents.Chart, Tag: tag, MediaType: string(types.OCIManifestSchema1)}, d)
	return b.publish(filepath.Base(files[0]), archive)
}

// readMetadata returns the content of Chart.yaml in a chart's archive.
func readMetadata(archive []byte) (map[string]any, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	files := tar.NewReader(unzipped)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it has no Chart.yaml")
		}
		if err != nil {
			return nil, err
		}
		if path.Base(h.Name) != "Chart.yaml" || strings.Count(h.Name, "/") != 1 {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(files, 1<<20))
		if err != nil {
			return nil, err
		}
		var metadata map[string]any
		data, err := yaml.YAMLToJSON(text)
		if err == nil {
			err = json.Unmarshal(data, &metadata)
		}
		return metadata, err
	}
}

const repositoryURL = "https://github.com/gpuready/gpuready"
