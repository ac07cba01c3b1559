// Package sample runs the CUDA samples, which are separate programs, and reads their
// answers.
package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Exit codes of all samples.
const (
	exitWrong      = 3
	exitNoResult   = 4
	exitImpossible = 5
)

// Outcome is the outcome of a run.
type Outcome string

// The outcomes.
const (
	Passed     Outcome = "passed"
	Failed     Outcome = "failed" // a call of the driver failed, or the sample itself
	Wrong      Outcome = "wrong"  // the result was wrong
	NoResult   Outcome = "no result in time"
	Impossible Outcome = "not possible on this device"
	Missing    Outcome = "missing" // the program is not here
)

// Job describes the run of one sample on some devices.
type Job struct {
	Name    string
	Path    string // of the program; "" where there is none
	Args    []string
	Devices []gpu.UUID // visible to it
	CPUs    []int      // to run on; nil: any
	LibDir  string     // of the driver's libraries
	Timeout time.Duration
}

// Answer is the used part of a sample's output with -o json.
type Answer struct {
	Passed     *bool    `json:"passed"`
	Error      string   `json:"error"`
	Simulated  bool     `json:"simulated"`
	UUID       string   `json:"uuid"`
	Figures    []Figure `json:"figures"`
	Peers      []Peer   `json:"peers"`
	Wrong      []Bad    `json:"wrong"`
	WrongCount uint64   `json:"wrongCount"`
	Notes      []string `json:"notes"`
}

// Figure is a speed; without a Value on a simulated driver.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	Peak  float64 `json:"peak"`
}

// Peer is the speed from one GPU to another.
type Peer struct {
	From   gpu.UUID `json:"from"`
	To     gpu.UUID `json:"to"`
	Access bool     `json:"access"`
	Unit   string   `json:"unit"`
	Value  float64  `json:"value"`
}

// Bad is a wrong word of memory, or a wrong element of a result.
type Bad struct {
	Address string `json:"address"`
	Want    any    `json:"want"`
	Got     any    `json:"got"`
	Pattern string `json:"pattern"`
}

// Result is the result of a Job.
type Result struct {
	Outcome Outcome
	Answer  Answer
	Message string // why, unless it passed
	Elapsed time.Duration
}

const (
	maxOutput = 4 << 20 // more than the peers of 16 GPUs and 1000 bad words
	maxText   = 1000
	// grace is the time to wait for a killed sample's output: a process that hangs in the
	// kernel cannot be killed, and must not block the validator.
	grace = time.Second
)

// Run runs the job. The program does not inherit our environment: variables that select
// our GPUs must not select its GPUs.
func Run(ctx context.Context, j Job) Result {
	if j.Path == "" {
		return Result{Outcome: Missing, Message: "the sample " + j.Name + " is neither beside gpu-validator nor in PATH"}
	}
	if j.Timeout <= 0 {
		return Result{Outcome: NoResult, Message: "no time was left for it"}
	}
	ctx, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, j.Path, append([]string{"-o", "json"}, j.Args...)...)
	visible := make([]string, len(j.Devices))
	for i, id := range j.Devices {
		visible[i] = string(id)
	}
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CUDA_VISIBLE_DEVICES=" + strings.Join(visible, ","),
		"LD_LIBRARY_PATH=" + j.LibDir,
		"CUDA_CACHE_DISABLE=1", // a read-only root has no place for one
	}
	stdout, stderr := &bounded{limit: maxOutput}, &bounded{limit: 64 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// Kill its whole process group, also when the validator dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace

	start := time.Now()
	err := startNear(cmd, j.CPUs)
	if err == nil {
		err = cmd.Wait()
	}
	r := evaluate(j, err, stdout.kept.Bytes(), stderr.kept.String())
	r.Elapsed = time.Since(start)
	if ctx.Err() != nil && r.Outcome != Passed {
		r.Outcome, r.Message = NoResult, fmt.Sprintf("no result in %v", j.Timeout.Round(100*time.Millisecond))
	}
	return r
}

// evaluate evaluates the program's exit and answer. Exit code 0 alone proves nothing, nor does
// a result from another GPU than the requested one.
func evaluate(j Job, ended error, stdout []byte, stderr string) Result {
	var a Answer
	decoded := json.Unmarshal(stdout, &a)
	r := Result{Outcome: Failed, Answer: a}
	exit, exited := errors.AsType[*exec.ExitError](ended)
	switch {
	case ended != nil && !exited:
		r.Message = record.Clean(ended.Error(), maxText)
	case exited:
		r.Outcome, r.Message = outcome(exit.ExitCode()), failureMessage(a, ended, stderr)
	case decoded != nil || a.Passed == nil:
		r.Message = fmt.Sprintf("the sample ended with 0 and no result: %q", record.Clean(string(stdout), 200))
	case !*a.Passed:
		r.Message = "the sample says that it did not pass: " + record.Clean(a.Error, maxText)
	case !anyNames(j.Devices, a.UUID):
		r.Message = fmt.Sprintf("the sample ran on %q", record.Clean(a.UUID, 100))
	default:
		r.Outcome = Passed
	}
	return r
}

func outcome(code int) Outcome {
	switch code {
	case exitWrong:
		return Wrong
	case exitNoResult:
		return NoResult
	case exitImpossible:
		return Impossible
	}
	return Failed
}

func anyNames(devices []gpu.UUID, id string) bool {
	return slices.ContainsFunc(devices, func(d gpu.UUID) bool { return SameDevice(d, id) })
}

// SameDevice reports whether CUDA's id names the device d of the driver. Drivers before R470
// name MIG devices differently than CUDA does.
func SameDevice(d gpu.UUID, id string) bool {
	return string(d) == id || strings.HasPrefix(string(d), "MIG-GPU-")
}

// failureMessage returns the sample's own message about its failure: from its answer, else its last
// line on stderr.
func failureMessage(a Answer, ended error, stderr string) string {
	if a.Error != "" {
		return record.Clean(a.Error, maxText)
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := record.Clean(lines[len(lines)-1], maxText); last != "" {
		return last
	}
	return ended.Error()
}

// bounded is a writer that keeps the first limit bytes. The buffer is not embedded: its
// ReadFrom, which io.Copy prefers to Write, has no bound.
type bounded struct {
	kept  bytes.Buffer
	limit int
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.limit - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
