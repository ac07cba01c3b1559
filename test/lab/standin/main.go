// Standin stands in for programs that a scenario's machine does not have. The name by which it is
// called selects the program:
//
//	nvidia-driver init                        a driver container: gpusim serve
//	ocp_dtk_entrypoint nv-ctr-run-with-dtk    the same, once the Driver Toolkit has "built"
//	ocp_dtk_entrypoint dtk-build-driver       the Driver Toolkit's container
//	bash                                      busybox's shell, in the Driver Toolkit's image
//	nvidia-persistenced, nv-fabricmanager     daemons of the driver
//	registry                                  a container registry
//
// A driver container follows NVIDIA's contract with a simulated driver.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// shared is the folder between the two containers of a pod with the Driver Toolkit.
const shared = "/mnt/shared-nvidia-driver-toolkit"

func main() {
	name := filepath.Base(os.Args[0])
	var err error
	switch name {
	case "nvidia-persistenced", "nv-fabricmanager":
		err = runDaemon(name)
	case "bash": // which busybox calls otherwise
		fmt.Fprintln(os.Stderr, "stand-in:", syscall.Exec("/usr/bin/busybox", append([]string{"sh"}, os.Args[1:]...), os.Environ()))
		os.Exit(127)
	case "registry":
		err = serveRegistry()
	default:
		err = runStandin(name, strings.Join(os.Args[1:], " "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand-in:", err)
		os.Exit(1)
	}
}

func runStandin(program, command string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch program + " " + command {
	case "nvidia-driver init":
		return serve()
	case "ocp_dtk_entrypoint nv-ctr-run-with-dtk":
		if err := prepare(); err != nil {
			return err
		}
		if err := appears(ctx, filepath.Join(shared, "driver_built")); err != nil {
			return err
		}
		return serve()
	case "ocp_dtk_entrypoint dtk-build-driver":
		fmt.Println("stand-in: built for RHCOS", os.Getenv("RHCOS_VERSION"))
		if err := os.WriteFile(filepath.Join(shared, "driver_built"), nil, 0o644); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	return fmt.Errorf("%s %s is no command of a driver container", program, command)
}

// serve replaces the process with the simulator.
func serve() error {
	fmt.Println("stand-in: the driver is a simulated one")
	// The firmware folder, which the pod creates for drivers with firmware.
	for _, empty := range []string{"/run/nvidia/driver/lib/firmware", "/run/nvidia/driver/lib"} {
		if err := os.Remove(empty); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// The probe wants the simulator's ready file newer than the container, and busybox compares whole seconds.
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	return syscall.Exec("/usr/bin/gpusim", []string{"gpusim", "serve", "--profile", "h100-sxm"}, os.Environ())
}

// prepare puts this program where the other container runs it, and reports it ready.
func prepare() error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	// Rename it into place: after a restart the other container may still run the old one.
	to, err := os.OpenFile(filepath.Join(shared, ".new"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return err
	}
	if err := os.Rename(to.Name(), filepath.Join(shared, "ocp_dtk_entrypoint")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(shared, "dir_prepared"), nil, 0o644)
}

// appears waits for a file, as the program that it stands in for does.
func appears(ctx context.Context, path string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
