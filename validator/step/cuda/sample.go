package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// maxOutput bounds what is kept of a sample's output; it prints a few hundred bytes.
const maxOutput = 64 << 10

// grace is how long a killed sample's output is waited for: a process that
// hangs in the kernel cannot be killed, and must not hold the validator.
const grace = 2 * time.Second

var errTimeout = errors.New("no result in time")

type result struct {
	elapsed time.Duration // of the whole process
	err     error
}

// answer is what the sample prints with -o json, as far as it is of use here.
type answer struct {
	Passed    *bool  `json:"passed"`
	Simulated bool   `json:"simulated"`
	Error     string `json:"error"`
	UUID      string `json:"uuid"` // of the device that it ran on
}

// run runs the sample on one GPU. Its environment is made here and not
// inherited: what chooses GPUs in ours is not to choose them there.
func run(ctx context.Context, node check.Node, driver check.Driver, u check.Unit) result {
	ctx, cancel := context.WithTimeoutCause(ctx, node.CUDATimeout, errTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, node.VectorAdd, "-o", "json")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CUDA_VISIBLE_DEVICES=" + string(u.UUID),
		"LD_LIBRARY_PATH=" + driver.LibDir,
		// The sample is compiled once per run in any case, and a read-only
		// root has no place for a cache.
		"CUDA_CACHE_DISABLE=1",
	}
	stdout, stderr := &bounded{limit: maxOutput}, &bounded{limit: maxOutput}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// Killed with all that it started, and when the validator dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace

	start := time.Now()
	err := cmd.Run()
	r := result{elapsed: time.Since(start)}
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		r.err = fmt.Errorf("%w (%v)", errTimeout, node.CUDATimeout)
	case err != nil:
		r.err = errors.New(why(err, stdout.kept.Bytes(), stderr.kept.String()))
	default:
		r.err = verdict(stdout.kept.Bytes(), driver, u)
	}
	return r
}

// verdict reads the sample's answer: an exit of 0 alone proves nothing, and
// neither does a result from another GPU or another driver than those meant.
func verdict(stdout []byte, driver check.Driver, u check.Unit) error {
	var a answer
	if err := json.Unmarshal(stdout, &a); err != nil || a.Passed == nil {
		return fmt.Errorf("the sample ended well and did not answer: %q", record.Clean(string(stdout), 200))
	}
	if !*a.Passed {
		return errors.New("the sample says that it did not pass: " + record.Clean(a.Error, 1000))
	}
	if a.Simulated != driver.Info.Simulated {
		return fmt.Errorf("libcuda and libnvidia-ml are of different drivers: simulated is %t for one, %t for the other", a.Simulated, driver.Info.Simulated)
	}
	// Drivers before R470 name MIG devices in another way than CUDA does.
	if !strings.HasPrefix(string(u.UUID), "MIG-GPU-") && a.UUID != string(u.UUID) {
		return fmt.Errorf("the sample ran on %q", record.Clean(a.UUID, 100))
	}
	return nil
}

// why quotes the sample's own line about its failure: from its answer, else the
// last one that it wrote to stderr.
func why(err error, stdout []byte, stderr string) string {
	var a answer
	if json.Unmarshal(stdout, &a) == nil && a.Error != "" {
		return record.Clean(a.Error, 1000)
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := record.Clean(lines[len(lines)-1], 1000); last != "" {
		return last
	}
	return err.Error()
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
