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

// configWatcher reloads the configuration whenever the file or the choice of one may
// have changed. It is for use by one goroutine.
type configWatcher struct {
	first *options // as parsed at the start
	log   *slog.Logger

	inForce *options          // last delivered; initially first, if it has a configuration
	refused string            // why the last one was refused, or ""
	labels  map[string]string // of the node, which choose the configuration; nil: unknown
	hangup  chan os.Signal
}

// newConfigWatcher returns a configWatcher. From here on SIGHUP no longer ends this
// process.
func newConfigWatcher(first *options, log *slog.Logger) *configWatcher {
	f := &configWatcher{first: first, log: log, hangup: make(chan os.Signal, 1)}
	signal.Notify(f.hangup, syscall.SIGHUP)
	if first.config != nil {
		f.inForce = first
	}
	return f
}

// watch delivers each configuration after the initial one, or the error of a refused
// one, until ctx ends. After a refusal the one in force stays, and is delivered again
// when the file has it again.
func (f *configWatcher) watch(ctx context.Context, deliver func(plugin.Settings, error)) error {
	again := make(chan struct{}, 1)
	poke := func() {
		select {
		case again <- struct{}{}:
		default: // one is pending
		}
	}
	choices := make(chan map[string]string)
	// Set before the first load, which would otherwise find no choice.
	if f.labels = f.first.labels(); f.labels == nil && f.first.previous != nil {
		f.labels = f.first.previous.Labels
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.first.watchFiles(ctx, poke) })
	group.Go(func() error { return f.first.watchLabels(ctx, choices) })
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
			if written.Stop(); f.reload(deliver) {
				written.Reset(pause)
				pause = min(2*pause, lastPause)
			}
		}
	})
	return group.Wait()
}

// Delays before a file that was being written is read again. The kernel sends the event
// of closing before it stops counting the writer (fs/file_table.c, __fput), for which
// there is no event.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 10 * time.Second
)

// reload loads the configuration and delivers a change. It reports whether the file is
// being written.
func (f *configWatcher) reload(deliver func(plugin.Settings, error)) (writing bool) {
	next, err := f.load()
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
		f.log.Error("the configuration is refused; the previous one stays in force", "path", f.first.path(), "reason", "ConfigRefused",
			"message", truncate(strings.ReplaceAll(err.Error(), "\n", "; ")))
		deliver(plugin.Settings{}, err)
	case f.inForce.sameConfig(next) && f.refused == "":
	case f.inForce.sameConfig(next):
		f.refused = ""
		f.log.Info("the configuration is again the one in force", "path", next.configFile, "hash", next.hash)
		deliver(f.inForce.settingsInForce(), nil)
	default:
		f.refused = ""
		f.log.Info("a new configuration is in force", "path", next.configFile, "name", next.name, "hash", next.hash, "changes", truncate(strings.Join(changes(f.inForce, next), "; ")))
		next.warn(f.log)
		f.inForce = next
		deliver(next.settingsInForce(), nil)
	}
	return false
}

// truncate bounds a line of the log: a file of a megabyte may be wrong in every line.
func truncate(s string) string { return record.Clean(s, 8000) }

// load returns options with the current configuration. Command line and environment are
// those of the start, with the same precedence.
func (f *configWatcher) load() (*options, error) {
	if f.first.configs.dir == "" {
		data, err := readFile(f.first.configFile)
		if err != nil {
			return nil, err
		}
		return f.first.withFile("", data)
	}
	return f.first.withLabels(f.labels)
}

// withLabels returns the options with the configuration that the labels choose; nil:
// unknown labels.
func (o *options) withLabels(labels map[string]string) (*options, error) {
	if labels == nil && o.configs.name == "" {
		return nil, fmt.Errorf("%w: waiting for gpu-validator on this node, whose daemon needs --node-name and the API server, to report the node's label %s", plugin.ErrNotChosen, nodestate.ConfigLabel)
	}
	there, err := o.configs.list()
	if err != nil {
		return nil, err
	}
	name, err := o.configs.choose(labels[nodestate.ConfigLabel], there)
	if err != nil || name == "" {
		return o.withFile("", nil, err)
	}
	data, err := o.configs.read(name)
	return o.withFile(name, data, err)
}

// withFile returns the options with another configuration file; nil data: no file.
func (o *options) withFile(name string, data []byte, errs ...error) (*options, error) {
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	next := &options{help: o.help, component: o.component, data: data}
	flags, err := next.parseFlags(o.args, io.Discard)
	if err != nil {
		return nil, err
	}
	if next.name = name; name != "" {
		next.configFile = filepath.Join(o.configs.dir, name)
	}
	return next, next.applyFile(flags, data)
}

// sameConfig reports whether both have the same file content under the same name.
func (o *options) sameConfig(next *options) bool {
	return o != nil && o.hash == next.hash && o.name == next.name
}

// path returns the file or folder to watch, or "".
func (o *options) path() string {
	if o.configs.dir != "" {
		return o.configs.dir
	}
	return o.configFile
}

// watchLabels sends the node's labels, according to the validator on this node in this
// boot. The last labels stay while it reports none.
func (o *options) watchLabels(ctx context.Context, choices chan<- map[string]string) error {
	if o.configs.dir == "" || o.configs.name != "" {
		<-ctx.Done()
		return ctx.Err()
	}
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return err
	}
	return nodestate.WatchBoot(ctx, o.validatorDir(), boot, func(s nodestate.State, err error) {
		labels := labelsOf(s, err)
		if labels == nil {
			return
		}
		select {
		case choices <- labels:
		case <-ctx.Done():
		}
	})
}

// labels returns the node's current labels; nil: unknown.
func (o *options) labels() map[string]string {
	boot, err := nodestate.BootIDAt(o.hostRoot)
	if err != nil {
		return nil
	}
	return labelsOf(nodestate.ReadBoot(o.validatorDir(), boot))
}

func labelsOf(s nodestate.State, err error) map[string]string {
	if err != nil || s.Validator == nil {
		return nil
	}
	return s.Validator.NodeLabels
}

func (o *options) validatorDir() string {
	return filepath.Join("/", o.hostRoot, o.stateDir, string(nodestate.Validator))
}

// hash is short: it distinguishes configurations but is not secure.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
