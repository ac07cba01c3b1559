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

// Watcher reloads the configuration whenever the file, or the node's choice of one, may have
// changed. It is for use by one goroutine.
type Watcher struct {
	first *Options // as parsed at the start
	log   *slog.Logger

	inForce     *Options          // last delivered; initially first, or nil if none is chosen yet
	lastRefusal string            // error of the last configuration, if it was refused; "": it was not
	labels      map[string]string // of the node, which choose the configuration; nil: unknown
	hangup      chan os.Signal    // SIGHUP, which asks for a reload
}

// NewWatcher returns a Watcher. From here on SIGHUP no longer ends this process.
func NewWatcher(first *Options, log *slog.Logger) *Watcher {
	w := &Watcher{first: first, log: log, hangup: make(chan os.Signal, 1)}
	signal.Notify(w.hangup, syscall.SIGHUP)
	if first.Config != nil {
		w.inForce = first
	}
	return w
}

// WatchConfig delivers each configuration after the initial one, or the error of a refused one,
// until ctx ends. After a refusal the one in force stays. It is delivered again when the file
// again has its content.
func (w *Watcher) WatchConfig(ctx context.Context, deliver func(*Options, error)) error {
	filesChanged := make(chan struct{}, 1)
	notify := func() {
		select {
		case filesChanged <- struct{}{}:
		default: // one is pending
		}
	}
	choices := make(chan map[string]string)
	// Set the labels before the first load, which would otherwise find no configuration.
	if w.labels = w.first.readLabels(); w.labels == nil && w.first.handedOver != nil {
		w.labels = w.first.handedOver.Labels
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.first.watchFiles(ctx, notify) })
	group.Go(func() error { return w.first.watchLabels(ctx, choices) })
	group.Go(func() error {
		pause := firstPause
		retry := time.NewTimer(time.Hour)
		retry.Stop()
		defer retry.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case w.labels = <-choices:
			case <-w.hangup:
				w.log.Info("SIGHUP: reading the configuration again", "path", w.first.watchedPath())
			case <-filesChanged:
				pause = firstPause
			case <-retry.C:
			}
			if w.first.watchedPath() == "" {
				continue
			}
			if retry.Stop(); w.reloadConfig(deliver) {
				retry.Reset(pause)
				pause = min(2*pause, lastPause)
			}
		}
	})
	return group.Wait()
}

// Delays before a file that was being written is read again. When its writer closes it, the
// kernel sends the event before it stops counting the writer (fs/file_table.c, __fput), so the
// file may still seem to be open for writing.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 10 * time.Second
)

// reloadConfig loads the configuration and delivers a change. It reports whether the file is
// being written.
func (w *Watcher) reloadConfig(deliver func(*Options, error)) (writing bool) {
	next, err := w.loadConfig()
	switch {
	case errors.Is(err, errWriting):
		return true
	case err != nil && w.lastRefusal == err.Error():
	case errors.Is(err, config.ErrNotChosen):
		w.lastRefusal = err.Error()
		w.log.Info(err.Error(), "reason", "ConfigNotChosen")
		deliver(nil, err)
	case err != nil:
		w.lastRefusal = err.Error()
		w.log.Error("the configuration is refused; the previous one stays in force", "path", w.first.watchedPath(), "reason", "ConfigRefused",
			"message", truncate(strings.ReplaceAll(err.Error(), "\n", "; ")))
		deliver(nil, err)
	case w.inForce.sameConfig(next) && w.lastRefusal == "":
	case w.inForce.sameConfig(next):
		w.lastRefusal = ""
		w.log.Info("the configuration is again the one in force", "path", next.ConfigFile, "hash", next.Hash)
		deliver(w.inForce, nil)
	default:
		w.lastRefusal = ""
		w.log.Info("a new configuration is in force", "path", next.ConfigFile, "name", next.Name, "hash", next.Hash, "changes", truncate(strings.Join(listChanges(w.inForce, next), "; ")))
		next.LogIgnoredKeys(w.log)
		w.inForce = next
		deliver(next, nil)
	}
	return false
}

// truncate bounds a line of the log: a file of a megabyte may be wrong in every line.
func truncate(s string) string { return record.Clean(s, 8000) }

// loadConfig returns options with the configuration that the file, or the node's choice, has
// now. Command line and environment are those of the start, with the same precedence.
func (w *Watcher) loadConfig() (*Options, error) {
	if w.first.configs.dir == "" {
		data, err := readFile(w.first.ConfigFile)
		if err != nil {
			return nil, err
		}
		return w.first.withFile("", data)
	}
	return w.first.withLabels(w.labels)
}

// withLabels returns the options with the configuration that the node's labels choose. Unknown
// labels (nil) choose none, unless --config names one.
func (o *Options) withLabels(labels map[string]string) (*Options, error) {
	if labels == nil && o.configs.name == "" {
		return nil, fmt.Errorf("%w: waiting for gpu-validator on this node, whose daemon needs --node-name and the API server, to report the node's label %s", config.ErrNotChosen, nodestate.ConfigLabel)
	}
	names, err := ListConfigs(o.configs.dir)
	if err != nil {
		return nil, err
	}
	name, err := o.configs.chooseName(labels[nodestate.ConfigLabel], names)
	if err != nil || name == "" {
		return o.withFile("", nil, err)
	}
	data, err := ReadConfig(o.configs.dir, name)
	return o.withFile(name, data, err)
}

// withFile returns the options with another configuration file: name in --config-dir, or "", and
// its content, or nil for no file. It returns errs instead if there are any.
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

// watchedPath returns the file or folder of the configuration, or "" if there is none.
func (o *Options) watchedPath() string {
	if o.configs.dir != "" {
		return o.configs.dir
	}
	return o.ConfigFile
}

// watchLabels sends the labels of the Node that the validator on this node has reported in this
// boot, now and whenever they change. While it reports none, nothing is sent.
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
		labels := labelsFrom(s, err)
		if labels == nil {
			return
		}
		select {
		case choices <- labels:
		case <-ctx.Done():
		}
	})
}

// readLabels returns the labels that watchLabels would send now; nil: unknown.
func (o *Options) readLabels() map[string]string {
	if o.configs.dir == "" {
		return nil // without a folder there is nothing to choose
	}
	boot, err := nodestate.BootIDAt(o.HostRoot)
	if err != nil {
		return nil
	}
	return labelsFrom(nodestate.ReadBoot(o.validatorDir(), boot))
}

// labelsFrom returns the Node's labels in the validator's state; nil: unknown.
func labelsFrom(s nodestate.State, err error) map[string]string {
	if err != nil || s.Validator == nil {
		return nil
	}
	return s.Validator.NodeLabels
}

// validatorDir returns the folder of the validator's state, as this process sees it.
func (o *Options) validatorDir() string {
	return filepath.Join("/", o.HostRoot, o.StateDir, string(nodestate.Validator))
}

// shortHash returns 16 hexadecimal digits of a hash. They distinguish configurations, but are
// too few against a deliberate collision.
func shortHash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
