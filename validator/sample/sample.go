// Package sample runs the CUDA samples, programs of their own, and reads what
// they answer.
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

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	Passed     Outcome = "passed"
	Failed     Outcome = "failed" // a call of the driver did, or the sample itself
	Wrong      Outcome = "wrong"  // its result was
	NoResult   Outcome = "no result in time"
	Impossible Outcome = "not possible on this device"
	Missing    Outcome = "missing" // the program is not here
)

// Job is one sample on some devices.
type Job struct {
	Name    string
	Path    string // of the program; "" where there is none
	Args    []string
	Devices []gpu.UUID // what it sees
	CPUs    []int      // on which it is to run; nil: anywhere
	LibDir  string     // of the driver's libraries
	Timeout time.Duration
}

// Answer is what a sample prints with -o json, as far as it is of use here.
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

// Bad is a word of memory, or an element of a result, that is not as it should be.
type Bad struct {
	Address string `json:"address"`
	Want    any    `json:"want"`
	Got     any    `json:"got"`
	Pattern string `json:"pattern"`
}

// Result is what came of a Job.
type Result struct {
	Outcome Outcome
	Answer  Answer
	Message string // why, unless it passed
	Elapsed time.Duration
}

const (
	maxOutput = 4 << 20 // the peers of 16 GPUs and 1000 bad words are less
	maxText   = 1000
	// grace is how long a killed sample's output is waited for: a process that
	// hangs in the kernel cannot be killed, and must not hold the validator.
	grace = time.Second
)

// Run runs the job. Its environment is made here and not inherited: what chooses
// GPUs in ours is not to choose them there.
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
	// Killed with all that it started, and when the validator dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace

	start := time.Now()
	err := startNear(cmd, j.CPUs)
	if err == nil {
		err = cmd.Wait()
	}
	r := judge(j, err, stdout.kept.Bytes(), stderr.kept.String())
	r.Elapsed = time.Since(start)
	if ctx.Err() != nil && r.Outcome != Passed {
		r.Outcome, r.Message = NoResult, fmt.Sprintf("no result in %v", j.Timeout.Round(100*time.Millisecond))
	}
	return r
}

// judge reads how the program ended and what it answered: an exit of 0 alone
// proves nothing, and neither does a result from another GPU than the one meant.
func judge(j Job, ended error, stdout []byte, stderr string) Result {
	var a Answer
	decoded := json.Unmarshal(stdout, &a)
	r := Result{Outcome: Failed, Answer: a}
	exit, exited := errors.AsType[*exec.ExitError](ended)
	switch {
	case ended != nil && !exited:
		r.Message = record.Clean(ended.Error(), maxText)
	case exited:
		r.Outcome, r.Message = outcome(exit.ExitCode()), why(a, ended, stderr)
	case decoded != nil || a.Passed == nil:
		r.Message = fmt.Sprintf("the sample ended well and did not answer: %q", record.Clean(string(stdout), 200))
	case !*a.Passed:
		r.Message = "the sample says that it did not pass: " + record.Clean(a.Error, maxText)
	case !isOne(j.Devices, a.UUID):
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

func isOne(devices []gpu.UUID, id string) bool {
	return slices.ContainsFunc(devices, func(d gpu.UUID) bool { return Names(d, id) })
}

// Names says whether what CUDA calls a device is the one that the driver calls so.
// Drivers before R470 name MIG devices in another way than CUDA does.
func Names(d gpu.UUID, id string) bool {
	return string(d) == id || strings.HasPrefix(string(d), "MIG-GPU-")
}

// why quotes the sample's own line about its failure: from its answer, else the
// last one that it wrote to stderr.
func why(a Answer, ended error, stderr string) string {
	if a.Error != "" {
		return record.Clean(a.Error, maxText)
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := record.Clean(lines[len(lines)-1], maxText); last != "" {
		return last
	}
	return ended.Error()
}

// bounded keeps the first limit bytes of what is written to it. The buffer is
// not embedded: its ReadFrom, which io.Copy prefers to Write, has no bound.
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
