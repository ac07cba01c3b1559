package sample

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ParseCPUs reads a list of processors as sysfs has it: "0-31,64-95". What is no
// such list names none.
func ParseCPUs(list string) []int {
	const most = 4096 // processors that anybody has
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

// startNear starts a program on some processors, and so, by first touch, with its
// memory beside them: those near to the GPU, since the way to the others is slower
// than the GPU's own link. Where that is not allowed it runs anywhere.
func startNear(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) == 0 {
		return cmd.Start()
	}
	// A child is given the affinity of the thread that starts it.
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
		runtime.LockOSThread() // once more than it is unlocked: the thread ends with its goroutine
	}
	return err
}
