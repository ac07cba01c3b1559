package namespace

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountNUMA creates simulated NUMA nodes with the CPUs of the given lists ("0-3"), and shows them
// instead of the machine's.
func mountNUMA(cpus []string) error {
	if len(cpus) == 0 {
		return nil
	}
	const real = "/sys/devices/system/node"
	dir := filepath.Join(state, "numa")
	meminfo, err := os.ReadFile(real + "/node0/meminfo")
	if err != nil {
		return err
	}
	all := fmt.Sprintf("0-%d\n", len(cpus)-1)
	files := map[string]string{"online": all, "possible": all, "has_cpu": all, "has_memory": all, "has_normal_memory": all}
	for i, list := range cpus {
		node := fmt.Sprintf("node%d/", i)
		files[node+"meminfo"] = strings.ReplaceAll(string(meminfo), "Node 0", fmt.Sprintf("Node %d", i))
		files[node+"cpulist"] = list + "\n"
		files[node+"distance"] = distances(i, len(cpus))
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for i, list := range cpus {
		node := filepath.Join(dir, fmt.Sprintf("node%d", i))
		if err := os.Mkdir(filepath.Join(node, "hugepages"), 0o755); err != nil {
			return err
		}
		numbers, err := parseCPUs(list)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			if err := os.Symlink(fmt.Sprintf("../../cpu/cpu%d", n), filepath.Join(node, fmt.Sprintf("cpu%d", n))); err != nil {
				return err
			}
		}
	}
	return unix.Mount(dir, real, "", unix.MS_BIND, "")
}

// distances returns a row of the distance table: 10 to itself, 20 to others.
func distances(i, n int) string {
	row := make([]string, n)
	for j := range row {
		row[j] = "20"
	}
	row[i] = "10"
	return strings.Join(row, " ") + "\n"
}

// parseCPUs parses a list in the kernel's notation: "0-3,8".
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("CPUs %q: %w", list, err)
		}
		to, err := strconv.Atoi(last)
		if err != nil || to < from {
			return nil, fmt.Errorf("CPUs %q: %q is no range", list, part)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
