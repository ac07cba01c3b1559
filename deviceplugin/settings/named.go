package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/suggest"
)

// Strategies for choosing a configuration that neither the node's label nor a flag
// names. Words and meaning are those of NVIDIA's config-manager
// (cmd/config-manager/main.go).
const (
	fallbackNamed  = "named"  // the one named default
	fallbackSingle = "single" // the only one
	fallbackEmpty  = "empty"  // none: flags, environment and defaults
	fallbackName   = "default"
)

// configSet describes a folder of configurations and how one of them is chosen.
type configSet struct {
	dir      string   // "": there is no folder
	name     string   // chosen on the command line, overriding the label
	standard string   // for a node without the label
	fallback []string // strategies for a node without the label, if standard is ""
	label    string   // the node's label; only nodestate.ConfigLabel is supported
}

func (n *configSet) addFlags(f *pflag.FlagSet) {
	f.StringVar(&n.dir, "config-dir", "", "`folder` of configuration files, of which the node's label chooses one by its name")
	f.StringVar(&n.name, "config", "", "with --config-dir: use the file of this `name`, whatever the node's label")
	f.StringVar(&n.standard, "default-config", "", "with --config-dir: the file for a node without the label")
	f.StringSliceVar(&n.fallback, "fallback-strategies", []string{fallbackNamed, fallbackSingle},
		"with --config-dir, without label and --default-config, the first that applies: named (the file default), single (the only file), empty (no file)")
	f.StringVar(&n.label, "node-label", nodestate.ConfigLabel, "the label that chooses; only the default is supported")
}

// checkFlags refuses unsupported values. file is that of --config-file.
func (n *configSet) checkFlags(file string) error {
	for _, strategy := range n.fallback {
		if !slices.Contains([]string{fallbackNamed, fallbackSingle, fallbackEmpty}, strategy) {
			return fmt.Errorf("--fallback-strategies: %q is not known, only named, single and empty", strategy)
		}
	}
	switch {
	case n.label != nodestate.ConfigLabel:
		return fmt.Errorf("--node-label: %q is not supported, only %s", n.label, nodestate.ConfigLabel)
	case n.dir != "" && file != "":
		return errors.New("--config-dir and --config-file exclude each other; remove one of the flags")
	case n.dir == "" && n.name != "":
		return errors.New("--config names a file in --config-dir; add that, or use --config-file")
	}
	return nil
}

// chooseName returns the name of the configuration for a node with that value of the label, or
// "" to use no file. names lists the files in the folder. Only one of them is ever returned, so
// that a label cannot name a file elsewhere.
func (n *configSet) chooseName(label string, names []string) (string, error) {
	for _, choice := range []struct{ name, by string }{
		{n.name, "--config"}, {label, "the node's label " + nodestate.ConfigLabel}, {n.standard, "--default-config"},
	} {
		switch {
		case choice.name == "":
		case slices.Contains(names, choice.name):
			return choice.name, nil
		default:
			return "", fmt.Errorf("%s: no configuration is called %q, as %s has it; %s%s",
				n.dir, choice.name, choice.by, describeNames(names), suggest.Similar(choice.name, names))
		}
	}
	for _, strategy := range n.fallback {
		switch {
		case strategy == fallbackNamed && slices.Contains(names, fallbackName):
			return fallbackName, nil
		case strategy == fallbackSingle && len(names) == 1:
			return names[0], nil
		case strategy == fallbackEmpty:
			return "", nil
		}
	}
	return "", fmt.Errorf("%s: the node has no label %s, and --default-config and --fallback-strategies (%s) name no configuration; %s",
		n.dir, nodestate.ConfigLabel, strings.Join(n.fallback, ","), describeNames(names))
}

// describeNames lists the configurations for an error.
func describeNames(names []string) string {
	switch len(names) {
	case 0:
		return "the folder has none"
	case 1:
		return "there is only " + names[0]
	}
	return "there are " + strings.Join(names, ", ")
}

// ListConfigs returns the names of the configurations in a folder. Like NVIDIA's device
// plugin it skips folders and the internal entries of a mounted ConfigMap (..data).
func ListConfigs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the configurations: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), "..") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// ReadConfig reads a configuration of a folder, and nothing outside of the folder, not even
// through a link.
func ReadConfig(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer func() { _ = root.Close() }()
	return readRegular(func() (*os.File, error) { return root.OpenFile(name, openFlags, 0) }, filepath.Join(dir, name))
}

// Resolve returns the options with a configuration: the one that they have, or else the one that
// the node chooses now.
func (o *Options) Resolve() (*Options, error) {
	if o.Config != nil {
		return o, nil
	}
	found, err := o.withLabels(o.readLabels())
	if errors.Is(err, config.ErrNotChosen) {
		names, listErr := ListConfigs(o.configs.dir)
		if listErr != nil {
			return nil, listErr
		}
		return nil, fmt.Errorf("no configuration of %s is chosen for this node yet; name one with --config: %s", o.configs.dir, describeNames(names))
	}
	return found, err
}
