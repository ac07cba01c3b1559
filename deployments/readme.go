// The table of values in the chart's README.

package deployments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// value is a value that a user may set.
type value struct {
	path, initial, about string
}

// valueTable returns the values of values.yaml in Markdown: each with a comment that begins
// with "-- ". A value without such a comment is an error.
func valueTable(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(values)).Decode(&document); err != nil {
		return "", err
	}
	var all []value
	if err := collect(document.Content[0], "", &all); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| Value | Default | What it is |\n|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.path, strings.ReplaceAll(v.initial, "|", `\|`), strings.ReplaceAll(v.about, "|", `\|`))
	}
	return b.String(), nil
}

func collect(n *yaml.Node, path string, all *[]value) error {
	for i := 0; i < len(n.Content); i += 2 {
		key, one := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if slices.Contains([]string{"node-feature-discovery"}, at) {
			*all = append(*all, value{at, "see values.yaml", "Values of Node Feature Discovery's own chart."})
			continue
		}
		if about, ok := strings.CutPrefix(key.HeadComment, "# -- "); ok {
			initial, err := compact(one)
			if err != nil {
				return err
			}
			*all = append(*all, value{at, initial, about})
			continue
		}
		if one.Kind != yaml.MappingNode || len(one.Content) == 0 {
			return fmt.Errorf("values.yaml:%d: %s has no comment that begins with \"-- \"", key.Line, at)
		}
		if err := collect(one, at, all); err != nil {
			return err
		}
	}
	return nil
}

// compact returns a value as JSON, on one line.
func compact(n *yaml.Node) (string, error) {
	var v any
	if err := n.Decode(&v); err != nil {
		return "", err
	}
	text, err := json.Marshal(v)
	return string(text), err
}

// Markers around the README's table.
const (
	tableBegin = "<!-- values -->\n"
	tableEnd   = "<!-- /values -->\n"
)

// fillReadme returns the README with the table of values in its place.
func fillReadme(readme, table string) (string, error) {
	head, rest, ok := strings.Cut(readme, tableBegin)
	_, tail, also := strings.Cut(rest, tableEnd)
	if !ok || !also {
		return "", errors.New("README.md: the marks around the table of values are missing")
	}
	return head + tableBegin + table + tableEnd + tail, nil
}
