package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// Subcommand is the hidden one of gpu-validator that runs in the pod.
const Subcommand = "run-sample"

// TerminationLog is where the kubelet takes a container's last words from. It
// keeps 4096 bytes.
const (
	TerminationLog = Dev + "/termination-log"
	Dev            = "/dev"
	maxWords       = 4096
)

// answer is what the sample prints with -o json, as far as it is of use here.
type answer struct {
	Passed    *bool    `json:"passed"`
	Simulated bool     `json:"simulated"`
	Error     string   `json:"error,omitempty"`
	UUID      gpu.UUID `json:"uuid,omitempty"`
	// Devices are the GPUs' nodes in the container, counted where the sample failed.
	Devices *int `json:"devices,omitempty"`
}

// Sample runs the sample and leaves its answer in the file at words, for the
// kubelet. It returns the sample's exit code. dev is where the container has its
// devices: whether it was given any is told where the sample failed.
func Sample(ctx context.Context, sample, words, dev string, stdout, stderr io.Writer) (int, error) {
	if sample == "" {
		return 1, errors.New("the sample vectoradd is neither beside gpu-validator nor in PATH: the image is not a validator's")
	}
	cmd := exec.CommandContext(ctx, sample, "-o", "json")
	cmd.Env = append(os.Environ(), "CUDA_CACHE_DISABLE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said, complained bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&said, stdout), io.MultiWriter(&complained, stderr)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 1, err
	}
	var a answer
	if json.Unmarshal(said.Bytes(), &a) != nil || a.Passed == nil {
		a = answer{}
	}
	if a.Passed == nil || !*a.Passed {
		a.count(devices(dev), last(complained.String()))
	}
	if a.Passed != nil {
		if err := a.leave(words); err != nil {
			return 1, err
		}
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	return 1, err // killed by a signal
}

// count adds how many GPUs the container has. Where there is none, that is an answer
// also of a sample that gave none; else its last lines tell more.
func (a *answer) count(devices int, complaint string) {
	if a.Passed == nil {
		if devices > 0 {
			return
		}
		a.Passed, a.Error = new(bool), complaint
	}
	a.Devices = &devices
}

// leave writes the answer where the kubelet finds it.
func (a answer) leave(words string) error {
	a.Error = record.Clean(a.Error, maxWords/2)
	data, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(words, data, 0o644) // no rename: the kubelet's file is mounted there
	}
	if err != nil {
		return fmt.Errorf("leave the answer for the kubelet: %w", err)
	}
	return nil
}

// verdict reads what the pod's container left. An exit of 0 alone proves
// nothing, and neither does a result of another GPU or driver than this node's.
func verdict(words string, driver check.Driver) error {
	var a answer
	if err := json.Unmarshal([]byte(words), &a); err != nil || a.Passed == nil {
		return fmt.Errorf("the sample ended well and left no answer: %q", record.Clean(words, 200))
	}
	if !*a.Passed {
		return errors.New("the sample says that it did not pass: " + record.Clean(a.Error, 1000))
	}
	if a.Simulated != driver.Info.Simulated {
		return fmt.Errorf("the pod was given another driver than this node's: simulated is %t there, %t here", a.Simulated, driver.Info.Simulated)
	}
	for _, g := range driver.GPUs {
		if g.UUID == a.UUID {
			return nil
		}
		for _, m := range g.MIG {
			// Drivers before R470 name MIG devices in another way than CUDA does.
			if m.UUID == a.UUID || strings.HasPrefix(string(m.UUID), "MIG-GPU-") {
				return nil
			}
		}
	}
	return fmt.Errorf("the sample ran on %q, which is none of this node's GPUs", record.Clean(string(a.UUID), 100))
}

// words quotes the answer's error, else what else was left.
func words(left string) string {
	var a answer
	if json.Unmarshal([]byte(left), &a) == nil && a.Error != "" {
		return record.Clean(a.Error, 1000)
	}
	return last(left)
}

// last is the last line of a text.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return record.Clean(lines[len(lines)-1], 1000)
}
