package assemble

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/deployments/release/contents"
)

// locks lists the files with the hashes of all Go modules that are linked into what is released.
var locks = []string{"go.sum", ".ci/catalog/go.sum", ".ci/helm/go.sum", ".ci/olm/go.sum"}

// DebianTools returns the Debian packages of the programs that build for an architecture: C compiler,
// linker and headers, for the programs that call libnvidia-ml and the simulator's libraries; and, with
// this machine's, buildah, which makes the images, and tar and gzip, which make archives.
func DebianTools(ctx context.Context, arch string) ([]string, error) {
	prefix, headers := "", "libc6-dev"
	if arch != runtime.GOARCH {
		prefix, headers = rootfs.Triplet(arch)+"-", "libc6-dev-"+arch+"-cross"
	}
	var packages []string
	for _, program := range []string{"gcc", "ld"} {
		path, err := exec.LookPath(prefix + program)
		if err != nil {
			return nil, err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
		out, err := run(ctx, "/", "dpkg-query", "-S", path)
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(out, ":")
		packages = append(packages, name)
	}
	packages = append(packages, headers)
	if arch == runtime.GOARCH {
		packages = append(packages, "buildah", "gzip", "tar")
	}
	return packages, nil
}

// addKubectl adds the archives of kubectl-gpu, and krew's manifest.
func (b *builder) addKubectl(context.Context) error {
	for _, platform := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"} {
		name := "kubectl-gpu-" + b.Version + "-" + platform + ".tar.gz"
		data, err := os.ReadFile(filepath.Join(b.Kubectl, name))
		if err != nil {
			return err
		}
		if err := b.publish(name, data); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(filepath.Join(b.Kubectl, "gpu.yaml"))
	if err != nil {
		return err
	}
	return b.publish("gpu.yaml", data)
}

// addMaterials lists what the release is made of.
func (b *builder) addMaterials(ctx context.Context) error {
	add := func(name, uri, algorithm, digest string) {
		b.out.Materials = append(b.out.Materials, contents.Material{Name: name, URI: uri, Digest: map[string]string{algorithm: digest}})
	}
	git := "git+" + repositoryURL + "@" + b.source.commit
	name := "source"
	if len(b.source.changes) > 0 { // what is signed about an experiment says so
		name = "source, with changes that are not committed"
	}
	add(name, git, "gitCommit", b.source.commit)
	for _, name := range locks {
		sum, err := hashFile(filepath.Join(b.Top, name))
		if err != nil {
			return err
		}
		add(name, git+"#"+name, "sha256", sum)
	}
	if err := b.addToolchain(ctx, add); err != nil {
		return err
	}
	for _, arch := range architectures {
		packages, err := b.basePackages(arch)
		if err != nil {
			return err
		}
		for _, p := range packages {
			its := strings.TrimSuffix(p.File[strings.LastIndex(p.File, "_")+1:], ".deb") // or "all"
			add(p.Name, packageURL(p.Name, p.Version(), its), "sha256", p.SHA256)
		}
		if err := b.addTools(ctx, arch, add); err != nil {
			return err
		}
	}
	return nil
}

// addToolchain adds Go, by the digests of its programs.
func (b *builder) addToolchain(ctx context.Context, add func(name, uri, algorithm, digest string)) error {
	out, err := run(ctx, b.Top, "go", "env", "GOVERSION", "GOROOT", "GOTOOLDIR")
	if err != nil {
		return err
	}
	env := strings.Split(strings.TrimSpace(out), "\n")
	if len(env) != 3 {
		return fmt.Errorf("go env: %q", out)
	}
	for _, program := range []string{filepath.Join(env[1], "bin/go"), filepath.Join(env[2], "compile"), filepath.Join(env[2], "link")} {
		sum, err := hashFile(program)
		if err != nil {
			return err
		}
		add("go: "+filepath.Base(program), "pkg:generic/go@"+strings.TrimPrefix(env[0], "go")+"?os="+runtime.GOOS+"&arch="+runtime.GOARCH+"#"+filepath.Base(program), "sha256", sum)
	}
	return nil
}

// basePackages returns the packages of the images' base, as make images has recorded them.
func (b *builder) basePackages(arch string) ([]rootfs.Package, error) {
	path := filepath.Join(b.Images, arch, ".cache/packages-"+arch+"/plan.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var plan struct{ Packages []rootfs.Package }
	if err := json.Unmarshal(data, &plan); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(plan.Packages) == 0 {
		return nil, fmt.Errorf("%s lists no packages: run make release", path)
	}
	return plan.Packages, nil
}

// addTools adds the packages of the programs that build for an architecture: with the digest of apt's lists,
// or, of a package that they no longer have, of its list of files' digests.
func (b *builder) addTools(ctx context.Context, arch string, add func(name, uri, algorithm, digest string)) error {
	if b.Tools == nil {
		return nil
	}
	names, err := b.Tools(ctx, arch)
	if err != nil {
		return fmt.Errorf("the programs that build for %s: %w", arch, err)
	}
	for _, name := range names {
		out, err := run(ctx, b.Top, "dpkg-query", "-W", "-f", "${Version} ${Architecture}", name)
		if err != nil {
			return fmt.Errorf("%w: is the package installed?", err)
		}
		version, its, _ := strings.Cut(out, " ")
		uri := packageURL(name, version, its)
		if sum := aptDigest(ctx, b.Top, name+"="+version); sum != "" {
			add(name, uri, "sha256", sum)
			continue
		}
		files, err := filepath.Glob("/var/lib/dpkg/info/" + name + "*.md5sums")
		if err != nil || len(files) == 0 {
			return fmt.Errorf("package %s: neither apt's lists nor dpkg have digests of it (%w)", name, err)
		}
		sum, err := hashFile(files[0])
		if err != nil {
			return err
		}
		add(name+": md5sums of its files", uri+"#md5sums", "sha256", sum)
	}
	return nil
}

// aptDigest returns the SHA-256 of a package according to apt's lists, or "".
func aptDigest(ctx context.Context, dir, name string) string {
	out, err := run(ctx, dir, "apt-cache", "show", name)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(out) {
		if sum, is := strings.CutPrefix(line, "SHA256: "); is {
			return strings.TrimSpace(sum)
		}
	}
	return ""
}

// packageURL returns the purl of a package of this machine's distribution, from which images take it,
// too.
func packageURL(name, version, arch string) string {
	return "pkg:deb/" + distribution() + "/" + name + "@" + url.QueryEscape(version) + "?arch=" + arch
}

// distribution returns the name of this machine's distribution: debian or ubuntu.
func distribution() string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "debian"
	}
	for line := range strings.Lines(string(text)) {
		if id, is := strings.CutPrefix(strings.TrimSpace(line), "ID="); is {
			return strings.Trim(id, `"`)
		}
	}
	return "debian"
}

// hashFile returns the SHA-256 of a file.
func hashFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
