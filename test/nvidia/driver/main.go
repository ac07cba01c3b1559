// Driver stands in for NVIDIA's driver container, in tests on nodes without a GPU: it
// serves the same contract with the simulated driver behind it. Its image has it under
// the names by which others call it:
//
//	nvidia-driver init                 load the driver and keep it until SIGTERM
//	nvidia-smi                         ask the driver that is loaded; it fails before
//	driver-manager uninstall_driver    what stands in for k8s-driver-manager: clear a driver that a killed container left
//	modprobe MODULE                    in the driver root: succeed, the modules are there
//
// DRIVER_TAKES is how long the load takes, as "5s"; a driver that is compiled takes a
// minute and more. DRIVER_VERSION and GPUSIM_PROFILE say what is simulated.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if err := run(name, args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(name string, args []string) error {
	switch strings.Join(append([]string{name}, args...), " ") {
	case "nvidia-driver init":
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
		defer stop()
		return serve(ctx)
	case "driver-manager uninstall_driver":
		return unload()
	}
	switch name {
	case "nvidia-smi":
		return askDriver(args)
	case "modprobe":
		return nil
	}
	return fmt.Errorf("%s: no such command", strings.Join(args, " "))
}

// serve loads the driver and unloads it when ctx ends.
func serve(ctx context.Context) error {
	takes, err := time.ParseDuration(os.Getenv("DRIVER_TAKES"))
	if err != nil {
		return fmt.Errorf("DRIVER_TAKES: %w", err)
	}
	fmt.Printf("the driver is SIMULATED; it is loaded in %v\n", takes)
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil
	}
	if err := unload(); err != nil {
		return err
	}
	if err := load(ctx); err != nil {
		return errors.Join(err, unload())
	}
	fmt.Println("the driver is loaded")
	<-ctx.Done()
	return unload()
}

// askDriver runs the driver's own nvidia-smi in the driver root.
func askDriver(args []string) error {
	if _, err := os.Stat(built + "/usr/bin/nvidia-smi"); err != nil {
		return errors.New("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver: it is not loaded yet")
	}
	cmd := exec.Command("/usr/bin/nvidia-smi", args...) //nolint:noctx // it ends by itself
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: built}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode()) //nolint:revive // as the program that this one stands in for
	}
	return err
}
