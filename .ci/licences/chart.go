// The charts of others that the repository has, in the folder charts of its own.

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// chartFolder is the folder with the charts that gpuready's chart depends on.
const chartFolder = "deployments/helm/gpuready/charts"

// chartVersion matches the version of the software in a Chart.yaml.
var chartVersion = regexp.MustCompile(`(?m)^appVersion: "?([^"\s]+)"?$`)

// charts returns the section with the charts that others have written, each with its licence.
func charts(root string) (string, error) {
	folders, err := os.ReadDir(filepath.Join(root, chartFolder))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(chartHead)
	for _, f := range folders {
		dir := filepath.Join(root, chartFolder, f.Name())
		ids, err := licences(dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", dir, err)
		}
		if i := slices.IndexFunc(ids, func(id string) bool { return !slices.Contains(permitted, id) }); i >= 0 {
			return "", fmt.Errorf("%s has the licence %s, which is not permitted", dir, ids[i])
		}
		text, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
		if err != nil {
			return "", err
		}
		m := chartVersion.FindSubmatch(text)
		if m == nil {
			return "", errors.New(dir + "/Chart.yaml has no appVersion")
		}
		fmt.Fprintf(&b, "| [%s](%s) | %s | %s |\n", f.Name(), chartFolder+"/"+f.Name(), m[1], strings.Join(ids, " AND "))
	}
	return b.String(), nil
}

const chartHead = `
## In the chart

The Helm chart contains these charts, which are other projects' work. Files that differ from the original say so.

| Chart | Version | Licence (SPDX) |
|---|---|---|
`
