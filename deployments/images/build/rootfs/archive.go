package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Image is an image in the format of `docker save` and buildah's docker-archive.
type Image struct {
	ID     string // the SHA-256 of its configuration
	Names  []string
	Config Config
	Layers []int64 // bytes, uncompressed
	Tree   Tree
}

// Config is the used part of an image's configuration.
type Config struct {
	Architecture string `json:"architecture"`
	Config       struct {
		User       string            `json:"User"`
		Entrypoint []string          `json:"Entrypoint"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Size returns its uncompressed size on disk in bytes.
func (i Image) Size() int64 {
	var n int64
	for _, l := range i.Layers {
		n += l
	}
	return n
}

const maxArchive = 1 << 30 // since it is held in memory

// Read reads an archive that holds one image.
func Read(r io.Reader) (Image, error) {
	parts, err := members(r)
	if err != nil {
		return Image{}, err
	}
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(parts["manifest.json"], &manifest); err != nil {
		return Image{}, fmt.Errorf("manifest.json: %w; is it a docker-archive?", err)
	}
	if len(manifest) != 1 {
		return Image{}, fmt.Errorf("manifest.json: it has %d images, not one", len(manifest))
	}
	m := manifest[0]
	image := Image{Names: m.RepoTags, Tree: Tree{}}
	config := parts[path.Clean(m.Config)]
	if err := json.Unmarshal(config, &image.Config); err != nil {
		return Image{}, fmt.Errorf("%s: %w", m.Config, err)
	}
	sum, err := Regular("config", 0, config)
	if err != nil {
		return Image{}, err
	}
	image.ID = "sha256:" + sum.SHA256
	for _, name := range m.Layers {
		data := parts[path.Clean(name)]
		if data, err = decompress(data); err != nil {
			return Image{}, fmt.Errorf("layer %s: %w", name, err)
		}
		image.Layers = append(image.Layers, int64(len(data)))
		if err := image.Tree.apply(bytes.NewReader(data)); err != nil {
			return Image{}, fmt.Errorf("layer %s: %w", name, err)
		}
	}
	return image, nil
}

// members reads the files of an archive.
func members(r io.Reader) (map[string][]byte, error) {
	parts := map[string][]byte{}
	in := tar.NewReader(io.LimitReader(r, maxArchive))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			if parts[name], err = io.ReadAll(in); err != nil {
				return nil, err
			}
		case tar.TypeSymlink: // name of a layer in an older layout
			parts[name] = parts[path.Join(path.Dir(name), h.Linkname)]
		}
	}
}

// decompress decompresses data if it is compressed.
func decompress(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// apply applies a layer to the tree.
func (t Tree) apply(layer io.Reader) error {
	in := tar.NewReader(layer)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		dir, base := path.Split(name)
		switch {
		case name == "/":
			continue
		case base == opaque:
			t.remove(path.Clean(dir), false)
			continue
		case strings.HasPrefix(base, whiteout):
			t.remove(dir+strings.TrimPrefix(base, whiteout), true)
			continue
		}
		f, err := t.entry(name, h, in)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !f.Mode.IsDir() {
			t.remove(name, true)
		}
		t[name] = f
	}
}

func (t Tree) entry(name string, h *tar.Header, r io.Reader) (File, error) {
	f := File{Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid}
	switch {
	case h.Typeflag == tar.TypeLink:
		return t[path.Clean("/"+h.Linkname)], nil
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

// remove removes the files below a path and, if self is set, the path itself.
func (t Tree) remove(name string, self bool) {
	if self {
		delete(t, name)
	}
	for other := range t {
		if strings.HasPrefix(other, strings.TrimSuffix(name, "/")+"/") {
			delete(t, other)
		}
	}
}
