package workload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/probe"
)

// PodCommand is the hidden subcommand of gpu-validator that runs in the pods. Its
// arguments are the units to run the sample on, "GPU-…=GPU 0 (GPU-…, 0000:10:00.0)";
// none: the first CUDA device.
const PodCommand = "run-sample"

// TerminationLog is the file from which the kubelet reads a container's termination
// message, up to 4096 bytes.
const (
	TerminationLog = DevDir + "/termination-log"
	DevDir         = "/dev"
	maxPodMessage  = 4096
)

const maxReport = 1 << 20

// The sample writes its report to file descriptor 3, a pipe; its output stays in the log.
var reportFlags = []string{"--report", "/proc/self/fd/3"}

// PodJob runs in the validation pods. It runs the sample vectoradd, whose output is the
// pod's log, and leaves an answer for the creator of the pod.
type PodJob struct {
	Sample         string   // the program, "" where there is none
	Units          []string // the arguments of Subcommand
	MessagePath    string   // the file for the answer
	Dev            string   // the folder of the container's devices
	Stdout, Stderr io.Writer
}

// Run runs the sample on one unit after the other, also after a failure, and writes the
// answer. It returns the exit code of the first that failed, else 0.
func (j PodJob) Run(ctx context.Context) (int, error) {
	if j.Sample == "" {
		return 1, errors.New("the sample vectoradd is neither beside gpu-validator nor in PATH: the image is not a validator's")
	}
	all, code, err := j.runAll(ctx)
	if err != nil && !all.hasResult() {
		all.count(countDeviceNodes(j.Dev), err.Error())
	}
	if all.hasResult() {
		if err := all.write(j.MessagePath); err != nil {
			return 1, err
		}
	}
	return code, err
}

// runAll runs the sample on all units and returns their combined answer.
func (j PodJob) runAll(ctx context.Context) (podAnswer, int, error) {
	if len(j.Units) == 0 {
		return j.runOn(ctx, "")
	}
	all, failed := podAnswer{Passed: new(bool)}, 0
	var bad []string
	for i, unit := range j.Units {
		id, name, _ := strings.Cut(unit, "=")
		if i > 0 {
			fmt.Fprintln(j.Stdout)
		}
		fmt.Fprintln(j.Stdout, name)
		a, code, err := j.runOn(ctx, id)
		all.Simulated = all.Simulated || a.Simulated
		if why := a.failure(id, code, err); why != "" {
			failed = cmp.Or(failed, code, 1)
			bad, all.Devices = append(bad, name+": "+why), cmp.Or(all.Devices, a.Devices)
			continue
		}
		all.Ran++
	}
	*all.Passed, all.Error = len(bad) == 0, strings.Join(bad, "; ")
	return all, failed, nil
}

// runOn runs the sample once, on a unit, "" for the first device.
func (j PodJob) runOn(ctx context.Context, unit string) (a podAnswer, code int, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return a, 1, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.CommandContext(ctx, j.Sample, reportFlags...)
	cmd.Env = append(os.Environ(), "CUDA_CACHE_DISABLE=1")
	if unit != "" {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+unit)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = []*os.File{write}
	var errorOutput bytes.Buffer
	cmd.Stdout, cmd.Stderr = j.Stdout, io.MultiWriter(&errorOutput, j.Stderr)
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return a, 1, err
	}
	output, _ := io.ReadAll(io.LimitReader(read, maxReport)) // a truncated report does not parse
	err = cmd.Wait()
	if json.Unmarshal(output, &a) != nil || a.Passed == nil {
		a = podAnswer{}
	}
	if a.Passed == nil || !*a.Passed {
		a.count(countDeviceNodes(j.Dev), lastLine(errorOutput.String()))
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return a, code, nil
	}
	return a, 1, err // killed by a signal
}

// podAnswer is the used part of the sample's report, and the termination message for the
// kubelet.
type podAnswer struct {
	Passed    *bool    `json:"passed"`
	Simulated bool     `json:"simulated"`
	Error     string   `json:"error,omitempty"`
	Code      int      `json:"code,omitempty"` // CUresult of the call that failed; 0: none did
	UUID      gpu.UUID `json:"uuid,omitempty"`
	// Ran counts the units on which the sample passed, where units were named.
	Ran int `json:"ran,omitempty"`
	// Devices counts the GPUs' device nodes in the container, where the sample failed.
	Devices *int `json:"devices,omitempty"`
}

// hasResult reports whether the sample ran to its end, passed or not.
func (a *podAnswer) hasResult() bool { return a.Passed != nil }

// failure returns why the sample did not pass on a unit, by its answer and exit; "": it passed.
func (a *podAnswer) failure(unit string, code int, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case !a.hasResult():
		return "the sample gave no answer"
	case !*a.Passed:
		return a.Error
	case !probe.SameDevice(gpu.UUID(unit), string(a.UUID)):
		return fmt.Sprintf("the sample ran on %q", a.UUID)
	case code != 0:
		return fmt.Sprintf("the sample passed and ended with %d", code)
	}
	return ""
}

// count adds the number of GPUs in the container to a failure. If the sample reported no result,
// a container without any GPU makes complaint the result; with a GPU there is none, and the
// reader gets the sample's last lines.
func (a *podAnswer) count(devices int, complaint string) {
	if !a.hasResult() {
		if devices > 0 {
			return
		}
		a.Passed, a.Error = new(bool), complaint
	}
	a.Devices = &devices
}

// write writes the answer to the file that the kubelet reads.
func (a *podAnswer) write(path string) error {
	short := *a
	short.Error = record.Clean(a.Error, maxPodMessage/2)
	data, err := json.Marshal(short)
	if err == nil {
		err = os.WriteFile(path, data, 0o644) // no rename: the kubelet's file is mounted there
	}
	if err != nil {
		return fmt.Errorf("write the termination message: %w", err)
	}
	return nil
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return record.Clean(lines[len(lines)-1], 1000)
}

var deviceNode = regexp.MustCompile(`^(nvidia[0-9]+|dxg)$`)

// countDeviceNodes counts the GPUs' device nodes in dev, a container's /dev.
func countDeviceNodes(dev string) int {
	entries, err := os.ReadDir(dev)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if deviceNode.MatchString(e.Name()) {
			n++
		}
	}
	return n
}
