package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/mirror"
	"github.com/gpuready/gpuready/deployments/release/publish"
	"github.com/gpuready/gpuready/internal/program"
)

const mirrorUsage = `Prepare a release, as release build made it, for clusters without the internet. It writes

  images.txt                       the artifacts by digest, one a line
  imageset-config.yaml             the same for oc-mirror, version 2
  gpuready-VERSION.tar             all of them, for release load and for nodes
  and the packaged chart

--foreign also fetches other projects' images that the chart installs (Node Feature Discovery) from
their registries into the archive, and lists them by digest.

Examples:
  release mirror --dir bin/release/v0.2.0 --to bin/mirror
  release mirror --dir bin/release/v0.2.0 --to bin/mirror --foreign
`

// mirrorRelease is the command mirror.
func mirrorRelease(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("release mirror", mirrorUsage, exitCodes, stdout)
	dir := f.String("dir", "", "folder of the release")
	to := f.String("to", "", "folder to write to")
	foreign := f.Bool("foreign", false, "fetch other projects' images too")
	timeout := f.Duration("timeout", time.Hour, "for the whole command")
	f.Env["dir"] = "RELEASE_DIR"
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	switch {
	case *dir == "":
		return program.UsageErrorf("--dir: name the folder of a release, as bin/release/v0.2.0")
	case *to == "":
		return program.UsageErrorf("--to: name a folder, as bin/mirror")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after --timeout=%s", *timeout))
	defer cancel()
	return withCause(ctx, writeMirror(ctx, *dir, *to, *foreign, stdout))
}

func writeMirror(ctx context.Context, dir, to string, foreign bool, stdout io.Writer) (err error) {
	r, err := contents.Read(dir)
	if err != nil {
		return err
	}
	layouts := []layout.Path{layout.Path(filepath.Join(dir, contents.Layout))}
	images, err := mirror.List(r, layouts[0])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if foreign {
		fetched, err := os.MkdirTemp(to, "fetched-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(fetched)) }()
		other, err := layout.Write(fetched, empty.Index)
		if err != nil {
			return err
		}
		if images, err = mirror.Fetch(ctx, images, other, remote.WithTransport(publish.NewTransport(false)), remote.WithUserAgent("gpuready-release")); err != nil {
			return err
		}
		layouts = append(layouts, other)
	}
	set, err := mirror.ImageSet(images)
	if err != nil {
		return err
	}
	chart, err := mirror.Chart(r, layouts[0])
	if err != nil {
		return err
	}
	number := strings.TrimPrefix(r.Version, "v")
	for name, text := range map[string][]byte{
		"images.txt": mirror.Text(r.Version, images), "imageset-config.yaml": set, "gpuready-" + number + ".tgz": chart,
	} {
		if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
			return err
		}
	}
	signed, err := contents.ReadSigned(dir)
	if err != nil {
		return err
	}
	for _, a := range signed { // so that what was loaded can be verified
		images = append(images, mirror.Image{Repository: r.Registry + "/" + a.Name, Tag: a.Tag, Digest: a.Digest, Kind: a.Kind})
	}
	if err := writeArchive(filepath.Join(to, "gpuready-"+r.Version+".tar"), func(f *os.File) error { return mirror.Write(until{ctx, f}, r, images, layouts...) }); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: images.txt, imageset-config.yaml, gpuready-%s.tgz, gpuready-%s.tar\n", to, number, r.Version)
	if len(signed) == 0 {
		fmt.Fprintf(stdout, "not signed: the archive has no signatures, so what is loaded cannot be verified; run release sign before\n")
	}
	for _, i := range images {
		if i.Digest == "" {
			fmt.Fprintf(stdout, "not in the archive: %s; --foreign fetches it\n", i.Reference())
		}
	}
	return nil
}

// writeArchive writes a file, which has its name only when it is complete.
func writeArchive(path string, write func(*os.File) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

// until is a file whose reads and writes fail when a context ends.
type until struct {
	context.Context
	file *os.File
}

func (u until) Read(p []byte) (int, error) {
	if err := u.Err(); err != nil {
		return 0, err
	}
	return u.file.Read(p)
}

func (u until) Write(p []byte) (int, error) {
	if err := u.Err(); err != nil {
		return 0, err
	}
	return u.file.Write(p)
}

const loadUsage = `Push an archive of release mirror to a registry. An image keeps its path below the registry's:
ghcr.io/gpuready/operator becomes registry.example.com/mirror/gpuready/operator. Digests do not
change. What the registry has is not pushed again. Credentials are those of docker login.

It needs room for one more copy of the archive in --work-dir.

Examples:
  release load --archive gpuready-v0.2.0.tar --registry registry.example.com/mirror
`

// load is the command load.
func load(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release load", loadUsage, exitCodes, stdout)
	o := publish.Options{Logf: newProgress(stderr)}
	archive := f.String("archive", "", "archive of release mirror")
	registry := f.String("registry", "", "host and path of the registry")
	work := f.String("work-dir", "", "folder for the unpacked archive (default: that of the archive)")
	f.BoolVar(&o.Insecure, "insecure", false, "allow plain HTTP to a registry on another host")
	f.IntVar(&o.Jobs, "jobs", 4, "number of concurrent uploads")
	timeout := f.Duration("timeout", 2*time.Hour, "for the whole command")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	switch {
	case *archive == "":
		return program.UsageErrorf("--archive: name the archive, as gpuready-v0.2.0.tar")
	case *registry == "":
		return program.UsageErrorf("--registry: name a host and a path, as registry.example.com/mirror")
	}
	if *work == "" {
		*work = filepath.Dir(*archive)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after --timeout=%s; run it again to go on", *timeout))
	defer cancel()
	return withCause(ctx, loadArchive(ctx, *archive, *registry, *work, o))
}

func loadArchive(ctx context.Context, archive, registry, work string, o publish.Options) (err error) {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	if o.Dir, err = os.MkdirTemp(work, "unpacked-"); err != nil {
		return fmt.Errorf("%w; name a folder with room for the archive with --work-dir", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	if _, err := mirror.Unpack(until{ctx, in}, o.Dir, registry); err != nil {
		return err
	}
	p, err := publish.New(o)
	if err != nil {
		return err
	}
	items, err := p.Plan(ctx, false)
	if err != nil {
		return err
	}
	return p.Push(ctx, items)
}
