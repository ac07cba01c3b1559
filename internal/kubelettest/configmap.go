package kubelettest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MountConfigMap makes dir a ConfigMap that is mounted into a container, or updates it, as the
// kubelet does (k8s.io/kubernetes, pkg/volume/util/atomic_writer.go): each file is a link through
// ..data, which is replaced as a whole.
func MountConfigMap(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	now, err := os.MkdirTemp(dir, "..generation-")
	if err != nil {
		return err
	}
	errs := []error{os.Chmod(now, 0o755)}
	for name, text := range files {
		errs = append(errs, os.WriteFile(filepath.Join(now, name), []byte(text), 0o644))
	}
	data := filepath.Join(dir, "..data")
	before, _ := os.Readlink(data) // "": it is new
	errs = append(errs, os.Symlink(filepath.Base(now), data+"_tmp"), os.Rename(data+"_tmp", data))
	for name := range files {
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	if before != "" {
		errs = append(errs, removeStale(dir, files), os.RemoveAll(filepath.Join(dir, before)))
	}
	return errors.Join(errs...)
}

// removeStale removes the links of files that a ConfigMap no longer has.
func removeStale(dir string, files map[string]string) error {
	links, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
	for _, link := range links {
		if _, is := files[filepath.Base(link)]; !is {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}
