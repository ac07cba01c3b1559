package recipe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/precompiled/runfile"
	"github.com/gpuready/gpuready/driver/precompiled/userspace"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// downloadTimeout bounds the download of an installer of about 400 MB.
const downloadTimeout = time.Hour

// driver is an unpacked driver.
type driver struct {
	sources []source // of the kinds of modules to compile, at least one
	install func(l userspace.Layout, to string) error
}

// source has the sources of one kind of modules.
type source struct {
	kind kernel.Kind
	dir  string // folder that Kbuild builds
}

// layout returns the places of a driver's files: as on Debian, whose C library the base has.
func (s *Settings) layout() userspace.Layout {
	return userspace.Layout{Libraries: "usr/lib/" + s.TargetArch + "-linux-gnu", Version: s.DriverVersion}
}

// sourceNames holds the folders in NVIDIA's installer by kind.
var sourceNames = map[kernel.Kind]string{kernel.OpenKind: "kernel-open", kernel.Proprietary: "kernel"}

// findDriver unpacks the driver below work.
func (s *Settings) findDriver(ctx context.Context, kernels []string, work string) (d driver, err error) {
	dir := s.Source
	switch info, statErr := os.Stat(s.Source); {
	case len(s.Packages) > 0:
		if dir, err = s.unpackPackages(ctx, kernels, work); err != nil {
			return d, err
		}
	case statErr == nil && info.IsDir():
	default:
		file := s.Source
		if s.Source == "" || strings.Contains(s.Source, "://") {
			if file, err = s.downloadInstaller(ctx); err != nil {
				return d, err
			}
		} else if err := checkSum(file, s.SHA256); err != nil {
			return d, err
		}
		dir = filepath.Join(work, "installer")
		s.Log.Info("unpacking the installer", "file", file)
		h, err := runfile.Unpack(ctx, file, dir)
		if err == nil && h.Arch != "" && h.Arch != s.TargetArch {
			err = fmt.Errorf("%s is of %s, and TARGET_ARCH is %s", file, record.Clean(h.Arch, 50), s.TargetArch)
		}
		if err != nil {
			return d, fmt.Errorf("DRIVER_SOURCE: %w", err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, userspace.ManifestName)); err == nil {
		d.install = func(l userspace.Layout, to string) error { return l.Install(dir, to) }
		d.sources, err = s.chooseSources(map[kernel.Kind]string{
			kernel.OpenKind: filepath.Join(dir, sourceNames[kernel.OpenKind]), kernel.Proprietary: filepath.Join(dir, sourceNames[kernel.Proprietary]),
		})
		return d, err
	}
	d.install = func(l userspace.Layout, to string) error { return l.Copy(dir, to) }
	sources, err := findPackaged(ctx, dir, work)
	if err == nil {
		d.sources, err = s.chooseSources(sources)
	}
	return d, err
}

// lastProprietary is the last branch whose driver supports GPUs that need the proprietary modules:
// Maxwell, Pascal and Volta (NVIDIA's deprecation schedule of UNIX drivers).
const lastProprietary = 580

// chooseSources chooses the folders of the wanted kinds. Auto is each kind that some GPU of the driver
// needs, since a node chooses by its GPUs: both up to branch 580, and later the open kind.
func (s *Settings) chooseSources(have map[kernel.Kind]string) (chosen []source, err error) {
	for _, k := range []kernel.Kind{kernel.OpenKind, kernel.Proprietary} {
		dir := have[k]
		if _, err := os.Stat(dir); dir == "" || err != nil {
			continue
		}
		needed := len(chosen) == 0 || kernel.Branch(s.DriverVersion) <= lastProprietary
		if s.Kind == string(k) || s.Kind == string(kernel.Auto) && needed {
			chosen = append(chosen, source{k, dir})
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("the driver has no sources of %s modules (KERNEL_MODULE_TYPE): it has neither %s nor %s",
			s.Kind, sourceNames[kernel.OpenKind], sourceNames[kernel.Proprietary])
	}
	return chosen, nil
}

// findPackaged finds the sources in a folder of unpacked packages: archives in Debian's,
// folders in others.
func findPackaged(ctx context.Context, dir, work string) (map[kernel.Kind]string, error) {
	found := map[kernel.Kind]string{}
	for archive, kind := range map[string]kernel.Kind{"nvidia-kernel.tar.xz": kernel.Proprietary, "nvidia-open-kernel.tar.xz": kernel.OpenKind} {
		file := filepath.Join(dir, "usr/src", archive)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		to := filepath.Join(work, "sources-"+string(kind))
		if err := runfile.Untar(ctx, file, to); err != nil {
			return nil, err
		}
		all, err := filepath.Glob(filepath.Join(to, "modules/*/Kbuild"))
		if err != nil || len(all) != 1 {
			return nil, errors.Join(err, fmt.Errorf("%s has no folder modules/*/Kbuild", file))
		}
		found[kind] = filepath.Dir(all[0])
	}
	all, err := filepath.Glob(filepath.Join(dir, "usr/src/nvidia*/Kbuild"))
	for _, k := range all {
		dir := filepath.Dir(k)
		kind, err := readKind(dir)
		if err != nil {
			return nil, err
		}
		found[kind] = dir
	}
	if len(found) == 0 && err == nil {
		err = fmt.Errorf("%s has neither %s, as NVIDIA's installer unpacks it, nor usr/src/nvidia*, as packages have it", dir, userspace.ManifestName)
	}
	return found, err
}

// readKind returns the kind of modules of sources, by their licence.
func readKind(dir string) (kernel.Kind, error) {
	files, err := filepath.Glob(filepath.Join(dir, "nvidia/*.c"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		if _, licence, found := strings.Cut(string(text), "MODULE_LICENSE("); found {
			if licence, _, _ = strings.Cut(licence, ")"); strings.Contains(licence, "GPL") {
				return kernel.OpenKind, nil
			}
			return kernel.Proprietary, nil
		}
	}
	return "", fmt.Errorf("%s/nvidia names no MODULE_LICENSE: it has no sources of a driver", dir)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func checkSum(file, want string) error {
	if want == "" {
		return nil
	}
	sum, err := folder.SumFile(file)
	if err == nil && sum != want {
		err = fmt.Errorf("%s has the SHA-256 %s, and DRIVER_SHA256 is %s", file, sum, want)
	}
	return err
}

// downloadInstaller fetches the installer, unless it was fetched before.
func (s *Settings) downloadInstaller(ctx context.Context) (string, error) {
	dir := filepath.Join(s.Out, "downloads")
	file := filepath.Join(dir, s.SHA256+".run")
	if checkSum(file, s.SHA256) == nil {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	left, err := filepath.Glob(filepath.Join(dir, "download-*")) // of killed runs
	if err != nil {
		return "", err
	}
	for _, f := range left {
		if err := os.Remove(f); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	s.Log.Info("fetching the installer", "url", s.installerURL())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.installerURL(), nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s; set DRIVER_SOURCE to a file that was downloaded elsewhere", s.installerURL(), record.Clean(answer.Status, 100))
	}
	return file, writeChecked(file, s.SHA256, answer.Body)
}

// writeChecked writes a file if its content has the digest want.
func writeChecked(file, want string, from io.Reader) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(file), "download-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(temp, sum), io.LimitReader(from, 4<<30))
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("the download has the SHA-256 %s, and DRIVER_SHA256 is %s", got, want)
	}
	return os.Rename(temp.Name(), file)
}

// glibc lists the libraries that the driver's programs need, since they run with the driver's
// folder as their root.
var glibc = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}

// loaders holds the paths of the dynamic loader by architecture.
var loaders = map[string]string{"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}

// copyGlibc copies the C library from a base image's files. It copies nothing if the base has
// none.
func (s *Settings) copyGlibc(base, to string) error {
	loader := loaders[s.TargetArch]
	wanted := append([]string{filepath.Base(loader)}, glibc...)
	return filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !slices.Contains(wanted, d.Name()) {
			return err
		}
		real, ok := resolveBelow(base, path)
		if !ok {
			return nil
		}
		at := filepath.Join(to, s.layout().Libraries, d.Name())
		if d.Name() == filepath.Base(loader) {
			at = filepath.Join(to, loader)
		}
		if fileExists(at) {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		return folder.CopyFile(real, at)
	})
}

// resolveBelow resolves the links of a path below a root, and reports whether the result is
// below the root, too.
func resolveBelow(root, path string) (string, bool) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", false
	}
	rel, err := filepath.Rel(root, real)
	return real, err == nil && filepath.IsLocal(rel)
}
