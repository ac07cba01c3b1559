package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/config"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
	"github.com/gpuready/gpuready/internal/version"
)

const header = `Build the container images, an archive and an SBOM each.

Usage:
  images [flags] [image...]

Without a name, every image with a Containerfile is built. Unchanged images are
not built again. Needs buildah, and apt for the assembled base.

Examples:
  images
  images --version v1.2.3 --out bin/images-v1.2.3
  images --base default toolkit          on the base that its Containerfile names
  images --base registry.example/base:1  on a base of your own, with glibc, without a shell
  images -o json

Flags; the variable in brackets is the default of a flag:
`

const footer = `
A base named by a tag is pulled once; remove <out>/.cache to pull it again.

Exit codes: 0 done; 1 failed, the reason is on standard error; 2 wrong use;
130 interrupted.
`

// environment names the variable of each flag.
var environment = map[string]string{
	"version":    "VERSION",
	"revision":   "REVISION",
	"repository": "IMAGE_REPOSITORY",
	"base":       "IMAGE_BASE",
	"arch":       "ARCH",
	"epoch":      "SOURCE_DATE_EPOCH",
}

type options struct {
	names                         []string
	bin, recipes, out             string
	version, revision, repository string
	base, arch, output            string
	epoch                         int64
	help                          bool
	flags                         *pflag.FlagSet
}

func (o *options) usage() string { return header + o.flags.FlagUsages() + footer }

func (o *options) at() time.Time { return time.Unix(o.epoch, 0) }

// Valid tags and names for registries.
var (
	tag        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	repository = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+$`)
)

func parse(args []string) (*options, error) {
	o := &options{flags: pflag.NewFlagSet("images", pflag.ContinueOnError)}
	f := o.flags
	f.SortFlags = false
	f.Usage = func() {}
	f.StringVar(&o.bin, "bin", "bin", "where `make build` put the programs")
	f.StringVar(&o.recipes, "recipes", "deployments/images", "where the Containerfiles are, a folder each")
	f.StringVar(&o.out, "out", "", "where to write (default images below --bin)")
	f.StringVar(&o.version, "version", version.Release(), "the images' tag")
	f.StringVar(&o.revision, "revision", "unknown", "the commit that the programs were built from")
	f.StringVar(&o.repository, "repository", "docker.io/gpuready", "prefix of the images' names")
	f.StringVar(&o.base, "base", "", "base image: a reference, `default` for the Containerfile's own; empty: assemble it from this machine's distribution's packages")
	f.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture of the images: amd64 or arm64")
	f.Int64Var(&o.epoch, "epoch", 0, "time of every file and image, in seconds since 1970")
	f.StringVarP(&o.output, "output", "o", "table", "table with sizes, json, or name: the archives' paths alone")
	f.BoolVarP(&o.help, "help", "h", false, "print this")
	config.Describe(f, environment)
	if err := cmdline.Parse(f, args); err != nil {
		return nil, err
	}
	if o.help {
		return o, nil
	}
	if err := config.Env(f, environment); err != nil {
		return nil, err
	}
	o.names = slices.Compact(slices.Sorted(slices.Values(f.Args())))
	if o.out == "" {
		o.out = filepath.Join(o.bin, "images")
	}
	switch {
	case !slices.Contains([]string{"table", "json", "name"}, o.output):
		return nil, fmt.Errorf("--output=%s: it is table, json or name", o.output)
	case rootfs.Triplet(o.arch) == "":
		return nil, fmt.Errorf("--arch=%s: it is amd64 or arm64", o.arch)
	case !tag.MatchString(o.version):
		return nil, fmt.Errorf("--version=%s: letters, digits, dots and dashes are required, as in v1.2.3", o.version)
	case !repository.MatchString(o.repository):
		return nil, fmt.Errorf("--repository=%s: a registry and a folder are required, as in docker.io/gpuready", o.repository)
	case o.epoch < 0:
		return nil, errors.New("--epoch: nothing was made before 1970")
	}
	return o, nil
}
