package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

//go:embed gpu.ipynb
var notebookFile []byte

// The user and the home of public notebook images.
const (
	user = "1000:100"
	home = "/home/jovyan"
)

// imageCommand builds the notebook image from Debian's packages: Jupyter, Numba, PyCUDA, our samples
// and a notebook that uses them. Numba's compiler parts are under NVIDIA's licence: the image is only
// for those who build it.
func imageCommand(ctx context.Context, args []string) error {
	f := pflag.NewFlagSet("image", pflag.ContinueOnError)
	bin := f.String("bin", "bin", "folder with the built samples")
	out := f.String("out", "bin/notebook/notebook.tar", "archive to write")
	name := f.String("name", "gpuready.test/notebook:1", "name of the image")
	if err := f.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	return buildImage(ctx, *bin, *out, *name, f.Args())
}

// buildImage writes the image's archive; samples are names of programs in bin.
func buildImage(ctx context.Context, bin, out, name string, samples []string) error {
	cache, err := binaries.DefaultCache()
	if err != nil {
		return err
	}
	i := binaries.Image{
		Name: name, User: user, Own: []string{home, "/tmp"},
		Files: map[string][]byte{
			"/etc/passwd":       []byte("root:x:0:0:root:/root:/bin/bash\njovyan:x:1000:100:jovyan:" + home + ":/bin/bash\n"),
			"/etc/group":        []byte("root:x:0:\nusers:x:100:\n"),
			home + "/gpu.ipynb": notebookFile,
		},
		Links: maps.Clone(links),
		Env: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "SHELL=/bin/bash", "LC_ALL=C.UTF-8", "PYTHONPYCACHEPREFIX=/tmp/python",
			"CUDA_HOME=/usr/lib/cuda", "NUMBA_CUDA_USE_NVIDIA_BINDING=0",
		},
		Entrypoint: []string{"/usr/bin/python3", "-m", "notebook", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--notebook-dir=" + home},
	}
	for _, layer := range []struct {
		set     binaries.DebianSet
		without []string
	}{
		{binaries.PythonCUDA, append([]string{"/usr/bin"}, unused...)}, // Python itself comes with Jupyter
		{binaries.Jupyter, unused},
	} {
		root, err := binaries.EnsureDebian(ctx, cache, layer.set, os.Stderr)
		if err != nil {
			return err
		}
		if err := addFolder(&i, root, layer.without); err != nil {
			return err
		}
	}
	for _, sample := range samples {
		if i.Files["/usr/local/bin/"+sample], err = os.ReadFile(filepath.Join(bin, sample)); err != nil {
			return fmt.Errorf("%w; make %s builds it", err, filepath.Join(bin, sample))
		}
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return binaries.WriteImage(out, i)
}

// links are the links that Debian's packages create when they are installed, and the places where Numba
// looks for the parts of a CUDA toolkit.
var links = map[string]string{
	"/usr/lib/x86_64-linux-gnu/libblas.so.3":   "blas/libblas.so.3",
	"/usr/lib/x86_64-linux-gnu/liblapack.so.3": "lapack/liblapack.so.3",
	"/usr/lib/cuda/nvvm/lib64/libnvvm.so.4":    "/usr/lib/x86_64-linux-gnu/libnvvm.so.4",
	"/usr/lib/cuda/lib64/libcudart.so.11.0":    "/usr/lib/x86_64-linux-gnu/libcudart.so.11.0",
}

// unused are folders that a notebook does not need: documentation, and CUDA's C++ compiler.
var unused = []string{
	"/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian", "/usr/include",
	"/usr/lib/nvidia-cuda-toolkit/bin", "/usr/lib/nvidia-cuda-toolkit/compute-sanitizer",
}

// addFolder adds the files and links of a folder to an image, without some folders.
func addFolder(i *binaries.Image, root string, without []string) error {
	return filepath.WalkDir(root, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := path.Clean("/" + strings.TrimPrefix(at, root))
		switch {
		case e.IsDir() && slices.Contains(without, name):
			return fs.SkipDir
		case e.IsDir():
			return nil
		case e.Type() == fs.ModeSymlink:
			i.Links[name], err = os.Readlink(at)
		case e.Type().IsRegular():
			i.Files[name], err = os.ReadFile(at)
		default:
			err = fmt.Errorf("%s is neither a file nor a link", at)
		}
		return err
	})
}
