package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/node"
)

// TestWhoHoldsTheDriverIsFoundBesideAFileThatNeverAnswers gives one process a file of a FUSE server that answers
// no question about it, which anybody can run for a mount of a CSI driver, and another a character device.
func TestWhoHoldsTheDriverIsFoundBesideAFileThatNeverAnswers(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	hold := func(path string) int {
		cmd := exec.CommandContext(t.Context(), "sleep", "1000")
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.Open asks for the kind of file
		require.NoError(t, err)
		file := os.NewFile(uintptr(fd), path)
		defer file.Close()
		cmd.Stdin = file
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	dir := filepath.Join(t.TempDir(), "dev")
	require.NoError(t, os.Mkdir(dir, 0o755))
	mountMute(t, dir)
	mute := hold(filepath.Join(dir, "nvidia7"))
	holder := hold("/dev/fuse")

	proc := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(proc, "devices"), []byte("Character devices:\n10 nvidia\n\nBlock devices:\n"), 0o644))
	for _, pid := range []int{mute, holder} {
		require.NoError(t, os.Symlink(fmt.Sprintf("/proc/%d", pid), filepath.Join(proc, strconv.Itoa(pid))))
	}
	found := make(chan []User, 1)
	go func() { found <- System{Proc: proc}.FindUsers() }()
	select {
	case users := <-found:
		require.Len(t, users, 1)
		require.Equal(t, holder, users[0].PID)
		require.Equal(t, "/dev/fuse", users[0].Device)
	case <-time.After(30 * time.Second):
		t.Error("FindUsers waits for a file's server")
	}
}

// mountMute mounts a FUSE file system that has any file, and never answers what a file is like once it was
// opened (struct fuse_in_header and others in include/uapi/linux/fuse.h).
func mountMute(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this kernel has no FUSE: %v", err)
	}
	require.NoError(t, unix.Mount("mute", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	t.Cleanup(func() {
		_ = unix.Close(fd) // ends the connection, and with it each request
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	const (
		lookup, getattr, open, opendir, initialise = 1, 3, 14, 27, 26
		root                                       = 1
	)
	attributes := func(node uint64, mode uint32) []byte {
		b := make([]byte, 88)
		binary.NativeEndian.PutUint64(b, node)
		binary.NativeEndian.PutUint32(b[60:], mode)
		binary.NativeEndian.PutUint32(b[64:], 1) // links
		return b
	}
	go func() {
		request := make([]byte, 1<<20)
		for {
			n, err := unix.Read(fd, request)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n < 40 {
				return
			}
			var answer []byte
			switch code, of := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[16:]); {
			case code == initialise:
				answer = make([]byte, 64)
				binary.NativeEndian.PutUint32(answer, 7)
				binary.NativeEndian.PutUint32(answer[4:], 31)
				binary.NativeEndian.PutUint32(answer[20:], 4096)
			case code == lookup:
				answer = append(make([]byte, 40), attributes(2, unix.S_IFREG|0o644)...)
				binary.NativeEndian.PutUint64(answer, 2)
			case code == open, code == opendir:
				answer = make([]byte, 16)
			case code == getattr && of == root:
				answer = append(make([]byte, 16), attributes(root, unix.S_IFDIR|0o755)...)
			case code == getattr:
				continue // never
			}
			head := make([]byte, 16)
			if answer == nil {
				notImplemented := -int32(unix.ENOSYS)
				binary.NativeEndian.PutUint32(head[4:], uint32(notImplemented))
			}
			binary.NativeEndian.PutUint32(head, uint32(len(head)+len(answer)))
			copy(head[8:], request[8:16])
			_, _ = unix.Write(fd, append(head, answer...))
		}
	}()
}
