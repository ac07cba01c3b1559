package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// openFlags keep a FIFO in the place of a file from being waited on.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_CLOEXEC

// follower reads the configuration again whenever it may have changed: the file,
// or which one of several is chosen. One goroutine uses it.
type follower struct {
	first *options // as they were parsed at the start
	log   *slog.Logger

	inForce *options          // last delivered; first from the start, where it has a configuration
	refused string            // why the last one was refused; "": it was not
	labels  map[string]string // what the node chooses by its labels; nil: it has not been said
}

// follow tells of each configuration that comes after that of the start, and of
// each that is refused and why, until ctx ends. What is in force stays when one is
// refused, and is told again when it is back.
func (f *follower) follow(ctx context.Context, deliver func(plugin.Settings, error)) error {
	again := make(chan struct{}, 1)
	poke := func() {
		select {
		case again <- struct{}{}:
		default: // one is waiting to be looked at
		}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	choices := make(chan map[string]string)
	f.labels = f.first.labels() // before the first look, which would find nothing chosen

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.first.watchFiles(ctx, poke) })
	group.Go(func() error { return f.first.watchChoice(ctx, choices) })
	group.Go(func() error {
		if f.first.config != nil {
			f.inForce = f.first
		}
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case f.labels = <-choices:
			case <-hangup:
				f.log.Info("SIGHUP: reading the configuration again", "path", f.first.path())
			case <-again:
			}
			if f.first.path() != "" {
				f.look(deliver)
			}
		}
	})
	return group.Wait()
}

// look reads the configuration and delivers what has changed.
func (f *follower) look(deliver func(plugin.Settings, error)) {
	next, err := f.read()
	switch {
	case errors.Is(err, errWriting), err != nil && f.refused == err.Error():
	case errors.Is(err, plugin.ErrNotChosen):
		f.refused = err.Error()
		f.log.Info(err.Error(), "reason", "ConfigNotChosen")
		deliver(plugin.Settings{}, err)
	case err != nil:
		f.refused = err.Error()
		f.log.Error("the configuration is refused; that of before stays in force", "path", f.first.path(), "reason", "ConfigRefused",
			"message", strings.ReplaceAll(err.Error(), "\n", "; "))
		deliver(plugin.Settings{}, err)
	case f.inForce.same(next) && f.refused == "":
	case f.inForce.same(next):
		f.refused = ""
		f.log.Info("the configuration is again the one in force", "path", next.configFile, "hash", next.hash)
		deliver(f.inForce.settingsInForce(), nil)
	default:
		f.refused = ""
		f.log.Info("a new configuration is in force", "path", next.configFile, "name", next.name, "hash", next.hash, "changes", strings.Join(changes(f.inForce, next), "; "))
		next.warn(f.log)
		f.inForce = next
		deliver(next.settingsInForce(), nil)
	}
}

// read makes options of what there is now. Command line and environment are what
// they were at the start, and win as they did.
func (f *follower) read() (*options, error) {
	if f.first.named.dir == "" {
		data, err := readRegular(func() (*os.File, error) { return os.OpenFile(f.first.configFile, openFlags, 0) }, f.first.configFile)
		if err != nil {
			return nil, err
		}
		return f.first.with("", data)
	}
	return f.first.chosen(f.labels)
}

// chosen are the options with the configuration that the labels choose; nil
// labels have not been said.
func (o *options) chosen(labels map[string]string) (*options, error) {
	if labels == nil && o.named.name == "" {
		return nil, fmt.Errorf("%w: waiting for gpu-validator on this node, whose daemon needs --node-name and the API server, to say what the node's label %s chooses", plugin.ErrNotChosen, nodestate.ConfigLabel)
	}
	there, err := o.named.list()
	if err != nil {
		return nil, err
	}
	name, err := o.named.choose(labels[nodestate.ConfigLabel], there)
	if err != nil || name == "" {
		return o.with("", nil, err)
	}
	data, err := o.named.read(name)
	return o.with(name, data, err)
}

// with are the options with another configuration file; nil data: none.
func (o *options) with(name string, data []byte, errs ...error) (*options, error) {
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	next := &options{help: o.help, component: o.component}
	flags, err := next.parseFlags(o.args, io.Discard)
	if err != nil {
		return nil, err
	}
	if next.name = name; name != "" {
		next.configFile = filepath.Join(o.named.dir, name)
	}
	return next, next.adopt(flags, data)
}

// same says that both came from the same bytes under the same name.
func (o *options) same(next *options) bool {
	return o != nil && o.hash == next.hash && o.name == next.name
}

// path is what is followed: a file, a folder, or nothing.
func (o *options) path() string {
	if o.named.dir != "" {
		return o.named.dir
	}
	return o.configFile
}

// watchFiles calls changed whenever the configuration may be another one.
func (o *options) watchFiles(ctx context.Context, changed func()) error {
	if o.path() == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	path := o.path()
	if o.named.dir != "" {
		path = filepath.Join(path, "*")
	}
	for {
		// Links are followed one by one: any of them may come to lead elsewhere, as
		// ..data of a mounted ConfigMap does.
		links := chain(path)
		watching, cancel := context.WithCancel(ctx)
		err := record.WatchWhole(watching, links, func() {
			changed()
			if !slices.Equal(links, chain(path)) {
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

// watchChoice tells what the node chooses by its labels, as the validator on this
// node says in this boot. What it said stands while it says nothing.
func (o *options) watchChoice(ctx context.Context, choices chan<- map[string]string) error {
	if o.named.dir == "" || o.named.name != "" {
		<-ctx.Done()
		return ctx.Err()
	}
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return err
	}
	return nodestate.WatchBoot(ctx, o.validatorDir(), boot, func(s nodestate.State, err error) {
		labels := chosenBy(s, err)
		if labels == nil {
			return
		}
		select {
		case choices <- labels:
		case <-ctx.Done():
		}
	})
}

// labels are what the node chooses now; nil: nobody has said.
func (o *options) labels() map[string]string {
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return nil
	}
	return chosenBy(nodestate.ReadBoot(o.validatorDir(), boot))
}

func chosenBy(s nodestate.State, err error) map[string]string {
	if err != nil || s.Validator == nil {
		return nil
	}
	return s.Validator.NodeLabels
}

func (o *options) validatorDir() string {
	return filepath.Join("/", o.hostRoot, o.stateDir, string(nodestate.Validator))
}

// chain are the directory entries that decide what a path leads to: each link on
// the way, and what is at its end.
func chain(path string) []string {
	const most = 40 // as the kernel follows
	var all []string
	rest := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
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
		rest = append(strings.Split(strings.TrimPrefix(filepath.Clean(to), "/"), "/"), rest...)
	}
	return append(all, at)
}

// changes says which settings differ, each with where it comes from now.
func changes(was, now *options) []string {
	before := map[string]string{}
	if was != nil {
		before, _ = leaves(was.config) // it is JSON by its making
	}
	after, _ := leaves(now.config)
	var all []string
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, path := range slices.Sorted(maps.Keys(both)) {
		if before[path] == after[path] || was == nil && now.origins()[path] == "" {
			continue
		}
		line := path + ": "
		if was != nil {
			line += orNone(before[path]) + " → "
		}
		line += orNone(after[path])
		if origin := now.origins()[path]; origin != "" {
			line += " (" + origin + ")"
		}
		all = append(all, line)
	}
	if len(all) == 0 {
		return []string{"none"}
	}
	return all
}

func orNone(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// origins says where each setting that is not as by default comes from.
func (o *options) origins() map[string]string {
	all := map[string]string{}
	fromFile, _ := leaves(o.file)
	for path := range fromFile {
		all[path] = o.configFile
	}
	for flag, path := range inFile {
		if origin := o.origin[flag]; origin != "" {
			all[path] = origin
		}
	}
	return all
}

// hash is short: it tells configurations apart, and proves nothing.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
