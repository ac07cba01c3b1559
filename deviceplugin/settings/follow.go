package settings

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

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Watcher reloads the configuration whenever the file or the choice of one may
// have changed. It is for use by one goroutine.
type Watcher struct {
	first *Options // as parsed at the start
	log   *slog.Logger

	inForce *Options          // last delivered; initially first, if it has a configuration
	refused string            // why the last one was refused, or ""
	labels  map[string]string // of the node, which choose the configuration; nil: unknown
	hangup  chan os.Signal
}

// NewWatcher returns a configWatcher. From here on SIGHUP no longer ends this
// process.
func NewWatcher(first *Options, log *slog.Logger) *Watcher {
	f := &Watcher{first: first, log: log, hangup: make(chan os.Signal, 1)}
	signal.Notify(f.hangup, syscall.SIGHUP)
	if first.Config != nil {
		f.inForce = first
	}
	return f
}

// Watch delivers each configuration after the initial one, or the error of a refused
// one, until ctx ends. After a refusal the one in force stays, and is delivered again
// when the file has it again.
func (f *Watcher) Watch(ctx context.Context, deliver func(*Options, error)) error {
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
func (f *Watcher) reload(deliver func(*Options, error)) (writing bool) {
	next, err := f.load()
	switch {
	case errors.Is(err, errWriting):
		return true
	case err != nil && f.refused == err.Error():
	case errors.Is(err, config.ErrNotChosen):
		f.refused = err.Error()
		f.log.Info(err.Error(), "reason", "ConfigNotChosen")
		deliver(nil, err)
	case err != nil:
		f.refused = err.Error()
		f.log.Error("the configuration is refused; the previous one stays in force", "path", f.first.path(), "reason", "ConfigRefused",
			"message", truncate(strings.ReplaceAll(err.Error(), "\n", "; ")))
		deliver(nil, err)
	case f.inForce.sameConfig(next) && f.refused == "":
	case f.inForce.sameConfig(next):
		f.refused = ""
		f.log.Info("the configuration is again the one in force", "path", next.ConfigFile, "hash", next.Hash)
		deliver(f.inForce, nil)
	default:
		f.refused = ""
		f.log.Info("a new configuration is in force", "path", next.ConfigFile, "name", next.Name, "hash", next.Hash, "changes", truncate(strings.Join(changes(f.inForce, next), "; ")))
		next.Warn(f.log)
		f.inForce = next
		deliver(next, nil)
	}
	return false
}

// truncate bounds a line of the log: a file of a megabyte may be wrong in every line.
func truncate(s string) string { return record.Clean(s, 8000) }

// load returns options with the current configuration. Command line and environment are
// those of the start, with the same precedence.
func (f *Watcher) load() (*Options, error) {
	if f.first.configs.dir == "" {
		data, err := readFile(f.first.ConfigFile)
		if err != nil {
			return nil, err
		}
		return f.first.withFile("", data)
	}
	return f.first.withLabels(f.labels)
}

// withLabels returns the options with the configuration that the labels choose; nil:
// unknown labels.
func (o *Options) withLabels(labels map[string]string) (*Options, error) {
	if labels == nil && o.configs.name == "" {
		return nil, fmt.Errorf("%w: waiting for gpu-validator on this node, whose daemon needs --node-name and the API server, to report the node's label %s", config.ErrNotChosen, nodestate.ConfigLabel)
	}
	there, err := ListConfigs(o.configs.dir)
	if err != nil {
		return nil, err
	}
	name, err := o.configs.choose(labels[nodestate.ConfigLabel], there)
	if err != nil || name == "" {
		return o.withFile("", nil, err)
	}
	data, err := ReadConfig(o.configs.dir, name)
	return o.withFile(name, data, err)
}

// withFile returns the options with another configuration file; nil data: no file.
func (o *Options) withFile(name string, data []byte, errs ...error) (*Options, error) {
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	next := &Options{command: o.command, data: data}
	flags, err := next.parseFlags(o.args, io.Discard)
	if err != nil {
		return nil, err
	}
	if next.Name = name; name != "" {
		next.ConfigFile = filepath.Join(o.configs.dir, name)
	}
	return next, next.applyFile(flags, data)
}

// sameConfig reports whether both have the same file content under the same name.
func (o *Options) sameConfig(next *Options) bool {
	return o != nil && o.Hash == next.Hash && o.Name == next.Name
}

// path returns the file or folder to watch, or "".
func (o *Options) path() string {
	if o.configs.dir != "" {
		return o.configs.dir
	}
	return o.ConfigFile
}

// watchLabels sends the node's labels, according to the validator on this node in this
// boot. The last labels stay while it reports none.
func (o *Options) watchLabels(ctx context.Context, choices chan<- map[string]string) error {
	if o.configs.dir == "" || o.configs.name != "" {
		<-ctx.Done()
		return ctx.Err()
	}
	boot, err := nodestate.BootIDAt(o.HostRoot)
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
func (o *Options) labels() map[string]string {
	if o.configs.dir == "" {
		return nil // they choose nothing
	}
	boot, err := nodestate.BootIDAt(o.HostRoot)
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

func (o *Options) validatorDir() string {
	return filepath.Join("/", o.HostRoot, o.StateDir, string(nodestate.Validator))
}

// hash is short: it distinguishes configurations but is not secure.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
