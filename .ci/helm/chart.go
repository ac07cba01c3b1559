// Loading the chart gpuready, with the files that are generated and with its dependency, and rendering it
// as `helm template` does.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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

// sourceAnnotation is the annotation in Chart.yaml that says where the chart of Node Feature Discovery
// (NFD) comes from: a Go module at a version. The module mirror has it even if the repository of NFD's
// charts cannot be reached.
const sourceAnnotation = "gpuready.io/node-feature-discovery"

// nfdSum is the hash of that module, as in go.sum.
const nfdSum = "h1:9CYm16vjSIbNO5Z1Y67rcrfy51YWmy3+6wjiWzJbrC4="

// renderOptions are the parameters for rendering a chart.
type renderOptions struct {
	Namespace string
	Values    map[string]any
	Versions  []string // further APIs of the cluster, such as "security.openshift.io/v1"
	Kube      string   // version of Kubernetes; "": the newest known to helm
	// Cluster returns the objects that templates look up; nil: there is no cluster.
	Cluster engine.ClientProvider
}

// The CustomResourceDefinitions in the chart.
const (
	policyFile = "crds/nvidia.com_clusterpolicies.yaml"
	driverFile = "crds/nvidia.com_nvidiadrivers.yaml"
)

// fileTime is the time of every file in the chart's archive, so that the same content gives the same
// bytes.
var fileTime = time.Unix(0, 0)

// crds are the CustomResourceDefinitions of ClusterPolicy and NVIDIADriver.
type crds struct{ policy, driver []byte }

// readCRDs reads the CustomResourceDefinitions that controller-gen has written into a folder.
func readCRDs(dir string) (all crds, err error) {
	if all.policy, err = os.ReadFile(filepath.Join(dir, policyFile)); err != nil {
		return all, err
	}
	all.driver, err = os.ReadFile(filepath.Join(dir, driverFile))
	return all, err
}

// loadChart reads the chart in a folder, and adds what the repository does not have there: the
// CustomResourceDefinitions, the schemas of the values, and the chart of Node Feature Discovery.
// images, unless nil, are the images of a release of gpuready with their digests, to be written into
// values.yaml.
func loadChart(ctx context.Context, dir string, all crds, images *pinned) (*chart.Chart, error) {
	files, err := readTree(dir)
	if err != nil {
		return nil, err
	}
	if images != nil {
		if files, err = images.write(files); err != nil {
			return nil, err
		}
	}
	from := sources{crds: all}
	for name, data := range map[string]*[]byte{"values.yaml": &from.values, "files/nvidia-values.yaml": &from.nvidiaValues, "files/ignored-fields.yaml": &from.ignoredFields} {
		i := slices.IndexFunc(files, func(f *archive.BufferedFile) bool { return f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%s has no %s", dir, name)
		}
		*data = files[i].Data
	}
	made, err := generate(from)
	if err != nil {
		return nil, err
	}
	c, err := loader.LoadFiles(append(files, made...))
	if err != nil {
		return nil, err
	}
	if len(c.Dependencies()) > 0 { // the folder has them already
		return c, nil
	}
	nfd, err := loadNFD(ctx, c.Metadata.Annotations[sourceAnnotation])
	if err != nil {
		return nil, err
	}
	want := c.Metadata.Dependencies[0]
	if nfd.Metadata.Version != want.Version {
		return nil, fmt.Errorf("Chart.yaml: the dependency %s is wanted in version %s, %s has %s", want.Name, want.Version, c.Metadata.Annotations[sourceAnnotation], nfd.Metadata.Version)
	}
	c.AddDependency(nfd)
	return c, nil
}

// generate returns the files of the chart that the repository does not have.
func generate(from sources) ([]*archive.BufferedFile, error) {
	schemas, err := newSchemas(from)
	if err != nil {
		return nil, err
	}
	validation, err := schemas.validation()
	if err != nil {
		return nil, err
	}
	data, err := schemas.data()
	return []*archive.BufferedFile{
		{Name: policyFile, ModTime: fileTime, Data: from.crds.policy},
		{Name: driverFile, ModTime: fileTime, Data: from.crds.driver},
		{Name: "values.schema.json", ModTime: fileTime, Data: validation},
		{Name: "files/values.json", ModTime: fileTime, Data: data},
	}, err
}

// readCRDsFromManifest returns the CustomResourceDefinitions in the manifest that users apply,
// deployments/static/operator.yaml.
func readCRDsFromManifest(manifest string) (all crds, err error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return all, err
	}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		switch {
		case !bytes.Contains(document, []byte("\nkind: CustomResourceDefinition\n")):
		case bytes.Contains(document, []byte("\n  name: clusterpolicies.nvidia.com\n")):
			all.policy = append(document, '\n')
		case bytes.Contains(document, []byte("\n  name: nvidiadrivers.nvidia.com\n")):
			all.driver = append(document, '\n')
		}
	}
	if all.policy == nil || all.driver == nil {
		err = fmt.Errorf("%s lacks a CustomResourceDefinition: run make generate", manifest)
	}
	return all, err
}

// loadNFD downloads the Go module of Node Feature Discovery, checks its hash, and loads its chart.
func loadNFD(ctx context.Context, module string) (*chart.Chart, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var m struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &m); err != nil || jsonErr != nil {
		return nil, fmt.Errorf("go mod download %s: %s: %w", module, m.Error, errors.Join(err, jsonErr))
	}
	if m.Sum != nfdSum {
		return nil, fmt.Errorf("%s has the sum %s, not %s; if it is another version, write its sum into nfdSum of .ci/helm/chart.go", module, m.Sum, nfdSum)
	}
	files, err := readTree(filepath.Join(m.Dir, "deployment/helm/node-feature-discovery"))
	if err != nil {
		return nil, err
	}
	if err := acceptTexts(files); err != nil {
		return nil, fmt.Errorf("%s: %w", module, err)
	}
	return loader.LoadFiles(files)
}

// acceptTexts changes the chart of Node Feature Discovery so that worker.config and master.config may be
// strings, too. Values for NVIDIA's chart before its version 1.9, which had an older NFD, have strings.
func acceptTexts(files []*archive.BufferedFile) error {
	replaced := 0
	for _, f := range files {
		for _, name := range []string{"worker", "master"} {
			value := ".Values." + name + ".config"
			old, text := "{{- "+value+" | toYaml | nindent 4 }}", "{{- kindIs \"string\" "+value+" | ternary "+value+" (toYaml "+value+") | nindent 4 }}"
			if f.Name == "templates/nfd-"+name+"-conf.yaml" && bytes.Count(f.Data, []byte(old)) == 1 {
				f.Data = bytes.Replace(f.Data, []byte(old), []byte(text), 1)
				replaced++
			}
		}
		if f.Name != "values.schema.json" {
			continue
		}
		var s map[string]any
		if err := json.Unmarshal(f.Data, &s); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		for _, name := range []string{"worker", "master"} {
			config, is := dig(s, "properties", name, "properties", "config")
			if types, ok := config["type"].([]any); is && ok {
				config["type"] = append(types, "string")
				replaced++
			}
		}
		data, err := json.Marshal(s)
		if err != nil {
			return err
		}
		f.Data = data
	}
	if replaced != 4 {
		return errors.New("its configurations are not where they were: adapt acceptTexts")
	}
	return nil
}

// dig returns the object at a path of names.
func dig(object map[string]any, path ...string) (map[string]any, bool) {
	for _, name := range path {
		next, is := object[name].(map[string]any)
		if !is {
			return nil, false
		}
		object = next
	}
	return object, true
}

// readTree returns the files of a folder, except for *.gotmpl: templates for README files.
func readTree(dir string) ([]*archive.BufferedFile, error) {
	var files []*archive.BufferedFile
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".gotmpl" {
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
