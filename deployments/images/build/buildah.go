package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
)

// buildah runs buildah with a temporary storage, which is removed at the end: it does
// not touch a user's images, and uses nothing of an earlier build.
type buildah struct {
	version string
	dir     string
	arch    string
	epoch   int64
	loaded  string // archive of the base in the storage
}

const localBase = "localhost/gpuready-base:work"

func newBuildah(ctx context.Context, cache, arch string, epoch int64) (*buildah, error) {
	out, err := exec.CommandContext(ctx, "buildah", "version").Output()
	if err != nil {
		return nil, fmt.Errorf("buildah: %w; install it: sudo apt-get install --no-install-recommends buildah", err)
	}
	version, _, _ := strings.Cut(string(out), "\n")
	// Left over from a killed run; the lock excludes another one.
	old, err := filepath.Glob(filepath.Join(cache, "work-*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(cache, "work-")
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	return &buildah{version: strings.Join(strings.Fields(version), " "), dir: dir, arch: arch, epoch: epoch}, err
}

func (b *buildah) close() { _ = os.RemoveAll(b.dir) }

// run returns buildah's standard output, usually an image's ID.
func (b *buildah) run(ctx context.Context, args ...string) (string, error) {
	global := []string{"--root", filepath.Join(b.dir, "root"), "--runroot", filepath.Join(b.dir, "run"), "--storage-driver", "vfs"}
	cmd := exec.CommandContext(ctx, "buildah", append(global, args...)...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(problems.String()), "\n")
		return "", fmt.Errorf("buildah %s: %w: %s", args[0], err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return strings.TrimSpace(out.String()), nil
}

// load loads an archived base into the storage.
func (b *buildah) load(ctx context.Context, archive string) error {
	if b.loaded == archive {
		return nil
	}
	if _, err := b.run(ctx, "pull", "--quiet", "docker-archive:"+archive); err != nil {
		return err
	}
	b.loaded = archive
	return nil
}

// build builds a planned image and returns the path of its archive.
func (b *buildah) build(ctx context.Context, containerfile string, p plan) (string, error) {
	args := []string{"--from", localBase}
	for _, name := range slices.Sorted(maps.Keys(p.Args)) {
		args = append(args, "--build-arg", name+"="+p.Args[name])
	}
	return b.archive(ctx, p.Name, p.Reference, containerfile, p.Files, args...)
}

// archive builds an image from its own context and returns the path of its archive.
func (b *buildah) archive(ctx context.Context, name, reference, containerfile string, files map[string][]byte, args ...string) (string, error) {
	dir := filepath.Join(b.dir, name)
	file := dir + ".Containerfile"
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, []byte(containerfile), 0o644), writeContext(dir, files)); err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	args = append([]string{
		"build", "--quiet", "--isolation", "chroot", "--pull-never", "--identity-label=false", "--format", "oci",
		"--os", "linux", "--arch", b.arch, "--timestamp", strconv.FormatInt(b.epoch, 10), "--tag", reference, "--file", file,
	}, args...)
	if _, err := b.run(ctx, append(args, dir)...); err != nil {
		return "", err
	}
	return b.push(ctx, reference, name)
}

// push writes an image of the storage into an archive with that name.
func (b *buildah) push(ctx context.Context, reference, name string) (string, error) {
	archive := filepath.Join(b.dir, name+".tar")
	_, err := b.run(ctx, "push", "--quiet", reference, "docker-archive:"+archive+":"+reference)
	return archive, err
}

// baseImage returns a base, from the cache if it was assembled or pulled before.
func (j *job) baseImage(ctx context.Context, reference string) (baseImage, error) {
	if reference != "" {
		return j.cachedBase(reference, []any{reference, j.arch}, func() (string, error) {
			j.logf("base", "pulling %s", reference)
			id, err := j.buildah.run(ctx, "pull", "--quiet", "--arch", j.arch, reference)
			if err != nil {
				return "", fmt.Errorf("%w; is it reachable? Without --base, one is assembled from packages", err)
			}
			if _, err := j.buildah.run(ctx, "tag", id, localBase); err != nil {
				return "", err
			}
			return j.buildah.push(ctx, localBase, "base")
		})
	}
	file := filepath.Join(j.recipes, "base", "Containerfile")
	containerfile, err := os.ReadFile(file)
	if err != nil {
		return baseImage{}, err
	}
	apt := rootfs.Apt{Dir: filepath.Join(j.cache, "packages-"+j.arch), Arch: j.arch, Native: j.arch == native}
	packages, err := j.packages(ctx, apt)
	if err != nil {
		return baseImage{}, err
	}
	var names []string
	for _, p := range packages {
		names = append(names, p.Name+" "+p.Version())
	}
	release, err := release()
	if err != nil {
		return baseImage{}, err
	}
	return j.cachedBase("localhost/gpuready-base:"+release, []any{packages, string(containerfile), j.arch, j.epoch, j.tool}, func() (string, error) {
		j.logf("base", "assembling it from %s", strings.Join(names, ", "))
		entries, err := apt.Entries(ctx, packages)
		if err != nil {
			return "", err
		}
		var content bytes.Buffer
		if err := rootfs.WriteBase(&content, entries, j.at()); err != nil {
			return "", err
		}
		return j.buildah.archive(ctx, "base", localBase, string(containerfile), map[string][]byte{"base.tar": content.Bytes()})
	})
}

// packages plans and fetches the base's packages. If apt's lists are missing or
// outdated, it updates them once.
func (j *job) packages(ctx context.Context, apt rootfs.Apt) ([]rootfs.Package, error) {
	try := func() ([]rootfs.Package, error) {
		packages, err := apt.Plan(ctx)
		if err != nil {
			return nil, err
		}
		return packages, apt.Fetch(ctx, packages)
	}
	packages, err := try()
	if err == nil || ctx.Err() != nil {
		return packages, err
	}
	j.logf("base", "updating apt's lists: %v", err)
	if update := apt.Update(ctx); update != nil {
		return nil, fmt.Errorf("%w; %w", err, update)
	}
	return try()
}

// cachedBase returns the archive created from the same values, or creates it.
func (j *job) cachedBase(name string, values []any, create func() (string, error)) (baseImage, error) {
	sum, err := key(values...)
	if err != nil {
		return baseImage{}, err
	}
	of, err := key(name, j.arch)
	if err != nil {
		return baseImage{}, err
	}
	prefix := "base-" + of[:8] + "-"
	b := baseImage{Name: name}
	if b.Archive, err = filepath.Abs(filepath.Join(j.cache, prefix+sum[:16]+".tar")); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.Archive); errors.Is(err, fs.ErrNotExist) {
		built, err := create()
		if err != nil {
			return b, err
		}
		older, err := filepath.Glob(filepath.Join(j.cache, prefix+"*"))
		if err != nil {
			return b, err
		}
		for _, file := range older {
			if err := os.Remove(file); err != nil {
				return b, err
			}
		}
		if err := os.Rename(built, b.Archive); err != nil {
			return b, err
		}
	}
	b.Image, err = readArchive(b.Archive)
	return b, err
}
