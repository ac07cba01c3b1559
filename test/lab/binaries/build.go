package binaries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// grace limits how long the go command may take to end its compilers.
const grace = 10 * time.Second

// build creates the entry in dir/entry; dir/tmp is for the go command.
func (e entry) build(ctx context.Context, goCommand, dir string, s *screen) error {
	made, tmp := filepath.Join(dir, "entry"), filepath.Join(dir, "tmp")
	for _, d := range []string{made, tmp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("cache of the cluster's binaries: %w", err)
		}
	}
	for _, b := range e.binaries {
		path := filepath.Join(made, b.name)
		cmd := exec.CommandContext(ctx, goCommand, e.arguments(b, path)...)
		cmd.Dir = e.source
		cmd.Env = append(buildEnviron(tmp), e.environment()...)
		shown := s.begin(b.name+" "+e.version, b.about)
		out := &output{heard: shown.setStep}
		cmd.Stdout, cmd.Stderr = out, out
		err := run(ctx, cmd)
		var size int64
		if info, statErr := os.Stat(path); err == nil && statErr == nil {
			size = info.Size()
		}
		shown.end(err, size)
		if err != nil {
			return &buildError{b.name + " " + e.version, e.source, strings.Join(e.environment(), " "), cmd.Args, out.tail(), err}
		}
	}
	return e.write(made)
}

// run runs a go command until it ends or ctx does. Its children are interrupted too, so that
// they remove their temporary files.
func run(ctx context.Context, cmd *exec.Cmd) error {
	// The command must die with this process, however that ends, because the lock is free then.
	// The kernel sends that signal when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// buildEnviron returns this process's environment without variables that would change the
// build in ways that the key does not cover.
func buildEnviron(tmp string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"GOFLAGS", "GOWORK", "CGO_ENABLED", "CGO_CFLAGS", "CGO_LDFLAGS", "GOTMPDIR"}, name)
	})
	// GOFLAGS must not be empty, or the file of `go env -w` would apply.
	return append(env, "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOTMPDIR="+tmp)
}

// output parses the output of `go build -v`: compiled packages are progress, and all other
// lines are kept.
type output struct {
	heard func(doing string)
	rest  []byte // an incomplete line
	kept  []string
}

func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	for {
		line, rest, found := bytes.Cut(o.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		o.line(string(line))
		o.rest = slices.Clone(rest)
	}
}

func (o *output) line(line string) {
	switch what, downloading := strings.CutPrefix(line, "go: downloading "); {
	case downloading:
		o.heard("downloading " + what)
	case line != "" && !strings.ContainsAny(line, " \t:"):
		o.heard(line)
	default:
		o.kept = append(o.kept, line)
	}
}

// tail returns the end of the kept lines.
func (o *output) tail() string {
	const lines = 20
	kept := append(slices.Clone(o.kept), string(o.rest))
	return strings.TrimSpace(strings.Join(kept[max(0, len(kept)-lines):], "\n"))
}

// buildError describes a binary that could not be built.
type buildError struct {
	binary, dir, environment string
	args                     []string
	tail                     string
	err                      error
}

func (e *buildError) Unwrap() error { return e.err }

func (e *buildError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "build %s: %v; %s", e.binary, e.err, e.next())
	if errors.Is(e.err, context.Canceled) {
		return b.String()
	}
	if e.tail != "" {
		fmt.Fprintf(&b, "\n  its last lines:\n    %s", strings.ReplaceAll(e.tail, "\n", "\n    "))
	}
	fmt.Fprintf(&b, "\n  the command:\n    cd %s && %s", e.dir, e.environment)
	for _, a := range e.args {
		b.WriteByte(' ')
		if strings.ContainsAny(a, " ") {
			a = "'" + a + "'"
		}
		b.WriteString(a)
	}
	return b.String()
}

// advice maps the output of failed builds to a remedy. The first match counts.
var advice = []struct{ printed, next string }{
	{"pkg-config", "pkg-config or the headers of libseccomp are missing: run .ci/packages.sh cluster"},
	{"C compiler", "a C compiler is missing: run .ci/packages.sh build cluster"},
	{"no space left on device", "make room where the cache, Go's cache (go env GOCACHE) or its modules (go env GOMODCACHE) lie"},
	{"requires go >=", "install a newer Go, or let Go fetch it with GOTOOLCHAIN=auto"},
	{"signal: killed", "a compiler was killed, probably for want of memory: it takes about 4 GB; GOMAXPROCS=1 takes less"},
	{"missing go.sum entry", "run go mod tidy in that folder, and commit go.mod and go.sum"},
	{"dial tcp", "the modules cannot be downloaded: see to the network, or set GOPROXY"},
	{"no such host", "the modules cannot be downloaded: see to the network, or set GOPROXY"},
	{"reading https", "the modules cannot be downloaded: see to the network, or set GOPROXY"},
}

// next returns the remedy.
func (e *buildError) next() string {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) {
		return "run it again: what was compiled already is kept"
	}
	if errors.Is(e.err, exec.ErrNotFound) {
		return "install Go, and see that it is in PATH"
	}
	for _, a := range advice {
		if strings.Contains(e.tail, a.printed) {
			return a.next
		}
	}
	return "the command below shows it again"
}
