// Program starter is the beginning of a kit: the kit's other files follow it in the same file, as a compressed tar
// archive. It unpacks them into memory, runs the kit, and leaves nothing behind. The machine needs no other program.
package main

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/kit/packed"
)

// folder names the variable with the folder into which to unpack.
const folder = "GPU_KIT_FOLDER"

func main() {
	exit, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-kit:", err)
		exit = 1
	}
	os.Exit(exit)
}

func run() (exit int, err error) {
	if dir := os.Getenv(folder); dir != "" {
		return 0, enter(dir)
	}
	if os.Geteuid() != 0 {
		return 0, errors.New("it needs root; try again with sudo")
	}
	dir, err := os.MkdirTemp("", "gpu-kit-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	// Of signals from the terminal the kit hears by itself; it cleans up before it ends.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), folder+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// What is mounted from here on is gone with the kit's last process. If this one is killed, the kit ends itself.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Setpgid: true, Pdeathsig: unix.SIGTERM}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start it in mounts of its own: %w; in a container it needs --privileged", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			if _, isExit := errors.AsType[*exec.ExitError](err); isExit {
				return cmd.ProcessState.ExitCode(), nil
			}
			return 0, err
		}
	}
}

// enter unpacks the kit into memory, and becomes it.
func enter(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=80%"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := unpack(dir); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	kit := filepath.Join(dir, "gpu-kit")
	return syscall.Exec(kit, append([]string{kit}, os.Args[1:]...), os.Environ())
}

func unpack(dir string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	info, err := self.Stat()
	if err != nil {
		return err
	}
	var end [packed.Size]byte
	if _, err := self.ReadAt(end[:], info.Size()-int64(packed.Size)); err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint64(end[:8]))
	if string(end[8:]) != packed.Magic || size > info.Size() {
		return errors.New("nothing is packed into this program; make gpu-kit does it")
	}
	archive := io.NewSectionReader(self, info.Size()-int64(packed.Size)-size, size)
	plain, err := xz.NewReader(bufio.NewReaderSize(archive, 1<<20))
	if err != nil {
		return err
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, header.Name), dir, header, files); err != nil {
			return err
		}
	}
}

func write(path, dir string, header *tar.Header, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if header.Typeflag == tar.TypeLink {
		return os.Link(filepath.Join(dir, header.Linkname), path)
	}
	file := make([]byte, header.Size)
	if _, err := io.ReadFull(content, file); err != nil {
		return err
	}
	packed.Decode(file)
	return os.WriteFile(path, file, header.FileInfo().Mode().Perm())
}
