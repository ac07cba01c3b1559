// Helm generates files from the chart with helm's own code.
//
// go run . static     writes deployments/static/operator.yaml and its example policies; it
//
//	takes the CustomResourceDefinitions from bin/crds, where controller-gen writes them
//
// go run . package    writes bin/charts/gpuready-<version>.tgz, complete; package IMAGES DIR writes
//
//	the chart of a release to DIR, with the digests of the images in the file IMAGES
//
// Run it in .ci/helm. Exit code 2 means that a command failed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

const root = "../.."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 && (len(args) != 3 || args[0] != "package") {
		return fmt.Errorf("usage: go run . static|package [IMAGES DIR]")
	}
	dir, manifests := filepath.Join(root, "deployments/helm/gpuready"), filepath.Join(root, "deployments/static")
	switch args[0] {
	case "static":
		all, err := readCRDs(filepath.Join(root, "bin"))
		if err != nil {
			return fmt.Errorf("%w: run make generate", err)
		}
		return writeStatic(ctx, dir, all, manifests)
	case "package":
		all, err := readCRDsFromManifest(filepath.Join(manifests, "operator.yaml"))
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return pack(ctx, dir, all, nil, filepath.Join(root, "bin/charts"))
		}
		images, err := readPinned(args[1])
		if err != nil {
			return err
		}
		return pack(ctx, dir, all, images, args[2])
	}
	return fmt.Errorf("%q is neither static nor package", args[0])
}

// pack writes the chart's archive into a folder, with the images of a release unless they are nil.
func pack(ctx context.Context, from string, all crds, images *pinned, to string) error {
	c, err := loadChart(ctx, from, all, images)
	if err != nil {
		return err
	}
	if images != nil && c.Metadata.AppVersion != images.Version {
		return fmt.Errorf("Chart.yaml: appVersion is %s, and the release %s: set the version first (docs/versions.md)", c.Metadata.AppVersion, images.Version)
	}
	path, err := chartutil.Save(c, to)
	if err == nil {
		fmt.Println(filepath.Clean(path))
	}
	return err
}
