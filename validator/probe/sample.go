package probe

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

// Exit codes of all samples, the programs of cuda-samples.
const (
	exitWrong      = 3
	exitNoResult   = 4
	exitImpossible = 5
)

// SampleOutcome is the outcome of a run of a sample.
type SampleOutcome string

// The outcomes.
const (
	SamplePassed     SampleOutcome = "passed"
	SampleFailed     SampleOutcome = "failed" // a call of the driver failed, or the sample itself
	SampleWrong      SampleOutcome = "wrong"  // the result was wrong
	SampleNoResult   SampleOutcome = "no result in time"
	SampleImpossible SampleOutcome = "not possible on this device"
	SampleMissing    SampleOutcome = "missing" // the program is not here
)

// SampleJob describes the run of one sample on some devices.
type SampleJob struct {
	Name    string
	Path    string // of the program; "" where there is none
	Args    []string
	Devices []gpu.UUID // visible to it
	MPSPipe string     // the folder of the pipes of an MPS control daemon, whose client it is to be; "": none
	MPSShm  string     // the folder that the daemon's clients see as /dev/shm
	CPUs    []int      // to run on; nil: any
	LibDirs []string   // of the driver's libraries
	Timeout time.Duration
}

// SampleAnswer is the used part of a sample's output with -o json.
type SampleAnswer struct {
	Passed     *bool        `json:"passed"`
	Error      string       `json:"error"`
	Code       int          `json:"code"` // CUresult of the call that failed; 0: none did
	Simulated  bool         `json:"simulated"`
	UUID       string       `json:"uuid"`
	Figures    []Figure     `json:"figures"`
	Peers      []Peer       `json:"peers"`
	Wrong      []WrongValue `json:"wrong"`
	WrongCount uint64       `json:"wrongCount"`
	Notes      []string     `json:"notes"`
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

// WrongValue is a wrong word of memory, or a wrong element of a result.
type WrongValue struct {
	Address string `json:"address"`
	Want    any    `json:"want"`
	Got     any    `json:"got"`
	Pattern string `json:"pattern"`
}

// Results of CUDA (CUresult in cuda.h; the runtime's cudaError_t has the same numbers) that a GPU in good
// health gives where others use it.
const (
	CUDAOutOfMemory       = 2
	CUDADeviceUnavailable = 46  // the compute mode admits no further process
	cudaMPSFirst          = 805 // from here on: the MPS daemon has no room for another client, restarts, or has ended this one
	cudaMPSLast           = 810
)

// SampleResult is the result of a SampleJob.
type SampleResult struct {
	Outcome SampleOutcome
	Answer  SampleAnswer
	Message string // why, unless it passed
	Ran     bool   // the program was started
	Elapsed time.Duration
}

// MeansInUse reports whether the sample failed in a way in which it fails on a good GPU that others use.
// Whether anybody uses the GPU is for the caller to find out.
func (r SampleResult) MeansInUse() bool {
	return r.Outcome == SampleFailed && MeansInUse(r.Answer.Code)
}

// MeansInUse reports whether a call of CUDA that fails on a good GPU that others use has this result.
func MeansInUse(code int) bool {
	return code == CUDAOutOfMemory || code == CUDADeviceUnavailable || code >= cudaMPSFirst && code <= cudaMPSLast
}

// installation lists the results of CUDA that tell of the driver, its libraries and daemons, or of what this
// container may use, and not of a GPU (CUresult in cuda.h).
var installation = []int{
	3,   // NOT_INITIALIZED
	34,  // STUB_LIBRARY
	36,  // CALL_REQUIRES_NEWER_DRIVER
	100, // NO_DEVICE: its node is not in this container
	101, // INVALID_DEVICE
	218, // INVALID_PTX
	221, // JIT_COMPILER_NOT_FOUND
	222, // UNSUPPORTED_PTX_VERSION
	304, // OPERATING_SYSTEM
	800, // NOT_PERMITTED
	801, // NOT_SUPPORTED
	802, // SYSTEM_NOT_READY: the fabric manager has not begun
	803, // SYSTEM_DRIVER_MISMATCH
	804, // COMPAT_NOT_SUPPORTED_ON_DEVICE
}

// BlamesDevice reports whether the sample failed in a way in which it fails on no good GPU, whoever uses it: by
// a wrong result, none at all, or a result of CUDA that tells of the GPU. A sample that was killed blames nobody.
func (r SampleResult) BlamesDevice() bool {
	switch r.Outcome {
	case SampleWrong, SampleNoResult:
		return r.Ran
	case SampleFailed:
		return r.Ran && r.Answer.Code != 0 && !r.MeansInUse() && !slices.Contains(installation, r.Answer.Code)
	}
	return false
}

const (
	maxAnswer       = 4 << 20 // more than the peers of 16 GPUs and 1000 bad words
	maxSampleErrors = 64 << 10
	maxSampleText   = 1000
	// sampleGrace is the time to wait for a killed sample's output: a process that hangs in the
	// kernel cannot be killed, and must not block the validator.
	sampleGrace = time.Second
)

// RunSample runs the job. The program does not inherit our environment: variables that select
// our GPUs must not select its GPUs.
func RunSample(ctx context.Context, j SampleJob) SampleResult {
	if j.Path == "" {
		return SampleResult{Outcome: SampleMissing, Message: "the sample " + j.Name + " is neither beside gpu-validator nor in PATH"}
	}
	if j.Timeout <= 0 {
		return SampleResult{Outcome: SampleNoResult, Message: "no time was left for it"}
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
		"LD_LIBRARY_PATH=" + strings.Join(j.LibDirs, ":"),
		"CUDA_CACHE_DISABLE=1", // a read-only root has no place for one
	}
	if j.MPSPipe != "" {
		cmd.Env = append(cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+j.MPSPipe)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{&stdout, maxAnswer}, &limited{&stderr, maxSampleErrors}
	// At its deadline its whole process group is killed; when the validator dies, the program alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = sampleGrace

	start := time.Now()
	begin, end := func(c *exec.Cmd) error { return startNear(c, j.CPUs) }, func() {}
	var err error
	if j.MPSPipe == "" {
		err = begin(cmd)
	} else {
		end, err = startWithShm(cmd, j.MPSShm, begin)
	}
	defer end()
	if err == nil {
		err = cmd.Wait()
	}
	r := evaluateSample(j, err, stdout.Bytes(), stderr.String())
	r.Ran, r.Elapsed = cmd.Process != nil, time.Since(start)
	if ctx.Err() != nil && r.Outcome != SamplePassed {
		r.Outcome, r.Message = SampleNoResult, fmt.Sprintf("no result in %v", j.Timeout.Round(100*time.Millisecond))
	}
	return r
}

// evaluateSample evaluates the program's exit and answer. Exit code 0 alone proves nothing, nor does
// a result from another GPU than the requested one.
func evaluateSample(j SampleJob, ended error, stdout []byte, stderr string) SampleResult {
	var a SampleAnswer
	decoded := json.Unmarshal(stdout, &a)
	r := SampleResult{Outcome: SampleFailed, Answer: a}
	exit, exited := errors.AsType[*exec.ExitError](ended)
	switch {
	case ended != nil && !exited:
		r.Message = record.Clean(ended.Error(), maxSampleText)
	case exited:
		r.Outcome, r.Message = sampleOutcome(exit.ExitCode()), failureMessage(a, ended, stderr)
	case decoded != nil || a.Passed == nil:
		r.Message = fmt.Sprintf("the sample ended with 0 and no result: %q", record.Clean(string(stdout), 200))
	case !*a.Passed:
		r.Message = "the sample says that it did not pass: " + record.Clean(a.Error, maxSampleText)
	case !anyNames(j.Devices, a.UUID):
		r.Message = fmt.Sprintf("the sample ran on %q", record.Clean(a.UUID, 100))
	default:
		r.Outcome = SamplePassed
	}
	return r
}

func sampleOutcome(code int) SampleOutcome {
	switch code {
	case exitWrong:
		return SampleWrong
	case exitNoResult:
		return SampleNoResult
	case exitImpossible:
		return SampleImpossible
	}
	return SampleFailed
}

func anyNames(devices []gpu.UUID, id string) bool {
	return slices.ContainsFunc(devices, func(d gpu.UUID) bool { return SameDevice(d, id) })
}

// SameDevice reports whether CUDA's id names the device d of the driver. Drivers before R470
// name MIG devices differently than CUDA does (MIG-GPU-…): such names cannot be compared, and any id is
// accepted.
func SameDevice(d gpu.UUID, id string) bool {
	return string(d) == id || strings.HasPrefix(string(d), "MIG-GPU-")
}

// failureMessage returns the sample's own message about its failure: from its answer, else its last
// line on stderr.
func failureMessage(a SampleAnswer, ended error, stderr string) string {
	if a.Error != "" {
		return record.Clean(a.Error, maxSampleText)
	}
	if last := lastLine(stderr); last != "" {
		return last
	}
	return ended.Error()
}
