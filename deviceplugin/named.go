package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	strict "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// What to take where neither the node's label nor anybody else names a
// configuration. Words and meaning are those of the reference's config-manager
// (cmd/config-manager/main.go).
const (
	fallbackNamed  = "named"  // the one that is called default
	fallbackSingle = "single" // the one that there is
	fallbackEmpty  = "empty"  // none: flags, environment and defaults
	fallbackName   = "default"
)

// named is a folder of configurations, of which the node's label chooses one.
type named struct {
	dir      string
	name     string // chosen on the command line, whatever the label says
	standard string // where the node has no label
	fallback []string
	label    string
}

func (n *named) flags(f *pflag.FlagSet) {
	f.StringVar(&n.dir, "config-dir", "", "`folder` of configuration files, of which the node's label chooses one by its name")
	f.StringVar(&n.name, "config", "", "with --config-dir: take the file of this `name`, whatever the node's label says")
	f.StringVar(&n.standard, "default-config", "", "with --config-dir: the file for a node without the label")
	f.StringSliceVar(&n.fallback, "fallback-strategies", []string{fallbackNamed, fallbackSingle},
		"with --config-dir, without label and --default-config, the first that does: named (the file default), single (the only file), empty (no file)")
	f.StringVar(&n.label, "node-label", nodestate.ConfigLabel, "the label that chooses; there is no other")
}

func (n *named) check(file string) error {
	for _, strategy := range n.fallback {
		if !slices.Contains([]string{fallbackNamed, fallbackSingle, fallbackEmpty}, strategy) {
			return fmt.Errorf("--fallback-strategies: %q is not known, only named, single and empty", strategy)
		}
	}
	switch {
	case n.label != nodestate.ConfigLabel:
		return fmt.Errorf("--node-label: %q is not served, only %s", n.label, nodestate.ConfigLabel)
	case n.dir != "" && file != "":
		return errors.New("--config-dir and --config-file: either one of several configurations or one; leave one of the flags out")
	case n.dir == "" && n.name != "":
		return errors.New("--config names a file in --config-dir; add that, or write --config-file")
	}
	return nil
}

// choose returns the name of the configuration for a node with that label, ""
// for the empty one. Nothing but a name in the list is ever chosen, so that a label
// leads nowhere else.
func (n *named) choose(label string, there []string) (string, error) {
	for _, asked := range []struct{ name, by string }{
		{n.name, "--config"}, {label, "the node's label " + nodestate.ConfigLabel}, {n.standard, "--default-config"},
	} {
		switch {
		case asked.name == "":
		case slices.Contains(there, asked.name):
			return asked.name, nil
		default:
			return "", fmt.Errorf("%s: no configuration is called %q, as %s has it; %s%s", n.dir, asked.name, asked.by, available(there), strict.Suggest(asked.name, there))
		}
	}
	for _, strategy := range n.fallback {
		switch {
		case strategy == fallbackNamed && slices.Contains(there, fallbackName):
			return fallbackName, nil
		case strategy == fallbackSingle && len(there) == 1:
			return there[0], nil
		case strategy == fallbackEmpty:
			return "", nil
		}
	}
	return "", fmt.Errorf("%s: the node has no label %s, and --default-config and --fallback-strategies (%s) name no configuration; %s",
		n.dir, nodestate.ConfigLabel, strings.Join(n.fallback, ","), available(there))
}

func available(there []string) string {
	if len(there) == 0 {
		return "the folder has none"
	}
	return "there are " + strings.Join(there, ", ")
}

// list returns the names of the configurations. As the reference does it passes
// over folders, and what a mounted ConfigMap keeps for itself (..data).
func (n *named) list() ([]string, error) {
	entries, err := os.ReadDir(n.dir)
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

// read reads one of them, and nothing outside of the folder: not through a link
// either.
func (n *named) read(name string) ([]byte, error) {
	root, err := os.OpenRoot(n.dir)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer func() { _ = root.Close() }()
	return readRegular(func() (*os.File, error) { return root.OpenFile(name, openFlags, 0) }, filepath.Join(n.dir, name))
}

// resolved are the options with the configuration that they name, or that the node
// chooses now.
func (o *options) resolved() (*options, error) {
	if o.config != nil {
		return o, nil
	}
	found, err := o.chosen(o.labels())
	if errors.Is(err, plugin.ErrNotChosen) {
		there, listErr := o.named.list()
		if listErr != nil {
			return nil, listErr
		}
		return nil, fmt.Errorf("nobody has said which configuration of %s this node has; name one with --config: %s", o.named.dir, available(there))
	}
	return found, err
}
