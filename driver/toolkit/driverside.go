package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Default deadlines of Client. The side-car's image may have to be pulled first. Its builds take
// minutes, with a heartbeat every few seconds. NVIDIA's side-car writes no heartbeat: it
// unpacks the driver, which takes a minute or two, and compiles for up to ten minutes of one
// core.
const (
	defaultStart   = 15 * time.Minute
	defaultSilence = 3 * time.Minute
	defaultBuild   = 30 * time.Minute
)

// maxStarts bounds the builds that NVIDIA's side-car begins. Its container exits when a build
// fails, and is restarted.
const maxStarts = 3

// sameStart is the time within which two changes of driver_build_started count as one start:
// touch(1) creates the file, and then sets its time.
const sameStart = time.Second

// Client implements the driver container's side.
type Client struct {
	Dir     string // the shared folder
	Program string // the file of this program, which the side-car is to run
	Source  string // the folder with the sources of the modules
	Request Request
	Work    string // a folder that the side-car does not see, for the modules

	// ImageMissing is the variable RHCOS_IMAGE_MISSING: OpenShift has no Driver Toolkit for
	// the node's operating system of version OSVersion.
	ImageMissing bool
	OSVersion    string // RHCOS_VERSION

	Start   time.Duration // until the build begins; 0: 15 minutes
	Silence time.Duration // between two heartbeats of a build; 0: 3 minutes
	Build   time.Duration // of a side-car without heartbeats, NVIDIA's; 0: 30 minutes
	Log     *slog.Logger  // may be nil

	id    string
	limit int64 // bytes of a module; 0: maxModule
}

// Prepare fills the shared folder and requests the modules. If an earlier run of the container
// requested the same, it keeps the side-car's build, finished or not; a failed build is tried
// again. It also keeps an empty driver_toolkit_broken: NVIDIA's side-car writes it once, and
// then sleeps.
func (m *Client) Prepare(ctx context.Context) error {
	if m.ImageMissing {
		return brokenError(nil, "OpenShift has no Driver Toolkit image for RHCOS %s (RHCOS_IMAGE_MISSING): look at oc get imagestream/driver-toolkit -n openshift, and mirror the tag that is missing; or use a driver image with precompiled modules for this kernel",
			m.OSVersion)
	}
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return brokenError(err, "the folder that is shared with the Driver Toolkit: %v; mount an emptyDir there in both containers", err)
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	return explainFull(m.Dir, m.prepareFolder(ctx, root))
}

func (m *Client) prepareFolder(ctx context.Context, root *os.Root) error {
	var err error
	if m.Request.Program, err = folder.SumFile(m.Program); err != nil {
		return err
	}
	if m.Request.Sources == "" {
		if m.Request.Sources, err = folder.DigestFolder(ctx, m.Source); err != nil {
			return err
		}
	}
	if err := m.Request.checkComplete(); err != nil {
		return err
	}
	env, err := formatEnv(m.Request.envFile())
	if err != nil {
		return err
	}
	m.id = requestID(env)
	if _, same, err := readResponse(m.Dir, preparedName, m.id); err == nil && same {
		old := []string{failedName, brokenName}
		if a, _, err := readResponse(m.Dir, brokenName, ""); err == nil && a.Empty {
			old = old[:1]
		}
		return removeAll(root, old...)
	}
	// dir_prepared is removed first: the other files change only after it.
	old := []string{preparedName, failedName, brokenName, builtName, startedName, modulesName, sourcesName, envName}
	for _, name := range markers {
		old = append(old, name)
	}
	if err := removeAll(root, old...); err != nil {
		return err
	}
	if err := copyInto(root, m.Program, programName, 0o755); err != nil {
		return err
	}
	if err := copyFolderInto(ctx, root, m.Source, sourcesName); err != nil {
		return err
	}
	if err := record.Write(filepath.Join(m.Dir, envName), []byte(env)); err != nil {
		return err
	}
	return writeResponse(m.Dir, preparedName, response{ID: m.id})
}

// Share copies a program to a folder, as the entry point of a container that builds, and
// sources beside it; "" means no sources.
func Share(ctx context.Context, dir, program, sources string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	err = copyInto(root, program, programName, 0o755)
	if err == nil && sources != "" {
		err = errors.Join(root.RemoveAll(sourcesName), copyFolderInto(ctx, root, sources, sourcesName))
	}
	return explainFull(dir, err)
}

// copyInto copies a file to a name in a folder and replaces what is there.
func copyInto(root *os.Root, from, name string, perm fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	temp := name + ".tmp"
	if err := root.RemoveAll(temp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.RemoveAll(temp)
		}
	}()
	out, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(perm), out.Close()); err != nil {
		return err
	}
	return root.Rename(temp, name)
}

// copyFolderInto copies all files below a folder to another one.
func copyFolderInto(ctx context.Context, root *os.Root, from, name string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(name, rel)
		switch {
		case d.IsDir():
			return root.MkdirAll(at, 0o755)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", path)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return copyInto(root, path, at, info.Mode().Perm())
	})
}

// Wait waits for the side-car and returns a new folder below m.Work with verified copies of
// the requested modules, named like "nvidia.ko". The caller removes it.
//
// The error is ctx's, or a *kernel.Error: build.ReasonBuildFailed with the side-car's message,
// or ReasonToolkitBroken.
func (m *Client) Wait(ctx context.Context) (dir string, err error) {
	if m.Log == nil {
		m.Log = slog.New(slog.DiscardHandler)
	}
	w := &responseWait{Client: m, patience: m.Start}
	if w.patience == 0 {
		w.patience = defaultStart
	}
	built, err := w.run(ctx)
	if err != nil {
		return "", err
	}
	dir, err = m.receiveModules(ctx, built)
	if _, refused := errors.AsType[*kernel.Error](err); refused && built.Empty {
		// It may belong to an earlier request. Once it is gone, NVIDIA's side-car builds again.
		err = errors.Join(err, m.discardBuild())
	}
	return dir, err
}

// discardBuild removes the side-car's build.
func (m *Client) discardBuild() error {
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return err
	}
	return errors.Join(removeAll(root, builtName, startedName, modulesName), root.Close())
}

// responseWait holds the state of one call of Wait.
type responseWait struct {
	*Client
	built *response
	err   error

	patience time.Duration // the deadline that applies now
	beat     int           // the last heartbeat
	started  bool
	silent   bool      // the side-car is NVIDIA's, without heartbeats
	begun    time.Time // when NVIDIA's side-car began to build
	starts   int       // how often it began
}

// run watches the shared folder until there is a response, or nothing new for too long.
func (w *responseWait) run(ctx context.Context) (*response, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(w.patience, func() { cancel(errSilent) })
	defer silent.Stop()
	var paths []string
	for _, name := range []string{startedName, builtName, failedName, brokenName} {
		paths = append(paths, filepath.Join(w.Dir, name))
	}
	err := record.WatchWhole(inner, paths, func() {
		sign, done := w.readResponses()
		if done {
			cancel(nil)
		} else if sign {
			silent.Reset(w.patience)
		}
	})
	switch {
	case w.err != nil:
		return nil, w.err
	case w.built != nil:
		return w.built, nil
	case errors.Is(context.Cause(inner), errSilent):
		return nil, w.explainSilence()
	}
	return nil, err
}

var errSilent = errors.New("the side-car is silent")

// readResponses reads the side-car's files. It reports whether there is a new heartbeat, and
// whether the request is done.
func (w *responseWait) readResponses() (sign, done bool) {
	if text, err := record.Read(filepath.Join(w.Dir, brokenName), maxResponse); !errors.Is(err, fs.ErrNotExist) {
		if message := record.Clean(string(text), maxMessage/2); message != "" {
			w.err = brokenError(err, "the Driver Toolkit cannot build: %s", message)
		} else {
			w.err = brokenError(err, "the Driver Toolkit says that it is broken: its image is of another kernel than %s; look at the log of the container openshift-driver-toolkit-ctr", w.Request.Release)
		}
		return false, true
	}
	for _, name := range []string{failedName, builtName, startedName} {
		a, mine, err := readResponse(w.Dir, name, w.id)
		if err != nil {
			w.err = brokenError(err, "the Driver Toolkit breaks the protocol: %v", err)
			return false, true
		}
		if !mine && (!a.Empty || name == failedName) {
			continue
		}
		switch name {
		case failedName:
			w.err = w.explainFailure(a)
			return false, true
		case builtName:
			w.built = &a
			return false, true
		}
		if a.Empty {
			sign = w.recordStart()
			return sign, w.err != nil
		}
		return w.recordBeat(a), false
	}
	return false, false
}

// recordStart records that NVIDIA's side-car has begun to build, and reports whether that is
// the first time.
func (w *responseWait) recordStart() bool {
	info, err := os.Lstat(filepath.Join(w.Dir, startedName))
	if err != nil || info.ModTime().Sub(w.begun).Abs() < sameStart {
		return false // removed, or already recorded
	}
	w.begun = info.ModTime()
	w.starts++
	w.Log.Info("the Driver Toolkit builds the modules, and will not say how far it is", "kernel", w.Request.Release, "version", w.Request.Version, "times", w.starts)
	if w.starts > maxStarts {
		w.err = brokenError(nil, "the Driver Toolkit's container has begun to build %d times and has not ended once; look at the log of openshift-driver-toolkit-ctr", w.starts)
	}
	if w.started {
		return false
	}
	w.started, w.silent = true, true
	if w.patience = w.Build; w.patience == 0 {
		w.patience = defaultBuild
	}
	return true
}

// recordBeat records a heartbeat of the build, and reports whether it is new.
func (w *responseWait) recordBeat(a response) bool {
	if w.started && a.Beat == w.beat {
		return false
	}
	if !w.started {
		w.Log.Info("the Driver Toolkit builds the modules", "kernel", w.Request.Release, "version", w.Request.Version)
	}
	w.started, w.beat = true, a.Beat
	if w.patience = w.Silence; w.patience == 0 {
		w.patience = defaultSilence
	}
	return true
}

func (w *responseWait) explainFailure(a response) error {
	message := record.Clean(a.Message, maxMessage)
	if !reasons[a.Reason] || message == "" {
		return brokenError(nil, "the Driver Toolkit breaks the protocol: %s has the unknown reason %q", failedName, record.Clean(string(a.Reason), 100))
	}
	e := brokenError(nil, "in the Driver Toolkit: %s", message)
	e.Reason = a.Reason
	return e
}

func (w *responseWait) explainSilence() error {
	if !w.started {
		return brokenError(errSilent, "the Driver Toolkit's container has not begun to build within %v; look at why openshift-driver-toolkit-ctr of this pod does not run", w.patience)
	}
	if w.silent {
		return brokenError(errSilent, "the Driver Toolkit's container has not built the modules within %v; look at the log of openshift-driver-toolkit-ctr", w.patience)
	}
	return brokenError(errSilent, "the Driver Toolkit's container has written no heartbeat for %v during the build; look at the log of openshift-driver-toolkit-ctr and whether its memory ran out", w.patience)
}
