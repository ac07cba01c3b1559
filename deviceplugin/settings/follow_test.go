package settings

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// delivery is one call of deliver by a Watcher.
type delivery struct {
	options *Options
	err     error
}

// deliveries collects them.
type deliveries struct {
	t  *testing.T
	ch chan delivery
}

// watchConfig watches the configuration that the arguments name until the test ends.
func watchConfig(t *testing.T, args ...string) deliveries {
	t.Helper()
	o, err := Parse(Command{}, args, io.Discard)
	require.NoError(t, err)
	h := deliveries{t, make(chan delivery, 1000)}
	f := NewWatcher(o, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.WatchConfig(ctx, func(o *Options, err error) { h.ch <- delivery{o, err} }) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	return h
}

func (h deliveries) next() delivery {
	h.t.Helper()
	select {
	case w := <-h.ch:
		return w
	case <-time.After(time.Minute):
		h.t.Fatal("nothing was delivered")
		return delivery{}
	}
}

// replicas waits for the configuration with that many replicas.
func (h deliveries) replicas(want int) *Options {
	h.t.Helper()
	for {
		if w := h.next(); w.err == nil && w.options.Config.Sharing.TimeSlicing.Resources[0].Replicas == want {
			return w.options
		}
	}
}

func (h deliveries) refused(why string) {
	h.t.Helper()
	for {
		if w := h.next(); w.err != nil {
			require.ErrorContains(h.t, w.err, why)
			return
		}
	}
}

func sliced(replicas int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n", replicas)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// renamedOver replaces a file as editors and package managers do.
func renamedOver(t testing.TB, path, text string) {
	t.Helper()
	writeFile(t, path+".new", text)
	require.NoError(t, os.Rename(path+".new", path))
}

func TestEveryWayOfReplacingTheFileIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, sliced(2))
	h := watchConfig(t, "--config-file", path)
	writeFile(t, path, sliced(3))
	first := h.replicas(3)
	renamedOver(t, path, sliced(4))
	require.NotEqual(t, first.Hash, h.replicas(4).Hash)

	require.NoError(t, os.Remove(path))
	h.refused("there is no such file; create it")
	writeFile(t, path, sliced(5))
	h.replicas(5)

	elsewhere := filepath.Join(t.TempDir(), "d.yaml")
	writeFile(t, elsewhere, sliced(6))
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(elsewhere, path))
	h.replicas(6)
	writeFile(t, elsewhere, sliced(7))
	h.replicas(7)
}

func TestConfigMapIsFollowed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"c.yaml": sliced(2)}))
	h := watchConfig(t, "--config-file", filepath.Join(dir, "c.yaml"))
	for i := range 3 {
		require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"c.yaml": sliced(3 + i)}))
		h.replicas(3 + i)
	}
}

func TestHalfWrittenFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, sliced(2))
	h := watchConfig(t, "--config-file", path)
	writeFile(t, path, sliced(3))
	h.replicas(3)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	text := "version: v1\n" // which is a configuration already
	for _, part := range []string{text, strings.TrimPrefix(sliced(4), text)} {
		_, err = f.WriteString(part)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	w := h.next()
	require.NoError(t, w.err)
	require.Equal(t, 4, w.options.Config.Sharing.TimeSlicing.Resources[0].Replicas)
}

func TestHangupReloadsOnlyChangedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, sliced(2))
	h := watchConfig(t, "--config-file", path)
	writeFile(t, path, sliced(3))
	h.replicas(3) // it follows: SIGHUP is its own from here on
	writeFile(t, path, sliced(3))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	writeFile(t, path, sliced(4))
	w := h.next()
	require.NoError(t, w.err)
	require.Equal(t, 4, w.options.Config.Sharing.TimeSlicing.Resources[0].Replicas)

	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	_, err = readRegular(func() (*os.File, error) { return os.Open(path) }, path)
	require.ErrorIs(t, err, errWriting, "and SIGHUP does not read half of a file either")
	_, err = f.WriteString(sliced(5))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, h.next().err)
}

func TestCommandLineOverridesEachNewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, "flags: {migStrategy: none}")
	t.Setenv("DEVICE_ID_STRATEGY", "index")
	h := watchConfig(t, "--config-file", path, "--mig-strategy", "single")
	writeFile(t, path, "flags: {migStrategy: mixed, plugin: {deviceIDStrategy: uuid, passDeviceSpecs: true}}")
	s := h.next().options
	require.Equal(t, "single", *s.Config.Flags.MigStrategy)
	require.Equal(t, "index", *s.Config.Flags.Plugin.DeviceIDStrategy)
	require.True(t, *s.Config.Flags.Plugin.PassDeviceSpecs)
}

// Whatever is written, the last valid configuration is in force, and the last delivery
// matches the last file.
func TestLastValidConfigurationIsInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	rapid.Check(t, func(r *rapid.T) {
		writeFile(t, path, sliced(2))
		o, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
		require.NoError(r, err)
		f := NewWatcher(o, slog.New(slog.DiscardHandler))
		inForce := 2
		last := delivery{options: o}
		for range rapid.IntRange(1, 100).Draw(r, "edits") {
			refused := true
			switch n := rapid.IntRange(0, 5).Draw(r, "edit"); n {
			case 0:
				require.NoError(r, os.RemoveAll(path))
			case 1:
				writeFile(t, path, "version: v1\nsharing: {timeSlicing")
			default:
				writeFile(t, path, sliced(n))
				inForce, refused = n, false
			}
			count := 0
			f.reloadConfig(func(s *Options, err error) {
				count++
				if last.err = err; err == nil {
					last.options = s
				}
			})
			require.LessOrEqual(r, count, 1)
			f.reloadConfig(func(*Options, error) { r.Fatal("delivered without a change") })
			require.Equal(r, refused, last.err != nil)
			require.Equal(r, inForce, last.options.Config.Sharing.TimeSlicing.Resources[0].Replicas)
		}
	})
}

func TestRapidEditsEndWithTheLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, sliced(2))
	h := watchConfig(t, "--config-file", path)
	for i := range 100 {
		writeFile(t, path, sliced(3+i))
	}
	for last := 0; last != 102; {
		w := h.next()
		require.NoError(t, w.err, "a file that is half written is not read")
		last = w.options.Config.Sharing.TimeSlicing.Resources[0].Replicas
	}
	select {
	case w := <-h.ch:
		t.Fatalf("last of %+v besides", w)
	default:
	}
}

func TestLogHasChangesAndTheirOrigin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	options := func(text string) *Options {
		writeFile(t, path, text)
		o, err := Parse(Command{}, []string{"--config-file", path, "--gds-enabled"}, io.Discard)
		require.NoError(t, err)
		return o
	}
	plain := options("flags: {gdrcopyEnabled: true}")
	require.Equal(t, []string{"none"}, listChanges(plain, options("flags: {gdrcopyEnabled: true} # now with a comment")))
	require.Equal(t, []string{
		`flags.gdrcopyEnabled: true → false`,
		`flags.migStrategy: "none" → "mixed" (` + path + `)`,
		`sharing.timeSlicing.resources[0].name: nothing → "nvidia.com/gpu" (` + path + `)`,
		`sharing.timeSlicing.resources[0].replicas: nothing → 2 (` + path + `)`,
	}, slices.DeleteFunc(listChanges(plain, options("flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")), func(line string) bool {
		return strings.Contains(line, "timeSlicing.renameByDefault") || strings.Contains(line, "failRequests") || strings.Contains(line, "devices")
	}))
	require.Contains(t, listChanges(nil, options("flags: {migStrategy: mixed}")), `flags.gdsEnabled: true (--gds-enabled)`)
}

func TestLinkChain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, at("real/deep/c.yaml"), "x")
	require.NoError(t, os.Symlink("real", at("a")))
	require.NoError(t, os.Symlink("../deep/c.yaml", at("real/deep/link")))
	require.NoError(t, os.Symlink(at("loop"), at("loop")))
	require.Equal(t, []string{at("a"), at("real/deep/link"), at("real/deep/c.yaml")}, linkChain(at("a/deep/link")))
	require.Equal(t, []string{at("none/c.yaml")}, linkChain(at("none/c.yaml")))
	require.Len(t, linkChain(at("loop")), 40)
	require.NoError(t, os.Symlink("real/deep", at("b")))
	require.Equal(t, []string{at("b"), at("real/c.yaml")}, linkChain(at("b")+"/../c.yaml"), "as the kernel goes")
}

func TestLabelChoosesAsInTheReference(t *testing.T) {
	there := []string{"big", "default", "small"}
	for name, c := range map[string]struct {
		configs configSet
		label   string
		there   []string
		want    string
		err     string
	}{
		"the label":             {label: "small", there: there, want: "small"},
		"which wins":            {configs: configSet{standard: "big"}, label: "small", there: there, want: "small"},
		"but for --config":      {configs: configSet{name: "big"}, label: "small", there: there, want: "big"},
		"no label":              {configs: configSet{standard: "big"}, there: there, want: "big"},
		"named":                 {configs: configSet{fallback: []string{"named"}}, there: there, want: "default"},
		"single":                {configs: configSet{fallback: []string{"named", "single"}}, there: []string{"big"}, want: "big"},
		"not single":            {configs: configSet{fallback: []string{"single"}}, there: there, err: "there are big, default, small"},
		"empty":                 {configs: configSet{fallback: []string{"single", "empty"}}, there: there, want: ""},
		"the first that does":   {configs: configSet{fallback: []string{"empty", "named"}}, there: there, want: ""},
		"unknown":               {label: "smal", there: there, err: `no configuration is called "smal", as the node's label nvidia.com/device-plugin.config has it; there are big, default, small, did you mean "small"?`},
		"outside of the folder": {label: "../secret", there: there, err: `no configuration is called "../secret"`},
		"a standard that is no": {configs: configSet{standard: "x", fallback: []string{"named"}}, there: there, err: "--default-config"},
		"none at all":           {configs: configSet{fallback: []string{"named", "single"}}, err: "the folder has none"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.configs.chooseName(c.label, c.there)
			require.Equal(t, c.want, got)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
		})
	}
}

func TestAnErrorListsTheConfigurationsOnce(t *testing.T) {
	c := configSet{dir: "/configs"}
	_, err := c.chooseName("nosuch", []string{"four", "typo", "whole"})
	require.EqualError(t, err, `/configs: no configuration is called "nosuch", as the node's label nvidia.com/device-plugin.config has it; there are four, typo, whole`)
	_, err = c.chooseName("nosuch", []string{"four"})
	require.EqualError(t, err, `/configs: no configuration is called "nosuch", as the node's label nvidia.com/device-plugin.config has it; there is only four`)
}

func TestLinkOutOfTheFolderIsNotFollowed(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	writeFile(t, secret, sliced(2))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "evil")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	_, err := ReadConfig(dir, "evil")
	require.ErrorContains(t, err, "path escapes")
	_, err = ReadConfig(dir, "fifo")
	require.ErrorContains(t, err, "not a regular file")
}

func TestFIFOInsteadOfAFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	_, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.ErrorContains(t, err, "not a regular file")
}

func TestFileInTheFolderIsFollowedThroughLinks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "sub", "real"), sliced(2))
	require.NoError(t, os.Symlink("sub/real", filepath.Join(dir, "a")))
	h := watchConfig(t, "--config-dir", dir, "--config", "a")
	h.replicas(2)
	writeFile(t, filepath.Join(dir, "sub", "real"), sliced(3))
	h.replicas(3)
	renamedOver(t, filepath.Join(dir, "sub", "real"), sliced(4))
	h.replicas(4)
}

func TestLogLineIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, path, sliced(2))
	o, err := Parse(Command{}, []string{"--config-file", path}, io.Discard)
	require.NoError(t, err)
	var log bytes.Buffer
	f := NewWatcher(o, slog.New(slog.NewTextHandler(&log, nil)))
	wrong := "version: v1\n"
	for i := range 10_000 {
		wrong += fmt.Sprintf("key%d: 1\n", i)
	}
	writeFile(t, path, wrong)
	f.reloadConfig(func(*Options, error) {})
	require.Contains(t, log.String(), "ConfigRefused")
	require.Less(t, log.Len(), 20_000)
}

// choose writes the validator's state with the node's labels.
func choose(t testing.TB, host, boot string, labels map[string]string) {
	t.Helper()
	require.NoError(t, nodestate.Write(filepath.Join(host, "state", "validator"), nodestate.State{
		Component: nodestate.Validator, BootID: boot, Phase: nodestate.Ready, Validator: &nodestate.ValidatorInfo{NodeLabels: labels},
	}))
}

func TestNodeLabelChoosesTheConfiguration(t *testing.T) {
	host, dir := t.TempDir(), t.TempDir()
	boot, err := nodestate.BootIDAt(host)
	require.NoError(t, err)
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"two": sliced(2), "three": sliced(3)}))
	h := watchConfig(t, "--config-dir", dir, "--host-root", host, "--state-dir", "/state")
	require.ErrorIs(t, h.next().err, plugin.ErrNotChosen)
	choose(t, host, boot, nil) // the validator has not read the Node
	choose(t, host, boot, map[string]string{})
	h.refused("the node has no label")
	choose(t, host, boot, map[string]string{nodestate.ConfigLabel: "three"})
	require.Equal(t, "three", h.replicas(3).Name)
	choose(t, host, boot, map[string]string{nodestate.ConfigLabel: "four"})
	h.refused(`no configuration is called "four"`)
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"two": sliced(2), "three": sliced(3), "four": sliced(4)}))
	require.Equal(t, "four", h.replicas(4).Name)
	require.NoError(t, os.RemoveAll(filepath.Join(host, "state")))
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"two": sliced(2), "three": sliced(3), "four": sliced(44)}))
	require.Equal(t, "four", h.replicas(44).Name, "the choice stands while nobody says another")

	require.NoError(t, os.MkdirAll(filepath.Join(host, "state"), 0o755))
	choose(t, host, boot, map[string]string{nodestate.ConfigLabel: "two"})
	again := watchConfig(t, "--config-dir", dir, "--host-root", host, "--state-dir", "/state")
	require.Equal(t, "two", again.next().options.Name, "without asking anybody")
}
