package mirror

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpuready/gpuready/deployments/release/contents"
)

// Unpack unpacks an archive into a folder as a release for a registry, such as
// "registry.example.com/mirror". A repository keeps its path there, below that of the registry. It checks
// the digest of each blob.
func Unpack(archive io.Reader, dir, registry string) (contents.Release, error) {
	if !contents.Registry.MatchString(registry) {
		return contents.Release{}, fmt.Errorf("registry: %.100q is not a host and a path, as registry.example.com/mirror", registry)
	}
	to := filepath.Join(dir, contents.Layout)
	if err := os.MkdirAll(filepath.Join(to, blobsFolder), 0o755); err != nil {
		return contents.Release{}, err
	}
	seen := map[string]bool{}
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpackFile(h, in, to)
		}
		if err == nil && seen[h.Name] {
			err = errors.New("it is there twice")
		}
		if err != nil {
			return contents.Release{}, fmt.Errorf("archive: %w; copy it again", entryError(h, err))
		}
		seen[h.Name] = true
	}
	if !seen[indexFile] || !seen[layoutFile] {
		return contents.Release{}, fmt.Errorf("archive: it has no %s or %s; an archive of release mirror is required", indexFile, layoutFile)
	}
	r, err := readIndex(filepath.Join(to, indexFile), registry)
	if err != nil {
		return contents.Release{}, fmt.Errorf("archive: %s: %w", indexFile, err)
	}
	text, err := r.Bytes()
	if err != nil {
		return contents.Release{}, fmt.Errorf("archive: %s: %w", indexFile, err)
	}
	return r, os.WriteFile(filepath.Join(dir, contents.File), text, 0o644)
}

// entryError adds the name of an entry of an archive to an error.
func entryError(h *tar.Header, err error) error {
	if h == nil {
		return err
	}
	return fmt.Errorf("%.100q: %w", h.Name, err)
}

var blobName = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)

// maxIndex bounds the archive's index, in bytes.
const maxIndex = 4 << 20

func unpackFile(h *tar.Header, content io.Reader, to string) error {
	switch {
	case h.Typeflag == tar.TypeDir:
		return nil
	case h.Typeflag != tar.TypeReg:
		return errors.New("neither a file nor a folder")
	case isSparse(h): // a few bytes of an archive would fill the disk
		return errors.New("a sparse file")
	case h.Name == layoutFile || h.Name == indexFile:
		if h.Size > maxIndex {
			return fmt.Errorf("%d bytes; at most %d", h.Size, maxIndex)
		}
	case !blobName.MatchString(h.Name):
		return errors.New("an archive of a release has no such file")
	}
	f, err := os.OpenFile(filepath.Join(to, h.Name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	sum, _ := v1.Hasher("sha256") // no error: it is known
	_, err = io.Copy(io.MultiWriter(f, sum), content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	found := fmt.Sprintf("%x", sum.Sum(nil))
	if want, is := strings.CutPrefix(h.Name, blobsFolder); is && found != want {
		return fmt.Errorf("its digest is sha256:%s", found)
	}
	return nil
}

// isSparse reports whether a file has holes that the archive does not contain. The reader fills them.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// readIndex returns the release that an archive's index describes.
func readIndex(path, registry string) (contents.Release, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return contents.Release{}, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(text, &index); err != nil {
		return contents.Release{}, err
	}
	r := contents.Release{Schema: contents.Schema, Version: index.Annotations[version], Revision: index.Annotations[revision], Registry: registry}
	if r.Created, err = time.Parse(time.RFC3339, index.Annotations[created]); err != nil {
		return contents.Release{}, fmt.Errorf("annotation %s: %w", created, err)
	}
	for n, d := range index.Manifests {
		full := d.Annotations[reference]
		if full == "" {
			continue // a second name
		}
		at := strings.LastIndex(full, ":")
		_, path, found := strings.Cut(full[:max(at, 0)], "/")
		if !found {
			return contents.Release{}, fmt.Errorf("manifests[%d]: annotation %s: %.100q is not an image with a tag", n, reference, full)
		}
		r.Artifacts = append(r.Artifacts, contents.Artifact{
			Name: path, Kind: contents.Image, Tag: full[at+1:], Digest: d.Digest.String(), MediaType: string(d.MediaType), Size: d.Size,
		})
	}
	if len(r.Artifacts) == 0 {
		return contents.Release{}, errors.New("it names no images")
	}
	return r, nil
}
