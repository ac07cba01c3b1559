// Standin stands in for programs that the machines of test scenarios do not have. The name by which
// it is called, and for some also the arguments, select the program:
//
//	nvidia-driver init                        a driver container: gpusim serve
//	ocp_dtk_entrypoint nv-ctr-run-with-dtk    the same, once the Driver Toolkit has "built" modules
//	ocp_dtk_entrypoint dtk-build-driver       the Driver Toolkit's container
//	bash                                      busybox's shell, in the Driver Toolkit's image
//	nvidia-persistenced, nv-fabricmanager     daemons of the driver
//	registry                                  a container registry
//
// Like NVIDIA's driver containers, the driver container is called by these names and installs below
// /run/nvidia/driver, but its driver is a simulated one.
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
	case "bash": // busybox has its shell by the name sh; Exec returns only if it fails
		fmt.Fprintln(os.Stderr, "stand-in:", syscall.Exec("/usr/bin/busybox", append([]string{"sh"}, os.Args[1:]...), os.Environ()))
		os.Exit(127)
	case "registry":
		err = serveRegistry()
	default:
		err = runDriverContainer(name, strings.Join(os.Args[1:], " "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand-in:", err)
		os.Exit(1)
	}
}

// runDriverContainer runs a command of a driver container, or of the Driver Toolkit's container
// beside it.
func runDriverContainer(program, command string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch program + " " + command {
	case "nvidia-driver init":
		return serve()
	case "ocp_dtk_entrypoint nv-ctr-run-with-dtk":
		if err := prepare(); err != nil {
			return err
		}
		if err := waitForFile(ctx, filepath.Join(shared, "driver_built")); err != nil {
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
	// gpusim refuses a root with folders that it did not make. The pod has made these, for drivers
	// with firmware.
	for _, empty := range []string{"/run/nvidia/driver/lib/firmware", "/run/nvidia/driver/lib"} {
		if err := os.Remove(empty); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// The probe requires that the simulator's ready file is newer than the container. It runs in
	// busybox, which compares whole seconds: wait for the next one.
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	return syscall.Exec("/usr/bin/gpusim", []string{"gpusim", "serve", "--profile", "h100-sxm"}, os.Environ())
}

// prepare copies this program to the shared folder, from which the Driver Toolkit's container runs
// it. It then creates dir_prepared, for which that container waits.
func prepare() error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	// Rename the copy into place: after a restart the other container may still run the old one,
	// and a running program cannot be overwritten.
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

// waitForFile polls until a file exists, as NVIDIA's entrypoint does.
func waitForFile(ctx context.Context, path string) error {
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
