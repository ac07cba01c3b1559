package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// moveNear moves the calling thread to the processors next to a PCI device, as far as
// the kernel reports and allows them. Pinned memory is then allocated there, too: through
// another socket the host link is slower. undo moves the thread back.
func moveNear(root, pci string) (undo func()) {
	var before unix.CPUSet
	list, err := os.ReadFile(filepath.Join(root, pci, "local_cpulist"))
	if err != nil || unix.SchedGetaffinity(0, &before) != nil {
		return func() {}
	}
	near := parseCPUList(strings.TrimSpace(string(list)))
	for i := range before {
		near[i] &= before[i]
	}
	if near.Count() == 0 || unix.SchedSetaffinity(0, &near) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

// parseCPUList parses a list like "0-15,32-47". It skips malformed entries.
func parseCPUList(list string) (set unix.CPUSet) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if ranged && err == nil {
			to, err = strconv.Atoi(last)
		}
		for i := from; err == nil && i <= to; i++ {
			set.Set(i)
		}
	}
	return set
}
