package settings

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// watchFiles calls changed whenever the configuration may have changed.
func (o *Options) watchFiles(ctx context.Context, changed func()) error {
	if o.watchedPath() == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		// Links are watched one by one: any of them may be changed, as
		// ..data of a mounted ConfigMap does.
		links := o.linkChains()
		watching, cancel := context.WithCancel(ctx)
		err := record.WatchWhole(watching, links, func() {
			changed()
			if !slices.Equal(links, o.linkChains()) {
				cancel()
			}
		})
		restart := watching.Err() != nil && ctx.Err() == nil
		cancel()
		if !restart {
			return err
		}
	}
}

// linkChains returns the directory entries on which the configuration depends. For a
// folder those are all its entries, and the targets of links.
func (o *Options) linkChains() []string {
	if o.configs.dir == "" {
		return linkChain(o.ConfigFile)
	}
	all := linkChain(filepath.Join(o.configs.dir, "*"))
	names, _ := ListConfigs(o.configs.dir) // a missing folder has none
	for _, name := range names {
		all = append(all, linkChain(filepath.Join(o.configs.dir, name))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// linkChain returns the directory entries that determine the target of a path: each
// link on the way, and the target itself.
func linkChain(path string) []string {
	const most = 40 // the kernel's limit
	var all []string
	parts := func(path string) []string { return strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) }
	rest := parts(path) // not cleaned: the meaning of .. depends on the links before it
	at := "/"
	if !filepath.IsAbs(path) {
		at = "."
	}
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		if err != nil {
			at = next
			continue
		}
		if all = append(all, next); len(all) == most {
			return all
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(parts(target), rest...)
	}
	return append(all, at)
}
