package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Package is a package according to apt's signed lists.
type Package struct {
	Name   string // "libc6"
	File   string // "libc6_2.36-9_amd64.deb"
	SHA256 string
}

// Version returns the version in the file's name.
func (p Package) Version() string {
	parts := strings.Split(p.File, "_")
	if len(parts) != 3 {
		return ""
	}
	return strings.ReplaceAll(parts[1], "%3a", ":")
}

var uri = regexp.MustCompile(`^'[^']*' (\S+) \d+ SHA256:([0-9a-f]{64})$`)

// ParseURIs parses the output of `apt-get download --print-uris`. It omits the origin
// of the packages, on which the image must not depend.
func ParseURIs(out string) ([]Package, error) {
	var all []Package
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "'") {
			continue
		}
		m := uri.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("apt-get names no SHA-256 for a package: %q; are its sources signed?", line)
		}
		name, _, _ := strings.Cut(m[1], "_")
		all = append(all, Package{Name: name, File: m[1], SHA256: m[2]})
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Apt runs this machine's apt with the machine's configuration: its sources and its
// keys.
type Apt struct {
	Dir    string // for downloads
	Arch   string // of the packages
	Native bool   // Arch is this machine's; otherwise Dir has separate lists
}

// Plan returns the packages of the base image. Apt needs a second for that, so Plan caches
// the result until apt's lists change.
func (a Apt) Plan(ctx context.Context) ([]Package, error) {
	if err := os.MkdirAll(a.Dir, 0o755); err != nil {
		return nil, err
	}
	lists := "/var/lib/apt/lists"
	if !a.Native {
		lists = filepath.Join(a.Dir, "lists")
		if err := a.fetchLists(ctx); err != nil {
			return nil, err
		}
	}
	var cached struct {
		Lists    string // the fingerprint of the lists that Packages is from
		Packages []Package
	}
	file, current := filepath.Join(a.Dir, "plan.json"), fingerprint(lists)
	if data, err := os.ReadFile(file); err == nil && current != "" && json.Unmarshal(data, &cached) == nil && cached.Lists == current {
		return cached.Packages, nil
	}
	var err error
	if cached.Packages, err = a.query(ctx); err != nil {
		return nil, err
	}
	cached.Lists = current
	data, err := json.Marshal(cached)
	if err != nil {
		return nil, err
	}
	return cached.Packages, os.WriteFile(file, data, 0o644)
}

// fingerprint returns a hash that changes with apt's lists in a directory and with Wanted, or ""
// if there are no lists.
func fingerprint(lists string) string {
	entries, err := os.ReadDir(lists)
	if err != nil || len(entries) == 0 {
		return ""
	}
	sum := sha256.New()
	fmt.Fprintln(sum, Wanted)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			fmt.Fprintln(sum, e.Name(), info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// query queries apt for the packages.
func (a Apt) query(ctx context.Context) ([]Package, error) {
	depends, err := a.run(ctx, "/", "apt-cache", "depends", "libgcc-s1")
	if err != nil {
		return nil, err
	}
	wanted := append(licencePackages(depends), Wanted...)
	// In "/", as apt-get omits packages whose file exists in the working directory. Without
	// ForceHash it prints the strongest hash that it knows: SHA-512 on Ubuntu.
	out, err := a.run(ctx, "/", "apt-get", append([]string{"-o", "Acquire::ForceHash=SHA256", "download", "--print-uris"}, wanted...)...)
	if err != nil {
		return nil, err
	}
	packages, err := ParseURIs(out)
	if err == nil && len(packages) != len(wanted) {
		err = fmt.Errorf("apt-get names %d packages for %s", len(packages), strings.Join(wanted, ", "))
	}
	return packages, err
}

var gccBase = regexp.MustCompile(`(?m)^ *Depends: (gcc-\d+-base)$`)

// licencePackages returns the package with the licence of libgcc-s1 ("gcc-12-base"), according to
// the output of `apt-cache depends libgcc-s1`; none if libgcc-s1 has its own. The folder of
// documentation in libgcc-s1 only links to that package's.
func licencePackages(depends string) []string {
	if m := gccBase.FindStringSubmatch(depends); m != nil {
		return m[1:]
	}
	return nil
}

// fetchLists fetches the lists of a foreign architecture, separately from the machine's
// own and checked with the same keys.
func (a Apt) fetchLists(ctx context.Context) error {
	lists := filepath.Join(a.Dir, "lists")
	if _, err := os.Stat(filepath.Join(lists, "done")); err == nil {
		return nil
	}
	for _, dir := range []string{filepath.Join(lists, "partial"), filepath.Join(a.Dir, "cache", "archives", "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if _, err := a.run(ctx, a.Dir, "apt-get", "update"); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(lists, "done"), nil, 0o644)
}

// Fetch downloads the missing packages. apt checks them against the signed lists;
// present ones are checked again.
func (a Apt) Fetch(ctx context.Context, packages []Package) error {
	var missing []string
	for _, p := range packages {
		if a.check(p) != nil {
			missing = append(missing, p.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := a.run(ctx, a.Dir, "apt-get", append([]string{"download"}, missing...)...); err != nil {
		return err
	}
	for _, p := range packages {
		if err := a.check(p); err != nil {
			return err
		}
	}
	return nil
}

func (a Apt) check(p Package) error {
	file := filepath.Join(a.Dir, p.File)
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
		return fmt.Errorf("%s: its SHA-256 differs from the one in apt's lists; remove it and try again", file)
	}
	return nil
}

// Update makes the next Plan use current lists. For this machine's architecture it updates the
// machine's own lists, which needs root; for another one Plan fetches lists into Dir.
func (a Apt) Update(ctx context.Context) error {
	if !a.Native {
		if err := os.Remove(filepath.Join(a.Dir, "lists", "done")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("run sudo apt-get update, then try again")
	}
	_, err := a.run(ctx, a.Dir, "apt-get", "update")
	return err
}

// Entries returns the content of the base image.
func (a Apt) Entries(ctx context.Context, packages []Package) ([]Entry, error) {
	entries := Skeleton(a.Arch)
	for _, p := range packages {
		file := filepath.Join(a.Dir, p.File)
		control, err := run(ctx, "", "dpkg-deb", "--field", file)
		if err != nil {
			return nil, err
		}
		files, err := run(ctx, "", "dpkg-deb", "--fsys-tarfile", file)
		if err != nil {
			return nil, err
		}
		selected, err := Select(strings.NewReader(files))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		entries = append(append(entries, selected...), Status(p.Name, []byte(control)))
	}
	return BundleCertificates(entries)
}

// run runs a program of apt in a working directory, refusing unsigned sources.
func (a Apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	own, err := filepath.Abs(a.Dir)
	if err != nil {
		return "", err
	}
	options := []string{
		"-q", "-o", "APT::Get::AllowUnauthenticated=false", "-o", "Acquire::AllowInsecureRepositories=false",
		// Container images of Debian and Ubuntu disable this cache; each call then takes a second.
		"-o", "Dir::Cache::pkgcache=" + filepath.Join(own, "pkgcache.bin"), "-o", "Dir::Cache::srcpkgcache=",
	}
	if !a.Native {
		options = append(options,
			"-o", "APT::Architecture="+a.Arch, "-o", "APT::Architectures="+a.Arch,
			"-o", "Dir::State::Lists="+filepath.Join(own, "lists"), "-o", "Dir::Cache="+filepath.Join(own, "cache"),
			// This machine's installed packages are of its own architecture.
			"-o", "Dir::State::status=/dev/null")
	}
	return run(ctx, dir, name, append(options, args...)...)
}

func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[len(args)-1], err, lastLines(problems.String()))
	}
	return out.String(), nil
}

// lastLines returns the end of a program's error output on one line.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
