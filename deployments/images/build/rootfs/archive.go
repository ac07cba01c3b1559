package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is an image in the format of `docker save` and buildah's docker-archive.
type Image struct {
	ID     string // the SHA-256 of its configuration
	Names  []string
	Config v1.ConfigFile
	Bytes  int64 // of the layers, uncompressed
	Tree   Tree
}

// Read reads an archive that holds one image.
func Read(archive tarball.Opener) (Image, error) {
	manifest, err := tarball.LoadManifest(archive)
	if err != nil {
		return Image{}, fmt.Errorf("manifest.json: %w; is it a docker-archive?", err)
	}
	image, err := tarball.Image(archive, nil)
	if err != nil {
		return Image{}, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return Image{}, err
	}
	id, err := image.ConfigName()
	if err != nil {
		return Image{}, err
	}
	read := Image{ID: id.String(), Names: manifest[0].RepoTags, Config: *config}
	layers, err := image.Layers()
	if err != nil {
		return Image{}, err
	}
	for _, l := range layers {
		n, err := size(l)
		if err != nil {
			return Image{}, err
		}
		read.Bytes += n
	}
	read.Tree, err = Extract(image)
	return read, err
}

// Extract reads the file system of an image.
func Extract(image v1.Image) (Tree, error) {
	files := mutate.Extract(image)
	defer files.Close()
	return readTree(files)
}

// size returns the uncompressed size of a layer.
func size(l v1.Layer) (int64, error) {
	data, err := l.Uncompressed()
	if err != nil {
		return 0, err
	}
	defer data.Close()
	return io.Copy(io.Discard, data)
}

// readTree reads a file system from a tar archive.
func readTree(files io.Reader) (Tree, error) {
	t, links := Tree{}, map[string]string{}
	in := tar.NewReader(files)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean("/" + h.Name)
		switch {
		case name == "/":
		case h.Typeflag == tar.TypeLink: // its target may follow
			links[name] = path.Clean("/" + h.Linkname)
		default:
			if t[name], err = readFile(name, h, in); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for name, target := range links {
		for range links { // of a chain of links, which may be a circle
			next, isLink := links[target]
			if !isLink {
				break
			}
			target = next
		}
		f, found := t[target]
		if _, isLink := links[target]; isLink || !found {
			return nil, fmt.Errorf("%s: a hard link to %s, which is missing", name, target)
		}
		t[name] = f
	}
	return t, nil
}

func readFile(name string, h *tar.Header, r io.Reader) (File, error) {
	f := File{Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid}
	switch {
	case f.Mode.Type() == fs.ModeSymlink:
		f.Link = h.Linkname
	case f.Mode.IsRegular():
		data, err := io.ReadAll(r)
		if err != nil {
			return File{}, err
		}
		full, err := Regular(name, f.Mode, data)
		full.UID, full.GID = f.UID, f.GID
		return full, err
	}
	return f, nil
}
