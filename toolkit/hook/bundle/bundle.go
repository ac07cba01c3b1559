// Package bundle finds out, from what an OCI runtime writes to a hook's
// standard input, where the container's root file system is and what is
// mounted into it.
package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Far above what runtimes write; below what hurts.
const (
	maxState  = 1 << 20
	maxConfig = 32 << 20
)

// Bundle is a container that is being created.
type Bundle struct {
	Root   string   // directory of the root file system; never "/"
	Mounts []string // destinations, absolute and clean
}

// Read reads the container's state (OCI runtime specification, "State") and the
// config.json of the bundle that it names.
func Read(state io.Reader) (Bundle, error) {
	dir, err := parseState(state)
	if err != nil {
		return Bundle{}, err
	}
	f, err := os.Open(path.Join(dir, "config.json"))
	if err != nil {
		return Bundle{}, fmt.Errorf("container's configuration: %w", err)
	}
	defer f.Close()
	b, err := parseConfig(f, dir)
	if err != nil {
		return Bundle{}, fmt.Errorf("container's configuration %s: %w", f.Name(), err)
	}
	return b, nil
}

func parseState(r io.Reader) (dir string, err error) {
	var state struct {
		Bundle     string `json:"bundle"`
		BundlePath string `json:"bundlePath"` // what runc before 1.0 called it
	}
	if err := decode(r, maxState, &state); err != nil {
		return "", fmt.Errorf("container's state on standard input: %w; this program is an OCI hook, run by a container runtime", err)
	}
	if state.Bundle == "" {
		state.Bundle = state.BundlePath
	}
	if !path.IsAbs(state.Bundle) {
		return "", fmt.Errorf("container's state on standard input: bundle %q is not an absolute path", state.Bundle)
	}
	return path.Clean(state.Bundle), nil
}

func parseConfig(r io.Reader, dir string) (Bundle, error) {
	var config struct {
		Root *struct {
			Path string `json:"path"`
		} `json:"root"`
		Mounts []struct {
			Destination string `json:"destination"`
		} `json:"mounts"`
	}
	if err := decode(r, maxConfig, &config); err != nil {
		return Bundle{}, err
	}
	if config.Root == nil || config.Root.Path == "" {
		return Bundle{}, errors.New("root.path is missing")
	}
	b := Bundle{Root: path.Clean(config.Root.Path)}
	if !path.IsAbs(b.Root) {
		b.Root = path.Join(dir, b.Root)
	}
	if b.Root == "/" || strings.ContainsRune(b.Root, 0) {
		return Bundle{}, fmt.Errorf("root.path %q cannot be a container's", config.Root.Path)
	}
	for _, m := range config.Mounts {
		b.Mounts = append(b.Mounts, path.Clean("/"+m.Destination))
	}
	return b, nil
}

func decode(r io.Reader, limit int64, into any) error {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return err
	}
	if int64(len(data)) > limit {
		return fmt.Errorf("more than %d bytes", limit)
	}
	return json.Unmarshal(data, into)
}
