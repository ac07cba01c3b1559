package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// defaultBeat is the default of Builder.Beat.
const defaultBeat = 20 * time.Second

// Builder implements the Driver Toolkit's container.
type Builder struct {
	Dir  string // the shared folder
	Root string // where kernel headers are installed; "": /
	Work string // folder for the build; "": the system's for temporary files
	// Build builds the requested modules and returns a folder with them, which is removed
	// afterwards; nil: they are compiled.
	Build func(ctx context.Context, r Request, source string) (dir string, err error)
	Beat  time.Duration // between heartbeats of a build; 0: 20 seconds
	// System is the running kernel, for requests of NVIDIA's driver container, which do not
	// name one; the zero value: kernel.Host.
	System kernel.System
	Log    *slog.Logger // may be nil
}

// Run serves requests until ctx ends, and then returns nil. It serves each request once. A
// new request cancels the build of an older one. A failed request is built again when the
// driver container has removed driver_failed.
func (s *Builder) Run(ctx context.Context) error {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Beat == 0 {
		s.Beat = defaultBeat
	}
	if s.System.Calls == nil {
		s.System = kernel.Host
	}
	var paths []string
	for _, name := range []string{preparedName, builtName, failedName, brokenName} {
		paths = append(paths, filepath.Join(s.Dir, name))
	}
	changes := make(chan struct{}, 1)
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error {
		return record.WatchWhole(inner, paths, func() {
			select {
			case changes <- struct{}{}:
			default: // a pending notification covers this one
			}
		})
	})
	group.Go(func() error {
		for {
			if err := s.servePending(inner, changes); err != nil {
				return err
			}
			select {
			case <-changes:
			case <-inner.Done():
				return inner.Err()
			}
		}
	})
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// prepared is the content of dir_prepared; the zero value: there is no such file.
type prepared struct {
	id     string // digest of the request
	nvidia bool   // NVIDIA's driver container wrote it
}

// request is a Request with its digest.
type request struct {
	Request
	prepared
}

// pendingRequest returns the request that waits for a response; nil: there is none.
func (s *Builder) pendingRequest() (*request, error) {
	current, err := s.readPrepared()
	if current.id == "" || err != nil {
		return nil, err
	}
	r, err := s.readRequest(current)
	// The driver container removes dir_prepared before it changes any other file.
	if now, _ := s.readPrepared(); now != current {
		return nil, nil
	}
	return r, err
}

func (s *Builder) readRequest(current prepared) (*request, error) {
	for _, name := range []string{builtName, failedName} {
		if _, answered, err := readResponse(s.Dir, name, current.id); answered || err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, brokenName)); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if current.nvidia {
		r, err := s.readNVIDIA()
		return &request{r, current}, err
	}
	text, err := record.Read(filepath.Join(s.Dir, envName), maxEnv)
	if err != nil {
		return nil, err
	}
	if requestID(string(text)) != current.id {
		return nil, fmt.Errorf("%s does not match the digest in %s", envName, preparedName)
	}
	env, err := parseEnv(string(text))
	if err != nil {
		return nil, err
	}
	r, err := newRequest(env)
	return &request{r, current}, err
}

// readPrepared reads dir_prepared.
func (s *Builder) readPrepared() (prepared, error) {
	data, err := record.Read(filepath.Join(s.Dir, preparedName), maxResponse)
	if errors.Is(err, fs.ErrNotExist) {
		return prepared{}, nil
	}
	if err != nil {
		return prepared{}, err
	}
	if len(data) == 0 {
		text, err := record.Read(filepath.Join(s.Dir, envName), maxNVIDIAEnv)
		return prepared{requestID("NVIDIA\n" + string(text)), true}, err
	}
	id, err := parseID(data)
	return prepared{id: id}, err
}

// servePending serves the pending request, if there is one.
func (s *Builder) servePending(ctx context.Context, changes <-chan struct{}) error {
	r, err := s.pendingRequest()
	if err != nil {
		return s.rejectRequest(err)
	}
	if r == nil {
		return nil
	}
	dir, err := s.buildPending(ctx, r, changes)
	if dir != "" {
		defer os.RemoveAll(dir) //nolint:errcheck // the container's own file system, which goes with it
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errReplaced):
		return s.servePending(ctx, changes)
	case err == nil && r.nvidia:
		err = s.publishTree(ctx, r, dir)
	case err == nil:
		err = s.publishModules(r, dir)
	}
	if err != nil {
		return s.publishFailure(r, err)
	}
	s.Log.Info("modules are handed over", "kernel", r.Release, "version", r.Version)
	return nil
}

var errReplaced = errors.New("the driver container has replaced the request")

// buildPending builds the modules and writes heartbeats meanwhile. It cancels the build when the
// driver container replaces the request.
func (s *Builder) buildPending(ctx context.Context, r *request, changes <-chan struct{}) (dir string, err error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		dir, err = s.buildModules(inner, r)
	}()
	beat := time.NewTicker(s.Beat)
	defer beat.Stop()
	for n := 1; ; n++ {
		s.writeBeat(r, n)
		if s.waitForChange(r, done, beat.C, changes) {
			cancel(errReplaced)
			<-done
			return dir, errReplaced
		}
		select {
		case <-done:
			return dir, err
		default:
		}
	}
}

// writeBeat writes a heartbeat of the build. For NVIDIA's driver container it writes nothing:
// after driver_build_started that does not read driver_toolkit_broken any more.
func (s *Builder) writeBeat(r *request, n int) {
	if r.nvidia {
		return
	}
	if err := writeResponse(s.Dir, startedName, response{ID: r.id, Beat: n}); err != nil {
		s.Log.Warn("writing the heartbeat of the build failed", "error", err)
	}
}

// buildModules builds the modules that a request names.
func (s *Builder) buildModules(ctx context.Context, r *request) (dir string, err error) {
	builder := s.Build
	if builder == nil {
		builder = s.compileModules
	}
	if r.nvidia {
		return s.buildUnpacked(ctx, r, builder)
	}
	return builder(ctx, r.Request, filepath.Join(s.Dir, sourcesName))
}

// waitForChange waits until the build is done or the next heartbeat is due. It reports whether
// the driver container has replaced the request before that.
func (s *Builder) waitForChange(r *request, done <-chan struct{}, beat <-chan time.Time, changes <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return false
		case <-beat:
			return false
		case <-changes:
			if current, err := s.readPrepared(); err == nil && current != r.prepared {
				return true
			}
		}
	}
}

// compileModules compiles the modules. It is the default of Builder.Build.
func (s *Builder) compileModules(ctx context.Context, r Request, source string) (string, error) {
	root := s.Root
	if root == "" {
		root = "/"
	}
	headers, err := build.FindHeaders(root, r.Release)
	if errors.Is(err, fs.ErrNotExist) {
		return "", brokenError(err, "its image has no headers of kernel %s, which runs on the node: it is for another RHCOS version; wait for a running upgrade, or look at oc get imagestream/driver-toolkit -n openshift", r.Release)
	}
	if err != nil {
		return "", err
	}
	return build.Compile(ctx, build.Request{
		Source: source, Headers: headers, Release: r.Release, Modules: r.Modules, Version: r.Version, Kind: r.Kind,
		Work: s.Work, Log: s.Log,
	})
}

// publishModules copies the modules to the shared folder and writes driver_built.
func (s *Builder) publishModules(r *request, dir string) error {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	if err := errors.Join(removeAll(root, modulesName), root.Mkdir(modulesName, 0o755)); err != nil {
		return err
	}
	built := response{ID: r.id, Modules: map[string]string{}}
	for _, name := range r.Modules {
		file := name + ".ko"
		if built.Modules[file], err = folder.SumFile(filepath.Join(dir, file)); err != nil {
			return err
		}
		if err := copyInto(root, filepath.Join(dir, file), filepath.Join(modulesName, file), 0o644); err != nil {
			return err
		}
		if marker, ok := markers[name]; ok {
			err = errors.Join(err, record.Write(filepath.Join(s.Dir, marker), nil))
		}
		if err != nil {
			return err
		}
	}
	return writeResponse(s.Dir, builtName, built)
}

// publishFailure writes driver_failed.
func (s *Builder) publishFailure(r *request, err error) error {
	err = explainFull(s.Dir, err)
	a := response{ID: r.id, Reason: build.ReasonBuildFailed, Message: record.Clean(err.Error(), maxMessage)}
	if e, ok := errors.AsType[*kernel.Error](err); ok && reasons[e.Reason] {
		a.Reason = e.Reason
	}
	s.Log.Error("modules were not built", "reason", a.Reason, "error", err)
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	// Unpublished modules make room for the response.
	err = errors.Join(removeAll(root, modulesName), root.Close(), writeResponse(s.Dir, failedName, a))
	if r.nvidia {
		err = errors.Join(err, s.writeBroken(a.Message))
	}
	return err
}

// rejectRequest reports an invalid request to the driver container.
func (s *Builder) rejectRequest(err error) error {
	// Each write here triggers another read of the folder.
	if _, statErr := os.Lstat(filepath.Join(s.Dir, brokenName)); statErr == nil {
		return nil
	}
	s.Log.Error("invalid request", "error", err)
	current, _ := s.readPrepared()
	if !current.nvidia {
		return s.writeBroken(err.Error())
	}
	message := record.Clean(err.Error(), maxMessage)
	return errors.Join(writeResponse(s.Dir, failedName, response{ID: current.id, Reason: ReasonToolkitBroken, Message: message}), s.writeBroken(message))
}

// writeBroken writes driver_toolkit_broken.
func (s *Builder) writeBroken(message string) error {
	return record.Write(filepath.Join(s.Dir, brokenName), []byte(record.Clean(message, maxMessage/2)+"\n"))
}
