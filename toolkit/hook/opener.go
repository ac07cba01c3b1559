package main

import (
	"fmt"
	"io"
	"os"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// opener opens the container once for all hooks of a call, when the first one needs it.
type opener struct {
	stdin  io.Reader
	root   *rootfs.Root
	bundle bundle
}

// open opens the container by its state, from standard input or a file.
func (o *opener) open(file string) (*rootfs.Root, bundle, error) {
	if o.root != nil {
		return o.root, o.bundle, nil
	}
	state := o.stdin
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, bundle{}, fmt.Errorf("container's state: %w", err)
		}
		defer f.Close()
		state = f
	}
	b, err := readBundle(state)
	if err != nil {
		return nil, b, err
	}
	root, err := rootfs.Open(b.Root)
	if err != nil {
		return nil, b, fmt.Errorf("container's root file system: %w", err)
	}
	o.root, o.bundle = root, b
	return root, b, nil
}

func (o *opener) close() {
	if o.root != nil {
		_ = o.root.Close()
	}
}
