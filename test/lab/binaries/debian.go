package binaries

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DebianSet describes packages of one release, whose files are unpacked into one folder.
type DebianSet struct {
	Release  string   // "bookworm"
	Packages []string // without dependencies, unless Whole or Follow add them
	Version  string   // prefix of the first one's upstream version: "1.6.20"
	Sections string   // "main contrib non-free"; "" is main
	Security bool     // from the release's security archive, too
	Follow   string   // adds the dependencies, and theirs, whose names begin with this: "linux-"
	Whole    bool     // adds everything that apt would install with them on an empty machine
}

// nonfreeSections are the sections of a release with NVIDIA's packages.
const nonfreeSections = "main contrib non-free non-free-firmware"

// Packages of NVIDIA's driver. They are under NVIDIA's licence, and only make e2e-driver-real
// fetches them.
var (
	// NVIDIASources are the sources of the proprietary modules.
	NVIDIASources = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Packages: []string{"nvidia-kernel-source"}}
	// NVIDIAOpenSources are the sources of the open modules, of an older driver.
	NVIDIAOpenSources = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Packages: []string{"nvidia-open-kernel-source"}}
	// NVIDIADriver is the user space.
	NVIDIADriver = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Packages: []string{
		"libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4", "libnvidia-encode1", "libnvcuvid1",
		"nvidia-smi",
	}}
	// NVIDIADaemons are the daemons in Debian, with the libraries that they need.
	NVIDIADaemons = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Packages: []string{
		"nvidia-persistenced", "libnvidia-cfg1", "libc6", "libtirpc3", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libcom-err2", "libkeyutils1",
	}}
)

// PythonCUDA is Python, Numba and PyCUDA, with the parts of the CUDA toolkit that they compile
// with. Those are under NVIDIA's licence: only make e2e-python and make notebook-image fetch them.
var PythonCUDA = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Packages: []string{
	"python3-numba", "python3-llvmlite", "python3-numpy", "python3-scipy", "python3-pkg-resources", "python3-distutils", "python3-lib2to3",
	"python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libexpat1", "libffi8", "libssl3", "zlib1g", "libbz2-1.0", "liblzma5",
	"libllvm14", "libedit2", "libbsd0", "libmd0", "libxml2", "libicu72", "libz3-4", "libtinfo6",
	"libblas3", "liblapack3", "libgfortran5", "libquadmath0", "libgomp1", "libstdc++6", "libgcc-s1",
	"python3-pycuda", "python3-pytools", "python3-platformdirs", "python3-typing-extensions", "python3-appdirs", "python3-decorator",
	"python3-mako", "python3-markupsafe", "libboost-python1.74.0", "libboost-thread1.74.0", "libcurand10",
	"libnvvm4", "nvidia-cuda-toolkit",
}}

// Jupyter is a root file system for Jupyter's notebook, with the CUDA runtime whose version Numba
// queries. The CUDA runtime is under NVIDIA's licence, too.
var Jupyter = DebianSet{Release: "bookworm", Sections: nonfreeSections, Security: true, Whole: true, Packages: []string{
	"python3-notebook", "python3-ipykernel", "bash", "dash", "coreutils", "libc-bin", "libcudart11.0",
}}

// keyring verifies the releases. Every Debian machine has it; on Ubuntu it is in the package
// debian-archive-keyring.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// EnsureDebian returns the folder below cache with the unpacked set, and fetches it if necessary. Only
// one fetch of a set runs at a time on a machine.
func EnsureDebian(ctx context.Context, cache string, s DebianSet, out io.Writer) (string, error) {
	name := strings.Join(append([]string{s.Release}, s.Packages...), "-") + "-" + s.Version
	if s.Whole {
		name += "-whole"
	}
	if len(name) > 200 { // a file name may have 255
		name = fmt.Sprintf("%s-%s-%x", s.Release, s.Packages[0], sha256.Sum256([]byte(name)))
	}
	at := filepath.Join(cache, "debian", name)
	if isFetched(at) {
		return at, nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return "", fmt.Errorf("cache of Debian's programs: %w; set GPUREADY_CACHE to a folder that can be written", err)
	}
	unlock, err := lockSet(at + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isFetched(at) {
		return at, nil
	}
	fmt.Fprintf(out, "fetching %s %s from Debian's %s\n", s.Packages[0], s.Version, s.Release)
	if err := s.fetch(ctx, at); err != nil {
		return "", fmt.Errorf("fetch %s from Debian's %s: %w", strings.Join(s.Packages, ", "), s.Release, err)
	}
	return at, nil
}

// isFetched reports whether a set is complete: its folder is renamed into place at the end.
func isFetched(at string) bool {
	_, err := os.Stat(at)
	return err == nil
}

// lockSet locks a set; the lock ends with the process, however that ends.
func lockSet(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// fetch fetches the set to a path. It first removes leftovers of a killed fetch.
func (s DebianSet) fetch(ctx context.Context, at string) (err error) {
	work := at + ".fetching"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "debs", "root"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return err
		}
	}
	sections := cmp.Or(s.Sections, "main")
	source := fmt.Sprintf("deb [signed-by=%s] %s %s %s\n", keyring, debianMirror(ctx, "Debian"), s.Release, sections)
	if s.Security {
		source += fmt.Sprintf("deb [signed-by=%s] %s %s-security %s\n", keyring, debianMirror(ctx, "Debian-Security"), s.Release, sections)
	}
	if err := os.WriteFile(filepath.Join(work, "sources.list"), []byte(source), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "apt.conf"), []byte(aptSettings(work)), 0o644); err != nil {
		return err
	}
	if _, err := runApt(ctx, work, "apt-get", "-q", "update"); err != nil {
		return err
	}
	if err := s.check(ctx, work); err != nil {
		return err
	}
	packages, err := s.resolve(ctx, work)
	if err != nil {
		return err
	}
	if _, err := runApt(ctx, work, "apt-get", append([]string{"-q", "download"}, packages...)...); err != nil {
		return err
	}
	if err := unpackDebs(ctx, work); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "root"), at)
}

// check returns an error unless the release has the wanted version.
func (s DebianSet) check(ctx context.Context, work string) error {
	shown, err := runApt(ctx, work, "apt-cache", "show", "--no-all-versions", s.Packages[0])
	if err != nil {
		return err
	}
	for line := range strings.Lines(shown) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "Version: "); ok {
			if strings.HasPrefix(version, s.Version) {
				return nil
			}
			return fmt.Errorf("it has version %s, not %s; the tests are written for that one", version, s.Version)
		}
	}
	return fmt.Errorf("apt-cache names no version of it; it printed: %s", shown)
}

// resolve returns the names of all packages of the set, the followed dependencies included.
func (s DebianSet) resolve(ctx context.Context, work string) ([]string, error) {
	if s.Whole {
		return s.installed(ctx, work)
	}
	if s.Follow == "" {
		return s.Packages, nil
	}
	args := []string{
		"depends", "--recurse", "--important",
		"--no-breaks", "--no-conflicts", "--no-enhances", "--no-replaces", "--no-suggests",
	}
	printed, err := runApt(ctx, work, "apt-cache", append(args, s.Packages...)...)
	if err != nil {
		return nil, err
	}
	packages := slices.Clone(s.Packages)
	for line := range strings.Lines(printed) { // "linux-image-amd64" or "  Depends: linux-base"
		_, name, depends := strings.Cut(line, "Depends: ")
		name = strings.TrimSpace(name)
		if depends && strings.HasPrefix(name, s.Follow) && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
	}
	return packages, nil
}

// installed returns the names of the packages that apt would install for the set.
func (s DebianSet) installed(ctx context.Context, work string) ([]string, error) {
	printed, err := runApt(ctx, work, "apt-get", append([]string{"-q", "--simulate", "--no-install-recommends", "install"}, s.Packages...)...)
	if err != nil {
		return nil, err
	}
	var packages []string
	for line := range strings.Lines(printed) { // "Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])"
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Inst" {
			packages = append(packages, fields[1])
		}
	}
	return packages, nil
}

func unpackDebs(ctx context.Context, work string) error {
	debs, err := filepath.Glob(filepath.Join(work, "debs/*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if _, err := runApt(ctx, work, "dpkg-deb", "-x", deb, filepath.Join(work, "root")); err != nil {
			return err
		}
	}
	return nil
}

// debianMirror returns this machine's mirror for a Debian archive, by its label.
func debianMirror(ctx context.Context, label string) string {
	usual := "http://deb.debian.org/" + strings.ToLower(label)
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return usual
	}
	for line := range strings.Lines(string(out)) {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian "+label+" "); ok {
			return uri
		}
	}
	return usual
}

// aptSettings returns apt settings that keep apt from reading or writing the machine's own files,
// except its proxy settings.
func aptSettings(work string) string {
	return fmt.Sprintf(`Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "%[1]s";
Dir::State::lists "%[1]s/lists";
Dir::State::status "/dev/null";
Dir::Cache "%[1]s/cache";
Dir::Log "%[1]s";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
`, work)
}

func runApt(ctx context.Context, work, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(work, "debs")
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(work, "apt.conf"), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%w; this needs a Debian or Ubuntu machine", err)
		}
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
