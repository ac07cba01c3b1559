// Loading the chart gpuready, and rendering it as `helm template` does.

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	charts "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

// renderOptions are the parameters for rendering a chart.
type renderOptions struct {
	Namespace string
	Values    map[string]any
	Versions  []string // further APIs of the cluster, such as "security.openshift.io/v1"
	Kube      string   // version of Kubernetes; "": the newest known to helm
	// Cluster returns the objects that templates look up; nil: there is no cluster.
	Cluster engine.ClientProvider
}

// fileTime is the time of every file in the chart's archive, so that the same content gives the same
// bytes.
var fileTime = time.Unix(0, 0)

// loadChart reads the chart in a folder. images, unless nil, are the images of a release of gpuready with
// their digests, to be written into values.yaml.
func loadChart(dir string, images *pinned) (*chart.Chart, error) {
	files, err := readTree(dir)
	if err == nil && images != nil {
		files, err = images.write(files)
	}
	if err != nil {
		return nil, err
	}
	return loader.LoadFiles(files)
}

// readTree returns the files of a folder, with the time fileTime.
func readTree(dir string) ([]*archive.BufferedFile, error) {
	var files []*archive.BufferedFile
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files = append(files, &archive.BufferedFile{Name: filepath.ToSlash(name), ModTime: fileTime, Data: data})
		return err
	})
	return files, err
}

// notesFile has the text that Helm prints after an installation.
const notesFile = "gpuready/templates/NOTES.txt"

// renderChart returns what would be installed: the templates' output by file, hooks included.
func renderChart(c *chart.Chart, r renderOptions) (map[string]string, error) {
	files, err := renderAll(c, r)
	delete(files, notesFile)
	return files, err
}

// renderAll returns the same and the text of notesFile.
func renderAll(c *chart.Chart, r renderOptions) (map[string]string, error) {
	if r.Values == nil {
		r.Values = map[string]any{}
	}
	if err := chartutil.ProcessDependencies(c, r.Values); err != nil {
		return nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), r.Versions...)
	if r.Kube != "" {
		version, err := common.ParseKubeVersion(r.Kube)
		if err != nil {
			return nil, err
		}
		capabilities.KubeVersion = *version
	}
	options := common.ReleaseOptions{Name: "gpuready", Namespace: r.Namespace, Revision: 1, IsInstall: true}
	values, err := util.ToRenderValues(c, r.Values, options, capabilities)
	if err != nil {
		return nil, err
	}
	render := engine.Engine{Strict: false}.Render
	if r.Cluster != nil {
		render = func(c charts.Charter, values common.Values) (map[string]string, error) {
			return engine.RenderWithClientProvider(c, values, r.Cluster)
		}
	}
	files, err := render(c, values)
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		if strings.TrimSpace(text) == "" || strings.HasSuffix(name, "NOTES.txt") && name != notesFile {
			delete(files, name)
		}
	}
	return files, nil
}
