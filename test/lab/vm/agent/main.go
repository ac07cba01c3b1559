// The agent is the first process of a test machine. It moves to the root on a disk, if there is
// one, mounts the file systems of a booted node, and then executes the test's requests from the
// second serial port.
package main

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// port is the serial port to the test; the first one is the console.
const port = "/dev/ttyS1"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: it runs as the first process of a test machine; see test/lab/vm")
		os.Exit(2)
	}
	err := run()
	fmt.Fprintln(os.Stderr, "agent:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	signal.Ignore(unix.SIGHUP, unix.SIGPIPE)
	if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	if err := os.Setenv("HOME", "/root"); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	line, err := openPort(port)
	if err != nil {
		return fmt.Errorf("%s: %w", port, err)
	}
	return serve(line)
}

// openPort opens a serial port that passes all bytes on unchanged.
func openPort(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return f, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &unix.Termios{
		Cflag:  unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200,
		Ispeed: unix.B115200,
		Ospeed: unix.B115200,
		Cc:     [19]uint8{unix.VMIN: 1},
	})
}
