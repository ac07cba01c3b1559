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

// defaultBeat is how often a SideCar that names nothing else says that its build goes on.
const defaultBeat = 20 * time.Second

// SideCar is the side of the Driver Toolkit's container.
type SideCar struct {
	Dir  string // the shared folder
	Root string // where kernel headers are installed; "": /
	Work string // folder for the build; "": the system's for temporary files
	// Build builds what a request asks for and returns a folder with the modules, which is
	// removed; nil: they are compiled.
	Build func(ctx context.Context, r Request, source string) (dir string, err error)
	Beat  time.Duration // between signs of a build that goes on; 0: 20 seconds
	// System is the kernel that runs, for requests of NVIDIA's driver container, which names
	// none; the zero value: kernel.Host.
	System kernel.System
	Log    *slog.Logger // may be nil
}

// Run answers requests until ctx ends; it then returns nil. Each is answered once; a request
// that comes while another is being built ends that build. What failed is built again when
// the driver container has removed driver_failed.
func (s *SideCar) Run(ctx context.Context) error {
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
			default: // one that was not looked at yet tells of this one, too
			}
		})
	})
	group.Go(func() error {
		for {
			if err := s.answer(inner, changes); err != nil {
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

// ask is the content of dir_prepared; the zero value: there is no such file.
type ask struct {
	id     string // digest of the request
	nvidia bool   // it is NVIDIA's driver container that asks
}

// request is a Request with its digest.
type request struct {
	Request
	ask
}

// read returns the request that waits for an answer; nil: there is none.
func (s *SideCar) read() (*request, error) {
	asked, err := s.asked()
	if asked.id == "" || err != nil {
		return nil, err
	}
	r, err := s.readRequest(asked)
	// dir_prepared is removed before anything that it stands for is changed.
	if now, _ := s.asked(); now != asked {
		return nil, nil
	}
	return r, err
}

func (s *SideCar) readRequest(asked ask) (*request, error) {
	for _, name := range []string{builtName, failedName} {
		if _, answered, err := readAnswer(s.Dir, name, asked.id); answered || err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, brokenName)); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if asked.nvidia {
		r, err := s.readNVIDIA()
		return &request{r, asked}, err
	}
	text, err := record.Read(filepath.Join(s.Dir, envName), maxEnv)
	if err != nil {
		return nil, err
	}
	if requestID(string(text)) != asked.id {
		return nil, fmt.Errorf("%s is not the one that %s is of", envName, preparedName)
	}
	env, err := parseEnv(string(text))
	if err != nil {
		return nil, err
	}
	r, err := newRequest(env)
	return &request{r, asked}, err
}

// asked returns what the driver container has asked for.
func (s *SideCar) asked() (ask, error) {
	data, err := record.Read(filepath.Join(s.Dir, preparedName), maxAnswer)
	if errors.Is(err, fs.ErrNotExist) {
		return ask{}, nil
	}
	if err != nil {
		return ask{}, err
	}
	if len(data) == 0 {
		text, err := record.Read(filepath.Join(s.Dir, envName), maxNVIDIAEnv)
		return ask{requestID("NVIDIA\n" + string(text)), true}, err
	}
	id, err := parseID(data)
	return ask{id: id}, err
}

// answer answers the request that waits, if there is one.
func (s *SideCar) answer(ctx context.Context, changes <-chan struct{}) error {
	r, err := s.read()
	if err != nil {
		return s.giveUp(err)
	}
	if r == nil {
		return nil
	}
	dir, err := s.build(ctx, r, changes)
	if dir != "" {
		defer os.RemoveAll(dir) //nolint:errcheck // the container's own file system, which goes with it
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errReplaced):
		return s.answer(ctx, changes)
	case err == nil && r.nvidia:
		err = s.publishTree(ctx, r, dir)
	case err == nil:
		err = s.publish(r, dir)
	}
	if err != nil {
		return s.fail(r, err)
	}
	s.Log.Info("modules are handed over", "kernel", r.Release, "version", r.Version)
	return nil
}

var errReplaced = errors.New("the driver container has asked for something else")

// build builds the modules and says meanwhile that it goes on. It ends the build when the
// driver container asks for something else.
func (s *SideCar) build(ctx context.Context, r *request, changes <-chan struct{}) (dir string, err error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		dir, err = s.make(inner, r)
	}()
	beat := time.NewTicker(s.Beat)
	defer beat.Stop()
	for n := 1; ; n++ {
		s.sign(r, n)
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

// sign says that the build goes on. NVIDIA's driver container is told only once it is done:
// from then on it does not read driver_toolkit_broken any more.
func (s *SideCar) sign(r *request, n int) {
	if r.nvidia {
		return
	}
	if err := writeAnswer(s.Dir, startedName, answer{ID: r.id, Beat: n}); err != nil {
		s.Log.Warn("the driver container is not told that the build goes on", "error", err)
	}
}

// make makes the modules that a request names.
func (s *SideCar) make(ctx context.Context, r *request) (dir string, err error) {
	builder := s.Build
	if builder == nil {
		builder = s.compile
	}
	if r.nvidia {
		return s.makeUnpacked(ctx, r, builder)
	}
	return builder(ctx, r.Request, filepath.Join(s.Dir, sourcesName))
}

// waitForChange waits until the build is done or it is time for a sign, and reports whether
// the driver container has asked for something else before that.
func (s *SideCar) waitForChange(r *request, done <-chan struct{}, beat <-chan time.Time, changes <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return false
		case <-beat:
			return false
		case <-changes:
			if asked, err := s.asked(); err == nil && asked != r.ask {
				return true
			}
		}
	}
}

// compile is the Build of a SideCar that names none.
func (s *SideCar) compile(ctx context.Context, r Request, source string) (string, error) {
	root := s.Root
	if root == "" {
		root = "/"
	}
	headers, err := build.FindHeaders(root, r.Release)
	if errors.Is(err, fs.ErrNotExist) {
		return "", broken(err, "its image has no headers of kernel %s, which runs on the node: it is of another RHCOS version; wait for an upgrade that goes on, or look at oc get imagestream/driver-toolkit -n openshift", r.Release)
	}
	if err != nil {
		return "", err
	}
	return build.Compile(ctx, build.Request{
		Source: source, Headers: headers, Release: r.Release, Modules: r.Modules, Version: r.Version, Kind: r.Kind,
		Work: s.Work, Log: s.Log,
	})
}

// publish puts the modules into the shared folder and says that they are there.
func (s *SideCar) publish(r *request, dir string) error {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	if err := errors.Join(removeAll(root, modulesName), root.Mkdir(modulesName, 0o755)); err != nil {
		return err
	}
	built := answer{ID: r.id, Modules: map[string]string{}}
	for _, name := range r.Modules {
		file := name + ".ko"
		if built.Modules[file], err = folder.SumFile(filepath.Join(dir, file)); err != nil {
			return err
		}
		if err := copyInto(root, filepath.Join(dir, file), filepath.Join(modulesName, file), 0o644); err != nil {
			return err
		}
		if marker, is := markers[name]; is {
			err = errors.Join(err, record.Write(filepath.Join(s.Dir, marker), nil))
		}
		if err != nil {
			return err
		}
	}
	return writeAnswer(s.Dir, builtName, built)
}

// fail says that the build has failed.
func (s *SideCar) fail(r *request, err error) error {
	err = explainFull(s.Dir, err)
	a := answer{ID: r.id, Reason: build.ReasonBuildFailed, Message: record.Clean(err.Error(), maxMessage)}
	if e, ok := errors.AsType[*kernel.Error](err); ok && reasons[e.Reason] {
		a.Reason = e.Reason
	}
	s.Log.Error("modules were not built", "reason", a.Reason, "error", err)
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	// Modules that nobody is told of make room for the answer.
	err = errors.Join(removeAll(root, modulesName), root.Close(), writeAnswer(s.Dir, failedName, a))
	if r.nvidia {
		err = errors.Join(err, s.breakOff(a.Message))
	}
	return err
}

// giveUp says that the shared folder cannot be understood.
func (s *SideCar) giveUp(err error) error {
	// Each file that is written here calls for another look.
	if _, said := os.Lstat(filepath.Join(s.Dir, brokenName)); said == nil {
		return nil
	}
	s.Log.Error("the request is not understood", "error", err)
	asked, _ := s.asked()
	if !asked.nvidia {
		return s.breakOff(err.Error())
	}
	message := record.Clean(err.Error(), maxMessage)
	return errors.Join(writeAnswer(s.Dir, failedName, answer{ID: asked.id, Reason: ReasonToolkitBroken, Message: message}), s.breakOff(message))
}

// breakOff says that nothing is built here.
func (s *SideCar) breakOff(message string) error {
	return record.Write(filepath.Join(s.Dir, brokenName), []byte(record.Clean(message, maxMessage/2)+"\n"))
}
