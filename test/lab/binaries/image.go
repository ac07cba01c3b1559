package binaries

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image describes an image to build.
type Image struct {
	Name       string            // full name, docker.io/library/x:y
	Files      map[string][]byte // absolute path: content; all are executable
	Links      map[string]string // absolute path: target of the symbolic link
	Entrypoint []string
	Env        []string // KEY=value
	User       string   // empty: root
	Own        []string // folders that the user owns, contents included; User must then be "uid:gid"
}

// WriteImage writes an image's archive to a file.
func WriteImage(file string, i Image) error {
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(i.archive(f), f.Close())
	}
	if err != nil {
		return fmt.Errorf("make the image %s: %w", i.Name, err)
	}
	return nil
}

// Media types of the OCI image specification, v1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (i Image) archive(w io.Writer) error {
	type m = map[string]any
	out := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(kind string, content []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		out["blobs/sha256/"+sum] = content
		return descriptor{MediaType: kind, Digest: "sha256:" + sum, Size: len(content)}
	}
	document := func(kind string, v any) (descriptor, error) {
		content, err := json.Marshal(v)
		return blob(kind, content), err
	}
	own, err := i.owner()
	if err != nil {
		return err
	}
	var files bytes.Buffer
	size := 0
	for _, content := range i.Files {
		size += len(content) + 1<<10 // with its header and padding
	}
	files.Grow(size) // growing bit by bit takes twice the memory
	if err := packTar(&files, i.Files, i.Links, i.Own, 0o755, own); err != nil {
		return err
	}
	layer := blob(typeLayer, files.Bytes())
	config, err := document(typeConfig, m{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": m{"Entrypoint": i.Entrypoint, "Env": i.Env, "User": i.User},
		"rootfs": m{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := document(typeManifest, m{"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []descriptor{layer}})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	out["index.json"], err = json.Marshal(m{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	return packTar(w, out, nil, nil, 0o644, func(*tar.Header) {})
}

// owner returns a function that makes the image's user the owner of the folders in Own.
func (i Image) owner() (func(*tar.Header), error) {
	var uid, gid int
	if len(i.Own) > 0 {
		if _, err := fmt.Sscanf(i.User, "%d:%d", &uid, &gid); err != nil {
			return nil, fmt.Errorf("user %q: %w; it must be uid:gid", i.User, err)
		}
	}
	return func(h *tar.Header) {
		for _, dir := range i.Own {
			if strings.HasPrefix(path.Clean("/"+h.Name)+"/", path.Clean(dir)+"/") {
				h.Uid, h.Gid = uid, gid
			}
		}
	}, nil
}

// packTar writes a reproducible tar of files, symbolic links and folders, folders first. own may
// change each header's owner.
func packTar(out io.Writer, files map[string][]byte, links map[string]string, folders []string, mode int64, own func(*tar.Header)) error {
	headers, contents := map[string]tar.Header{}, map[string][]byte{}
	for name, content := range files {
		name = path.Clean("/" + name)[1:]
		headers[name] = tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}
		contents[name] = content
	}
	for name, target := range links {
		name = path.Clean("/" + name)[1:]
		headers[name] = tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
	}
	var names, dirs []string
	for _, name := range folders {
		dirs = append(dirs, path.Clean("/" + name)[1:])
	}
	for name := range headers {
		names = append(names, name)
	}
	for _, name := range slices.Concat(names, dirs) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(names)
	slices.Sort(dirs)
	w := tar.NewWriter(out)
	for _, dir := range slices.Compact(dirs) {
		header := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		own(&header)
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
	}
	for _, name := range names {
		header := headers[name]
		own(&header)
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := w.Write(contents[name]); err != nil {
			return err
		}
	}
	return w.Close()
}
