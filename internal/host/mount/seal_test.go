package mount

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/node"
)

// The folders of the container: the host's root in it, and what it says on its output.
const (
	hostDir   = "/run/container/host"
	contained = "GPUREADY_SEAL_CONTAINER"
)

// TestSealHoldsForWhatIsMountedBelowAndLater has a container as runc makes it of a
// read-only hostPath volume of / with the propagation HostToContainer, and of writable
// volumes of /dev and /run/own. The host is a node with a mount namespace of its own.
func TestSealHoldsForWhatIsMountedBelowAndLater(t *testing.T) {
	if os.Getenv(contained) != "" {
		container(t)
		return
	}
	if !node.Enter(t) {
		return
	}
	tmpfs := func(at string) {
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"))
	}
	require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	tmpfs("/run/data")
	require.NoError(t, os.MkdirAll("/run/driver", 0o755))
	require.NoError(t, os.MkdirAll("/run/own", 0o755))
	require.NoError(t, os.MkdirAll(hostDir, 0o755))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), contained+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	until := func(word string) {
		for lines.Scan() {
			t.Log(lines.Text())
			if lines.Text() == word {
				return
			}
		}
		require.NoErrorf(t, cmd.Wait(), "it ended before it said %q", word)
	}
	until("sealed")
	// A driver comes, with mounts in its root, and so does a volume of a pod.
	tmpfs("/run/driver")
	tmpfs("/run/driver/proc/sys/kernel")
	tmpfs("/run/driver/dev")
	tmpfs("/run/volume")
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	until("sealed again")
	require.NoError(t, cmd.Wait())
	for _, dir := range []string{"/run/data", "/run/volume", "/run/driver", "/run/driver/proc/sys/kernel"} {
		require.NoErrorf(t, os.WriteFile(filepath.Join(dir, "host"), nil, 0o600), "%s: the host's own mount is as it was", dir)
	}
}

// container is the process whose folder is sealed.
func container(t *testing.T) {
	require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
	bind := func(from, at string, propagation uintptr) {
		require.NoError(t, unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""))
		require.NoError(t, unix.Mount("", at, "", unix.MS_REC|propagation, ""))
	}
	bind("/", hostDir, unix.MS_SLAVE)
	require.NoError(t, unix.Mount("", hostDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	bind("/dev", hostDir+"/dev", unix.MS_PRIVATE)
	bind("/run/own", hostDir+"/run/own", unix.MS_PRIVATE)
	write := func(path string) error {
		err := os.WriteFile(filepath.Join(hostDir, path, "written"), nil, 0o600)
		if err == nil {
			err = os.Remove(filepath.Join(hostDir, path, "written"))
		}
		return err
	}
	require.NoError(t, write("/run/data"), "this is why the flag of the root is not enough")

	none, err := NewSeal("/run/data")
	require.NoError(t, err)
	require.Nil(t, none, "it is mounted writable")

	seal, err := NewSeal(hostDir, hostDir+"/run/driver/dev")
	require.NoError(t, err)
	require.NotNil(t, seal)
	refused := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			require.ErrorIs(t, write(path), unix.EROFS, path)
		}
	}
	allowed := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			require.NoError(t, write(path), path)
		}
	}
	refused("/", "/run", "/run/data", "/etc", "/var/lib", "/run/driver", "/tmp")
	require.ErrorIs(t, os.WriteFile(hostDir+"/proc/sys/kernel/hostname", []byte("x"), 0), unix.EROFS)
	allowed("/run/own", "/dev")
	fmt.Println("sealed")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, err)
	require.DirExists(t, hostDir+"/run/volume")
	require.NoError(t, seal.Refresh())
	refused("/run/volume", "/run/data", "/run/driver", "/run/driver/proc/sys/kernel")
	allowed("/run/own", "/dev", "/run/driver/dev")
	fmt.Println("sealed again")
}
