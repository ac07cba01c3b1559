package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// watchFiles calls changed whenever the configuration may be another one.
func (o *options) watchFiles(ctx context.Context, changed func()) error {
	if o.path() == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		// Links are followed one by one: any of them may come to lead elsewhere, as
		// ..data of a mounted ConfigMap does.
		links := o.chains()
		watching, cancel := context.WithCancel(ctx)
		err := record.WatchWhole(watching, links, func() {
			changed()
			if !slices.Equal(links, o.chains()) {
				cancel()
			}
		})
		again := watching.Err() != nil && ctx.Err() == nil
		cancel()
		if !again {
			return err
		}
	}
}

// chains are the directory entries on which the configuration depends. In a folder
// those are all that it has, and what links lead to.
func (o *options) chains() []string {
	if o.named.dir == "" {
		return chain(o.configFile)
	}
	all := chain(filepath.Join(o.named.dir, "*"))
	there, _ := o.named.list() // a folder that is not there has none
	for _, name := range there {
		all = append(all, chain(filepath.Join(o.named.dir, name))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// chain are the directory entries that decide what a path leads to: each link on
// the way, and what is at its end.
func chain(path string) []string {
	const most = 40 // as the kernel follows
	var all []string
	parts := func(path string) []string { return strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) }
	rest := parts(path) // not cleaned: what .. is depends on the links before it
	at := "/"
	if !filepath.IsAbs(path) {
		at = "."
	}
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		to, err := os.Readlink(next)
		if err != nil {
			at = next
			continue
		}
		if all = append(all, next); len(all) == most {
			return all
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(parts(to), rest...)
	}
	return append(all, at)
}
