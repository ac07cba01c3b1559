package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// daemonDirs are the folders of the daemons' PID files.
var daemonDirs = map[string]string{"nvidia-persistenced": "/var/run/nvidia-persistenced", "nv-fabricmanager": "/var/run/nvidia-fabricmanager"}

// runDaemon stands in for a daemon of NVIDIA's driver that forks and leaves a PID file. If the file
// /usr/share/fail exists, it ends with an error instead.
func runDaemon(name string) error {
	pidFile := filepath.Join(daemonDirs[name], name+".pid")
	if os.Getenv("FAKEDAEMON") != "" {
		return serveDaemon(pidFile)
	}
	if _, err := os.Stat("/usr/share/fail"); err == nil {
		return errors.New("fabric manager: NVSwitch 0 does not answer (a stand-in)")
	}
	child := exec.Command("/proc/self/exe")
	child.Args = os.Args
	child.Env = append(os.Environ(), "FAKEDAEMON=1")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	for {
		if data, err := os.ReadFile(pidFile); err == nil && string(data) == fmt.Sprint(child.Process.Pid) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// serveDaemon is the body of the daemon.
func serveDaemon(pidFile string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if err := os.MkdirAll(filepath.Dir(pidFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, fmt.Append(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	<-ended
	if filepath.Base(os.Args[0]) == "nv-fabricmanager" {
		if err := recordEnd(); err != nil {
			return err
		}
	}
	return os.Remove(pidFile)
}

// recordEnd writes what a fabric manager does when it is told to end: unless its configuration says otherwise it
// aborts all CUDA jobs (Fabric Manager User Guide, ABORT_CUDA_JOBS_ON_FM_EXIT).
func recordEnd() error {
	if len(os.Args) < 3 || os.Args[1] != "-c" {
		return fmt.Errorf("fabric manager: want -c FILE, not %q", os.Args[1:])
	}
	config, err := os.ReadFile(os.Args[2])
	if err != nil {
		return err
	}
	text := "all CUDA jobs are aborted\n"
	if slices.Contains(strings.Split(string(config), "\n"), "ABORT_CUDA_JOBS_ON_FM_EXIT=0") {
		text = "no CUDA job is aborted\n"
	}
	return os.WriteFile("/run/nvidia-fabricmanager/ended", []byte(text), 0o644)
}
