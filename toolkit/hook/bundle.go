package main

// This file reads a container's root file system and mounts from the state that an
// OCI runtime writes to a hook's standard input.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

// Limits well above the sizes that runtimes write.
const (
	maxState  = 1 << 20
	maxConfig = 32 << 20
)

// bundle is a container that is being created.
type bundle struct {
	Root   string   // directory of the root file system; never "/"
	Mounts []string // destinations, absolute and clean
}

// readBundle reads the container's state (OCI runtime specification, "State") and the
// config.json of the bundle that it names.
func readBundle(state io.Reader) (bundle, error) {
	dir, err := parseState(state)
	if err != nil {
		return bundle{}, err
	}
	b, err := readConfig(dir)
	if err != nil {
		return bundle{}, fmt.Errorf("container's configuration %s: %w", path.Join(dir, "config.json"), err)
	}
	return b, nil
}

func parseState(r io.Reader) (dir string, err error) {
	var state struct {
		Bundle     string `json:"bundle"`
		BundlePath string `json:"bundlePath"` // the name in runc before 1.0
	}
	// Do not wait for the end of the input: a runtime may keep the pipe open.
	limited := &io.LimitedReader{R: r, N: maxState}
	if err := json.NewDecoder(limited).Decode(&state); err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("more than %d bytes", maxState)
		}
		return "", fmt.Errorf("container's state on standard input: %w; this program is an OCI hook, run by a container runtime", err)
	}
	if state.Bundle == "" {
		state.Bundle = state.BundlePath
	}
	if !path.IsAbs(state.Bundle) || strings.ContainsRune(state.Bundle, 0) {
		return "", fmt.Errorf("container's state on standard input: bundle %q is not an absolute path", clip(state.Bundle))
	}
	return path.Clean(state.Bundle), nil
}

// readConfig reads a regular file, and nothing that could block.
func readConfig(dir string) (bundle, error) {
	f, err := os.OpenFile(path.Join(dir, "config.json"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if p, ok := errors.AsType[*os.PathError](err); ok {
			err = p.Err
		}
		return bundle{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return bundle{}, errors.Join(errors.New("not a regular file"), err)
	}
	return parseConfig(f, dir)
}

func parseConfig(r io.Reader, dir string) (bundle, error) {
	var config struct {
		Root *struct {
			Path string `json:"path"`
		} `json:"root"`
		Mounts []struct {
			Destination string `json:"destination"`
		} `json:"mounts"`
	}
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return bundle{}, err
	}
	if len(data) > maxConfig {
		return bundle{}, fmt.Errorf("more than %d bytes", maxConfig)
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return bundle{}, err
	}
	if config.Root == nil || config.Root.Path == "" {
		return bundle{}, errors.New("root.path is missing")
	}
	b := bundle{Root: path.Clean(config.Root.Path)}
	if !path.IsAbs(b.Root) {
		b.Root = path.Join(dir, b.Root)
	}
	if b.Root == "/" || strings.ContainsRune(b.Root, 0) {
		return bundle{}, fmt.Errorf("root.path %q cannot be a container's", clip(config.Root.Path))
	}
	for _, m := range config.Mounts {
		b.Mounts = append(b.Mounts, path.Clean("/"+m.Destination))
	}
	return b, nil
}

// clip shortens untrusted text for a message.
func clip(s string) string { return s[:min(len(s), 200)] }
