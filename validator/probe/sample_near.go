package probe

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ParseCPUs parses a list of processors in the format of sysfs: "0-31,64-95". It returns
// nil for any other text.
func ParseCPUs(list string) []int {
	const most = 4096 // more processors than any machine has
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || first < 0 || last < first || last >= most {
			return nil
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// startNear starts a program on cpus, the processors near the GPU. Linux places memory near the
// processor that first touches it, so the program's memory is near the GPU, too. Elsewhere the
// link between processors, which is slower than the GPU's own, would limit the copies. If the
// affinity cannot be set, the program runs on any processor.
func startNear(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) == 0 {
		return cmd.Start()
	}
	// A child inherits the affinity of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, near unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil {
		return cmd.Start()
	}
	for _, cpu := range cpus {
		if before.IsSet(cpu) {
			near.Set(cpu)
		}
	}
	if near.Count() == 0 || unix.SchedSetaffinity(0, &near) != nil {
		return cmd.Start()
	}
	err := cmd.Start()
	if unix.SchedSetaffinity(0, &before) != nil {
		runtime.LockOSThread() // unbalanced, so that the thread ends with its goroutine
	}
	return err
}
