package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"

	"github.com/gpuready/gpuready/deployments/release/assemble"
	"github.com/gpuready/gpuready/internal/program"
)

const buildUsage = `Make the folder of a release from what make built. make release builds that before: images,
kubectl-gpu, and the programs that make chart, bundle and catalog. The same commit and the same
packages give the same bytes. See docs/release.md for what is in the folder.

Examples:
  release build --version v0.2.0 --registry registry.example.com/gpuready
  release build --version v0.2.0 --registry localhost:5000/gpuready --allow-dirty
`

// build is the command build.
func build(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release build", buildUsage, exitCodes, stdout)
	o := assemble.Options{Logf: newProgress(stderr), Tools: assemble.DebianTools}
	f.StringVar(&o.Version, "version", "", "version of the release: v1.2.3")
	f.StringVar(&o.Registry, "registry", "", "where it will be pushed, host and path: registry.example.com/gpuready")
	f.StringVar(&o.Out, "dir", "", "folder to make (default bin/release/VERSION)")
	f.StringVar(&o.Top, "source", ".", "folder of the repository")
	f.StringVar(&o.Images, "images", "bin/release/images", "folder with a folder for each architecture, with archives of images")
	f.StringVar(&o.Kubectl, "kubectl", "bin/krew", "folder with the archives of kubectl-gpu")
	f.StringVar(&o.Programs, "tools", "bin/tools", "folder with the programs that make chart and bundle")
	f.StringVar(&o.Catalog, "catalog", "bin/catalog", "folder with a folder for each architecture, with opm and grpc_health_probe")
	f.BoolVar(&o.AllowDirty, "allow-dirty", false, "accept changes that are not committed, for an experiment")
	check := f.Bool("check", false, "only check that a release can be made of the source")
	f.StringVar(&o.Builder, "builder", "https://github.com/gpuready/gpuready/blob/main/docs/release.md", "URI of who builds, for the provenance")
	f.StringVar(&o.RunID, "run-id", "", "ID of the CI system's run, for the provenance (default: made of the time)")
	maps.Copy(f.Env, map[string]string{"version": "VERSION", "registry": "REGISTRY", "dir": "RELEASE_DIR", "builder": "BUILDER_ID", "run-id": "RUN_ID"})
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	switch {
	case o.Version == "":
		return program.UsageErrorf("--version: a semantic version such as v1.2.3 is required")
	case o.Registry == "":
		return program.UsageErrorf("--registry: host and path are required, such as registry.example.com/gpuready")
	case o.Out == "":
		o.Out = filepath.Join("bin/release", o.Version)
	}
	if *check {
		return assemble.Check(ctx, o)
	}
	release, err := assemble.Build(ctx, o)
	if err != nil {
		return err
	}
	for _, a := range release.Artifacts {
		if _, err := fmt.Fprintln(stdout, release.Reference(a)); err != nil {
			return err
		}
	}
	return nil
}
