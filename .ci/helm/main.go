// Helm generates files of the chart, and from it, with helm's own code.
//
//	go run . generate             completes the folder of the chart, deployments/helm/gpuready, and writes
//	                              deployments/static/operator.yaml and its example policies; it takes the
//	                              CustomResourceDefinitions from bin/crds, where controller-gen writes them
//	go run . package              packs the folder into bin/charts/gpuready-<version>.tgz
//	go run . package IMAGES DIR   packs the chart of a release into DIR, with the digests of the images in
//	                              the file IMAGES
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
		return fmt.Errorf("usage: go run . generate|package [IMAGES DIR]")
	}
	dir := filepath.Join(root, "deployments/helm/gpuready")
	switch args[0] {
	case "generate":
		if err := completeChart(ctx, filepath.Join(root, "bin"), dir); err != nil {
			return err
		}
		return writeStatic(dir, filepath.Join(root, "deployments/static"))
	case "package":
		to, images := filepath.Join(root, "bin/charts"), (*pinned)(nil)
		if len(args) == 3 {
			var err error
			if images, err = readPinned(args[1]); err != nil {
				return err
			}
			to = args[2]
		}
		path, err := pack(dir, images, to)
		if err == nil {
			fmt.Println(filepath.Clean(path))
		}
		return err
	}
	return fmt.Errorf("%q is neither generate nor package", args[0])
}

// pack writes the chart's archive into a folder, with the images of a release unless they are nil, and returns
// the archive's path.
func pack(from string, images *pinned, to string) (string, error) {
	c, err := loadChart(from, images)
	if err != nil {
		return "", err
	}
	if images != nil && c.Metadata.AppVersion != images.Version {
		return "", fmt.Errorf("Chart.yaml: appVersion is %s, and the release %s: set the version first (docs/release.md)",
			c.Metadata.AppVersion, images.Version)
	}
	return chartutil.Save(c, to)
}
