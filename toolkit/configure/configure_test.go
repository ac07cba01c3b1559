package configure

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

const configFile = "/etc/containerd/config.toml"

// node is a runtime and its configuration file, which has a letter for each ability.
type node struct {
	store   *apply.Store
	written string       // the file at first: c for CDI, h for the handler, d for the default
	runs    runtime.Want // as in effect
	base    []string     // handlers that it always has

	restarts int
	may      bool
	silent   bool     // it does not respond
	broken   bool     // it does not start with a configuration unless that is empty
	deaf     bool     // it loads no configuration
	loses    string   // a handler that it loses with a new configuration
	gone     []string // handlers that it has until it restarts
	program  string   // of the handler until it restarts
	refusal  error
	stopped  error // the restart is given up
	alone    error // nobody can be asked for a restart
	hangs    bool  // so is it after its time
}

func (n *node) Query(context.Context) (runtime.Info, error) {
	if n.silent || n.broken && n.runs.CDI {
		return runtime.Info{Runtime: nodestate.Runtime{Message: "it does not answer"}}, errors.New("refused")
	}
	on := n.runs.CDI
	a := runtime.Info{Runtime: nodestate.Runtime{Name: "containerd", Version: "1.7.24", CDI: &on, CDIDirs: []string{"/etc/cdi"}, Handlers: slices.Concat(n.base, n.gone)}, Default: "runc"}
	a.CDIDirs = append(a.CDIDirs, n.runs.CDIDirs...)
	for _, h := range n.runs.Handlers {
		a.Handlers = append(a.Handlers, h.Name)
		if n.program != "" {
			a.Programs = map[string]string{h.Name: n.program}
		}
	}
	if n.loses != "" && (n.runs.CDI || len(n.runs.Handlers) > 0) {
		a.Handlers = slices.DeleteFunc(a.Handlers, func(h string) bool { return h == n.loses })
	}
	if n.runs.Default != "" {
		a.Default = n.runs.Default
	}
	return a, nil
}

func (n *node) Plan(_ string, want runtime.Want) (runtime.Plan, error) {
	if n.refusal != nil {
		return runtime.Plan{}, n.refusal
	}
	var p runtime.Plan
	edit := func(is bool, key string) {
		if !is {
			p.Edits = append(p.Edits, runtime.Edit{File: configFile, Key: key, After: "true"})
		}
	}
	edit(!want.CDI || n.file().CDI, "enable_cdi")
	edit(len(want.Handlers) == 0 || len(n.file().Handlers) > 0, "runtimes.nvidia")
	edit(want.Default == "" || n.file().Default == want.Default, "default_runtime_name")
	data := []byte{}
	was := n.file()
	if want.CDI || was.CDI {
		data = append(data, 'c')
	}
	if len(want.Handlers) > 0 || len(was.Handlers) > 0 {
		data = append(data, 'h')
	}
	if want.Default != "" || was.Default != "" {
		data = append(data, 'd')
	}
	p.Items = []apply.Item{{Path: configFile, File: &apply.File{Data: data}}}
	return p, nil
}

func (n *node) CanRestart() (bool, string) { return n.may, "restart containerd" }

func (n *node) CheckRestart(context.Context) error { return n.alone }

func (n *node) Restart(ctx context.Context, _ []runtime.Edit) (string, error) {
	if n.stopped != nil {
		return "", n.stopped
	}
	if n.hangs {
		<-ctx.Done()
		return "", ctx.Err()
	}
	n.restarts++
	n.gone, n.program = nil, ""
	if !n.deaf {
		n.runs = n.file()
	}
	return "containerd.service was restarted", nil
}

// file returns the abilities in the configuration file.
func (n *node) file() (want runtime.Want) {
	data, err := n.store.Root.ReadFile(configFile, 100)
	if err != nil {
		panic(err)
	}
	if bytes.ContainsRune(data, 'c') {
		want.CDI, want.CDIDirs = true, []string{"/var/run/cdi"}
	}
	if bytes.ContainsRune(data, 'h') {
		want.Handlers = []runtime.Handler{{Name: "nvidia"}}
	}
	if bytes.ContainsRune(data, 'd') {
		want.Default = "nvidia"
	}
	return want
}

// pending reports whether a change of the file is unfinished.
func (n *node) pending(t *testing.T) bool {
	t.Helper()
	_, pending, err := n.store.Pending()
	require.NoError(t, err)
	return pending
}

// configurer returns the configurer of a new process on the node.
func configurer(t *testing.T, n *node, w Wishes) *Configurer {
	t.Helper()
	dir := t.TempDir()
	if n.store != nil {
		dir = n.store.Root.Dir()
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	if n.store == nil {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(configFile)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, configFile), []byte(n.written), 0o644))
	}
	n.store = &apply.Store{Root: root, Dir: "/usr/local/nvidia/gpuready", BootID: "boot"}
	if n.base == nil {
		n.base = []string{"runc", "kata"}
	}
	w.CDIDir = "/var/run/cdi"
	return &Configurer{Wishes: w, Runtime: n, Store: n.store, Same: func(a, b string) bool { return a == b }, Patience: 100 * time.Millisecond}
}

var handler = runtime.Handler{Name: "nvidia", Program: "/usr/local/nvidia/gpuready/gpu-oci-runtime"}

func TestRuntimeWithAllAbilitiesIsLeftAlone(t *testing.T) {
	n := &node{may: true, runs: runtime.Want{CDI: true, CDIDirs: []string{"/var/run/cdi"}}}
	o, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.NoError(t, err)
	require.Empty(t, o.Edits)
	require.Zero(t, n.restarts)
	require.Equal(t, runtime.Want{}, n.file(), "its files do not matter")
}

func TestMissingAbilitiesAreConfiguredAndVerified(t *testing.T) {
	n := &node{may: true}
	c := configurer(t, n, Wishes{CDI: true, Handler: handler, Default: true})
	var steps []string
	c.Observe = func(step string, _ time.Duration) { steps = append(steps, step) }
	o, err := c.Apply(t.Context())
	require.NoError(t, err)
	require.Len(t, o.Edits, 3)
	require.Equal(t, []string{"kata", "nvidia", "runc"}, slices.Sorted(slices.Values(o.Answer.Handlers)))
	require.Equal(t, []string{"write", "restart", "verify"}, steps)
	require.False(t, n.pending(t))

	o, err = c.Apply(t.Context())
	require.NoError(t, err)
	require.Empty(t, o.Edits)
	require.Equal(t, 1, n.restarts, "the second time there is nothing to do")
}

func TestRejectedConfigurationIsUndone(t *testing.T) {
	for name, n := range map[string]*node{
		"does not come up":         {may: true, broken: true},
		"does not take it in":      {may: true, deaf: true},
		"loses somebody's handler": {may: true, loses: "kata"},
	} {
		t.Run(name, func(t *testing.T) {
			c := configurer(t, n, Wishes{CDI: true})
			o, err := c.Apply(t.Context())
			problem, is := errors.AsType[*Problem](err)
			require.True(t, is, "%v", err)
			require.Equal(t, ReasonRefused, problem.Reason)
			require.Contains(t, problem.Message, "enable_cdi = true", "the key that was the trouble")
			require.Contains(t, problem.Message, "its old configuration is back")
			require.True(t, o.Undone)
			require.Equal(t, runtime.Want{}, n.file())
			require.False(t, n.pending(t))
			require.Equal(t, 2, n.restarts)

			_, err = c.Apply(t.Context())
			require.ErrorContains(t, err, "not tried again")
			require.Equal(t, 2, n.restarts, "a node is not restarted for ever")

			c.Wishes.Handler = handler
			n.broken, n.deaf, n.loses = false, false, ""
			_, err = c.Apply(t.Context())
			require.NoError(t, err, "another plan is tried")
			refused, err := n.store.Note(refusedNote)
			require.NoError(t, err)
			require.Nil(t, refused)
		})
	}
}

func TestSilentRuntimeIsNotConfigured(t *testing.T) {
	n := &node{may: true, silent: true}
	_, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	problem, is := errors.AsType[*Problem](err)
	require.True(t, is)
	require.Equal(t, runtime.ReasonSilent, problem.Reason)
	require.Equal(t, runtime.Want{}, n.file())
	require.Zero(t, n.restarts)
}

func TestRefusedPlanIsReported(t *testing.T) {
	n := &node{may: true, refusal: &runtime.Refusal{File: configFile, Line: 3, Column: 7, Message: "expected a table"}}
	_, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	problem, is := errors.AsType[*Problem](err)
	require.True(t, is)
	require.Equal(t, ReasonConfig, problem.Reason)
	require.Equal(t, "/etc/containerd/config.toml:3:7: expected a table", problem.Message)
}

func TestManualRestartIsRequestedIfNotAllowed(t *testing.T) {
	n := &node{}
	c := configurer(t, n, Wishes{CDI: true})
	_, err := c.Apply(t.Context())
	problem, is := errors.AsType[*Problem](err)
	require.True(t, is)
	require.Equal(t, ReasonRestart, problem.Reason)
	require.True(t, n.file().CDI)
	require.True(t, n.pending(t))

	n.runs = n.file() // it was restarted by hand
	o, err := c.Apply(t.Context())
	require.NoError(t, err)
	require.True(t, *o.Answer.CDI)
	require.False(t, n.pending(t))
	require.Zero(t, n.restarts)
}

func TestNextProcessFinishesAChange(t *testing.T) {
	n := &node{may: true, stopped: context.Canceled}
	c := configurer(t, n, Wishes{CDI: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Apply(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, n.pending(t))
	require.True(t, n.file().CDI)

	n.stopped = nil
	_, err = configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.NoError(t, err)
	require.True(t, n.runs.CDI)
	require.False(t, n.pending(t))
	require.Equal(t, 1, n.restarts)
}

func TestChangeWithAnUnreadableNoteIsUndone(t *testing.T) {
	n := &node{may: true}
	c := configurer(t, n, Wishes{})
	changes, err := n.store.Plan([]apply.Item{{Path: configFile, File: &apply.File{Data: []byte("c")}}})
	require.NoError(t, err)
	require.NoError(t, n.store.Begin(changes, []byte("{")))
	_, err = c.Apply(t.Context())
	require.NoError(t, err)
	require.Equal(t, runtime.Want{}, n.file())
}

func TestRuntimeWithAStaleConfigurationIsRestarted(t *testing.T) {
	n := &node{may: true, written: "c"}
	_, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.NoError(t, err)
	require.True(t, n.runs.CDI)
	require.Equal(t, 1, n.restarts)

	n = &node{may: true, deaf: true, written: "c"}
	c := configurer(t, n, Wishes{CDI: true})
	for range 2 {
		_, err = c.Apply(t.Context())
		require.ErrorContains(t, err, "--runtime-config")
	}
	require.Equal(t, 1, n.restarts)
}

// Another toolkit has taken its configuration out of the files and did not restart the runtime.
func TestRuntimeThatStillRunsAnotherToolkitsProgramIsRestarted(t *testing.T) {
	const theirs = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
	n := &node{may: true, written: "h", runs: runtime.Want{Handlers: []runtime.Handler{handler}}, program: theirs}
	_, err := configurer(t, n, Wishes{Handler: handler}).Apply(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n.restarts)

	n = &node{written: "h", runs: runtime.Want{Handlers: []runtime.Handler{handler}}, program: theirs}
	_, err = configurer(t, n, Wishes{Handler: handler}).Apply(t.Context())
	require.ErrorContains(t, err, `its handler "nvidia" runs `+theirs)

	n = &node{may: true, written: "h", runs: runtime.Want{Handlers: []runtime.Handler{handler}}, program: handler.Program}
	_, err = configurer(t, n, Wishes{Handler: handler}).Apply(t.Context())
	require.NoError(t, err)
	require.Zero(t, n.restarts)
}

func TestNextProcessFinishesAnUndo(t *testing.T) {
	n := &node{may: true, loses: "kata"}
	c := configurer(t, n, Wishes{CDI: true})
	ctx, cancel := context.WithCancel(t.Context())
	c.Observe = func(step string, _ time.Duration) {
		if step == "undo" {
			cancel()
			n.stopped = context.Canceled
		}
	}
	_, err := c.Apply(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, runtime.Want{}, n.file())
	require.True(t, n.runs.CDI, "it runs with what it does not take")

	n.stopped = nil
	o, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.ErrorContains(t, err, `no handler "kata" any more; its old configuration is back`)
	require.True(t, o.Undone)
	require.False(t, n.runs.CDI)
	require.Equal(t, 2, n.restarts)
	_, err = configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.ErrorContains(t, err, "not tried again")
	require.Equal(t, 2, n.restarts)
}

func TestChangesOfOthersDoNotCauseARefusal(t *testing.T) {
	n := &node{may: true, base: []string{"runc"}}
	c := configurer(t, n, Wishes{CDI: true})
	n.gone = []string{"kata"} // removed from the files by another program, without a restart
	_, err := c.Apply(t.Context())
	require.ErrorContains(t, err, "not our change")
	require.False(t, n.runs.CDI)
	_, err = c.Apply(t.Context())
	require.NoError(t, err)
	require.True(t, n.runs.CDI)
	require.Equal(t, 3, n.restarts)
}

// NVIDIA's toolkit, which is being removed from the node, takes its handlers out of the runtime while
// ours adds one of the same name.
func TestAHandlerThatAnotherToolkitTakesOutIsConfiguredAgain(t *testing.T) {
	n := &node{may: true, base: []string{"runc"}}
	c := configurer(t, n, Wishes{Handler: runtime.Handler{Name: "nvidia"}, Default: true, CDI: true})
	n.gone = []string{"nvidia-cdi", "nvidia"}
	_, err := c.Apply(t.Context())
	require.ErrorContains(t, err, `it has no handler "nvidia-cdi" any more; its old configuration is back, but with that it has no handler "nvidia-cdi" any more, it has no handler "nvidia" any more: that is not our change`)
	_, err = c.Apply(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, n.runs.Handlers)
	require.Equal(t, 3, n.restarts)
}

var errNoBus = &notBegunError{Err: errors.New("restart of containerd.service: systemd of the host is not available: mount the host's /run/dbus")}

// unavailable returns the message of the Problem that a restart was not begun.
func unavailable(t *testing.T, err error) string {
	t.Helper()
	problem, is := errors.AsType[*Problem](err)
	require.True(t, is, "%v", err)
	require.Equal(t, ReasonUnavailable, problem.Reason)
	require.ErrorIs(t, problem.Err, errNoBus)
	require.Contains(t, problem.Message, errNoBus.Error())
	require.NotContains(t, problem.Message, "does not come back")
	return problem.Message
}

func TestNothingIsWrittenIfNobodyCanRestartTheRuntime(t *testing.T) {
	n := &node{may: true, alone: errNoBus}
	c := configurer(t, n, Wishes{CDI: true})
	c.Observe = func(step string, _ time.Duration) { t.Errorf("step %s", step) }
	o, err := c.Apply(t.Context())
	require.Contains(t, unavailable(t, err), "enable_cdi = true (not set until now)), because it could not be restarted afterwards: ")
	require.False(t, o.Undone)
	require.Zero(t, o.Restarts)
	require.Equal(t, runtime.Want{}, n.file())

	n.alone, c.Observe = nil, nil
	_, err = c.Apply(t.Context())
	require.NoError(t, err, "it is tried again")
	require.True(t, n.runs.CDI)
}

func TestRefusedRequestIsNotTheRuntimesRefusal(t *testing.T) {
	n := &node{may: true, stopped: errNoBus}
	c := configurer(t, n, Wishes{CDI: true})
	var steps []string
	c.Observe = func(step string, _ time.Duration) { steps = append(steps, step) }
	for range 3 {
		o, err := c.Apply(t.Context())
		require.NotContains(t, err.Error(), "did not take")
		require.Contains(t, err.Error(), "enable_cdi = true (not set until now): "+errNoBus.Error()+"; its configuration is as before")
		require.False(t, o.Undone)
		require.Zero(t, o.Restarts)
		require.Equal(t, runtime.Want{}, n.file())
		require.False(t, n.pending(t))
	}
	require.Equal(t, []string{"write", "restart", "undo"}, steps, "once by a process")
	refused, err := n.store.Note(refusedNote)
	require.NoError(t, err)
	require.Nil(t, refused)

	n.stopped = nil
	_, err = configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.NoError(t, err)
	require.True(t, n.runs.CDI)
}

func TestUndoWaitsForSomebodyToRestartTheRuntime(t *testing.T) {
	n := &node{may: true, loses: "kata"}
	c := configurer(t, n, Wishes{CDI: true})
	c.Observe = func(step string, _ time.Duration) {
		if step == "undo" {
			n.stopped = errNoBus
		}
	}
	for range 2 {
		o, err := c.Apply(t.Context())
		require.Contains(t, unavailable(t, err), `it has no handler "kata" any more; its old configuration is back, but it could not be restarted with that: `)
		require.True(t, o.Undone)
		require.Equal(t, runtime.Want{}, n.file())
		require.True(t, n.runs.CDI, "it runs with what it does not take")
		require.Equal(t, 1, n.restarts)
	}
	n.stopped = nil
	_, err := c.Apply(t.Context())
	require.ErrorContains(t, err, "its old configuration is back")
	require.False(t, n.runs.CDI)
	require.Equal(t, 2, n.restarts)
}

func TestStaleRuntimeThatNobodyCanRestartIsReported(t *testing.T) {
	n := &node{may: true, written: "c", stopped: errNoBus}
	_, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	require.Contains(t, unavailable(t, err), "it has not been restarted since, and could not be: ")
	require.True(t, n.file().CDI)
}

func TestStaleRuntimeWhoseRestartFailsIsRestartedOnce(t *testing.T) {
	for name, n := range map[string]*node{
		"the restart fails":     {may: true, written: "c", stopped: errors.New("job failed")},
		"it does not come back": {may: true, written: "c", broken: true},
		"the restart hangs":     {may: true, written: "c", hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := configurer(t, n, Wishes{CDI: true})
			_, err := c.Apply(t.Context())
			problem, is := errors.AsType[*Problem](err)
			require.True(t, is, "%v", err)
			require.Equal(t, ReasonRefused, problem.Reason)
			require.Contains(t, problem.Message, "is configured as wanted, but ")
			require.Contains(t, problem.Message, ", and its restart failed: ")

			// It answers as before, and is left alone, by the next process too.
			n.runs, n.stopped, n.hangs = runtime.Want{}, nil, false
			restarts := n.restarts
			_, again := c.Apply(t.Context())
			require.EqualError(t, again, problem.Message)
			require.Equal(t, restarts, n.restarts)

			// Somebody has restarted it by hand.
			n.runs, n.broken = n.file(), false
			_, err = c.Apply(t.Context())
			require.NoError(t, err)
		})
	}
}

func TestRestoredRuntimeThatNobodyCanRestartIsReported(t *testing.T) {
	n := &node{may: true}
	c := configurer(t, n, Wishes{CDI: true})
	_, err := c.Apply(t.Context())
	require.NoError(t, err)
	n.stopped = errNoBus
	o := RestoreOptions{MayRestart: true, IsConfig: func(p string) bool { return p == configFile }, Notify: func(did string) { t.Error(did) }}
	_, err = c.Restore(t.Context(), o)
	require.ErrorContains(t, err, "containerd has its own configuration back, and could not be restarted with it: "+errNoBus.Error())
	require.Equal(t, runtime.Want{}, n.file())

	n.stopped, o.Notify = nil, func(string) {}
	_, err = c.Restore(t.Context(), o)
	require.NoError(t, err)
	require.False(t, n.runs.CDI)
}

func TestEndlessRestartTimesOut(t *testing.T) {
	n := &node{may: true, hangs: true}
	_, err := configurer(t, n, Wishes{CDI: true}).Apply(t.Context())
	problem, is := errors.AsType[*Problem](err)
	require.True(t, is, "%v", err)
	require.Equal(t, ReasonRefused, problem.Reason)
	require.Contains(t, problem.Message, context.DeadlineExceeded.Error())
	require.Equal(t, runtime.Want{}, n.file(), "its old configuration is back")
}
