package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	groups = "/sys/fs/cgroup"
	aside  = groups + "/gpu-kit-aside"
)

// clearTopGroup moves the processes of this container's top group into one of their own, and returns what undoes it.
// With cgroup v2, groups below one with processes get no controllers. The machine's own top group may have both.
func clearTopGroup() (undo func() error, err error) {
	nothing := func() error { return nil }
	if _, err := os.Stat(groups + "/cgroup.type"); err != nil {
		return nothing, nil //nolint:nilerr // v1, or the machine's own
	}
	processes, err := os.ReadFile(groups + "/cgroup.procs")
	if err != nil || len(processes) == 0 {
		return nothing, err
	}
	before, err := os.ReadFile(groups + "/cgroup.subtree_control")
	if err != nil {
		return nothing, err
	}
	if err := os.Mkdir(aside, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nothing, fmt.Errorf("make a control group: %w; start the container with --privileged", err)
	}
	undo = func() error {
		now, err := os.ReadFile(groups + "/cgroup.subtree_control")
		if err != nil {
			return err
		}
		for name := range strings.FieldsSeq(string(now)) {
			if !slices.Contains(strings.Fields(string(before)), name) {
				err = errors.Join(err, os.WriteFile(groups+"/cgroup.subtree_control", []byte("-"+name), 0))
			}
		}
		return errors.Join(err, moveProcesses(aside, groups), os.Remove(aside))
	}
	return undo, moveProcesses(groups, aside)
}

// moveProcesses moves all processes of a group.
func moveProcesses(from, to string) error {
	for range 100 { // new ones may come meanwhile
		processes, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
		if err != nil || len(processes) == 0 {
			return err
		}
		for process := range strings.FieldsSeq(string(processes)) {
			err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(process), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %s to the group %s: %w", process, to, err)
			}
		}
	}
	return fmt.Errorf("%s has processes that cannot be moved, as of another container; start this one with --cgroupns=host", from)
}
