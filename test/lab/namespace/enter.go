package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// enter runs a program in the namespaces of a process, waits for it and returns its exit code.
func enter(process string, args []string) (int, error) {
	pid, err := strconv.Atoi(process)
	if err != nil {
		return 0, fmt.Errorf("process %q: %w", process, err)
	}
	// Namespaces belong to a thread; the program is a child of this one.
	runtime.LockOSThread()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("the machine's first process, %d: %w; is the cluster up?", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, err
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	if err := unix.Setns(fd, all); err != nil {
		return 0, fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	if err := os.Setenv("PATH", Path); err != nil {
		return 0, err
	}
	// No Pdeathsig: a child in another PID namespace sees parent 0, and os/exec would mistake that
	// for a parent that has died.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "HOME=/root")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if exit.ExitCode() < 0 { // as in a shell
			return 128 + int(exit.Sys().(syscall.WaitStatus).Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// hook is an OCI createContainer hook. A container has its own /proc and /sys, so the hook binds
// the node's boot ID, module files and PCI bus over the machine's in each container.
func hook(stdin io.Reader) error {
	var container struct {
		Bundle string `json:"bundle"`
	}
	if err := json.NewDecoder(stdin).Decode(&container); err != nil {
		return fmt.Errorf("hook: read the container's state: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(container.Bundle, "config.json"))
	if err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	var config struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("hook: the container's config.json: %w", err)
	}
	root := config.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(container.Bundle, root)
	}
	if err := unix.Mount(bootID, filepath.Join(root, "proc/sys/kernel/random/boot_id"), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("hook: give the container its node's boot ID: %w", err)
	}
	for _, name := range moduleFiles {
		at := filepath.Join(root, "proc", name)
		if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
			continue // the kernel loads no modules
		}
		if err := bind(filepath.Join(state, name), at, unix.MS_RDONLY); err != nil {
			return fmt.Errorf("hook: give the container its node's /proc/%s: %w", name, err)
		}
	}
	if err := bindPCI(root); err != nil {
		return fmt.Errorf("hook: %w", err)
	}
	return nil
}
