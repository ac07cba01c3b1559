package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// follower reads the configuration again whenever it may have changed: the file,
// or which one of several is chosen. One goroutine uses it.
type follower struct {
	first *options // as they were parsed at the start
	log   *slog.Logger

	inForce *options          // last delivered; first from the start, where it has a configuration
	refused string            // why the last one was refused; "": it was not
	labels  map[string]string // what the node chooses by its labels; nil: it has not been said
	hangup  chan os.Signal
}

// newFollower makes a follower. From here on SIGHUP ends this process no more.
func newFollower(first *options, log *slog.Logger) *follower {
	f := &follower{first: first, log: log, hangup: make(chan os.Signal, 1)}
	signal.Notify(f.hangup, syscall.SIGHUP)
	if first.config != nil {
		f.inForce = first
	}
	return f
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
	choices := make(chan map[string]string)
	// Before the first look, which would find nothing chosen.
	if f.labels = f.first.labels(); f.labels == nil && f.first.before != nil {
		f.labels = f.first.before.Labels
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.first.watchFiles(ctx, poke) })
	group.Go(func() error { return f.first.watchChoice(ctx, choices) })
	group.Go(func() error {
		pause := firstPause
		written := time.NewTimer(time.Hour)
		written.Stop()
		defer written.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case f.labels = <-choices:
			case <-f.hangup:
				f.log.Info("SIGHUP: reading the configuration again", "path", f.first.path())
			case <-again:
				pause = firstPause
			case <-written.C:
			}
			if f.first.path() == "" {
				continue
			}
			if written.Stop(); f.look(deliver) {
				written.Reset(pause)
				pause = min(2*pause, lastPause)
			}
		}
	})
	return group.Wait()
}

// How long to wait before a file that was being written is looked at again. The
// kernel tells of a writer's closing it before the writer counts as gone (fs/file_table.c,
// __fput), and of that it tells nobody.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 10 * time.Second
)

// look reads the configuration and delivers what has changed. It says whether the
// file is being written.
func (f *follower) look(deliver func(plugin.Settings, error)) (writing bool) {
	next, err := f.read()
	switch {
	case errors.Is(err, errWriting):
		return true
	case err != nil && f.refused == err.Error():
	case errors.Is(err, plugin.ErrNotChosen):
		f.refused = err.Error()
		f.log.Info(err.Error(), "reason", "ConfigNotChosen")
		deliver(plugin.Settings{}, err)
	case err != nil:
		f.refused = err.Error()
		f.log.Error("the configuration is refused; that of before stays in force", "path", f.first.path(), "reason", "ConfigRefused",
			"message", short(strings.ReplaceAll(err.Error(), "\n", "; ")))
		deliver(plugin.Settings{}, err)
	case f.inForce.same(next) && f.refused == "":
	case f.inForce.same(next):
		f.refused = ""
		f.log.Info("the configuration is again the one in force", "path", next.configFile, "hash", next.hash)
		deliver(f.inForce.settingsInForce(), nil)
	default:
		f.refused = ""
		f.log.Info("a new configuration is in force", "path", next.configFile, "name", next.name, "hash", next.hash, "changes", short(strings.Join(changes(f.inForce, next), "; ")))
		next.warn(f.log)
		f.inForce = next
		deliver(next.settingsInForce(), nil)
	}
	return false
}

// short bounds a line of the log: a file of a megabyte may be wrong in every line.
func short(s string) string { return record.Clean(s, 8000) }

// read makes options of what there is now. Command line and environment are what
// they were at the start, and win as they did.
func (f *follower) read() (*options, error) {
	if f.first.named.dir == "" {
		data, err := readFile(f.first.configFile)
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
	next := &options{help: o.help, component: o.component, data: data}
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

// hash is short: it tells configurations apart, and proves nothing.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
