package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The test binary is also the program that replaces itself: as "first" it creates the
// socket and executes itself again, as "second" it serves the socket handed over.
func TestMain(m *testing.M) {
	if os.Getenv("HANDOVER_TIMES") != "" {
		if err := execRepeatedly(os.Getenv("HANDOVER_TIMES")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("HANDOVER_SOCKET") != "" {
		if err := replaceItself(os.Getenv("HANDOVER_SOCKET")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func replaceItself(socket string) error {
	lns, err := takeListeners()
	if err != nil {
		return err
	}
	if lns == nil {
		files := map[string]*os.File{}
		for _, name := range []string{"a.sock", "b.sock"} {
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socket, name), Net: "unix"})
			if err != nil {
				return err
			}
			ln.SetUnlinkOnClose(false)
			if files[name], err = ln.File(); err != nil {
				return err
			}
			_ = ln.Close()
		}
		fmt.Println("listening", os.Getpid())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until a client is waiting
		return execProgram("/proc/self/exe", files, []byte("the last word"))
	}
	word, err := takeData()
	if err != nil {
		return err
	}
	if nothing, err := takeData(); nothing != nil || err != nil {
		return fmt.Errorf("found twice: %q, %w", nothing, err)
	}
	fmt.Printf("%s\n", word)
	// Another such process would find nothing.
	execRepeatedly, err := takeListeners()
	for _, name := range []string{"a.sock", "b.sock"} {
		conn, acceptErr := lns[name].Accept()
		if acceptErr != nil {
			return acceptErr
		}
		fmt.Fprintln(conn, name, "served", os.Getpid(), execRepeatedly == nil, err)
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

// execRepeatedly executes itself that many times, waiting for a SIGHUP before each.
func execRepeatedly(times string) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	word, err := takeData()
	if err != nil {
		return err
	}
	if word == nil {
		fmt.Println("begun")
	}
	<-hangup
	if word = append(word, '.'); fmt.Sprint(len(word)) == times {
		return nil
	}
	return execProgram("/proc/self/exe", nil, word)
}

func TestHangupDuringExecIsIgnored(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "HANDOVER_TIMES=25")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	for cmd.Process.Signal(syscall.SIGHUP) == nil { // as fast as can be, until it has ended
		var status unix.WaitStatus
		pid, err := unix.Wait4(cmd.Process.Pid, &status, unix.WNOHANG, nil)
		require.NoError(t, err)
		if pid != 0 {
			require.True(t, status.Exited() && status.ExitStatus() == 0, "it ended with %#x", status)
			return
		}
	}
}

func TestNextProgramServesWaitingClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "HANDOVER_SOCKET="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	pid := strings.TrimSpace(strings.TrimPrefix(line, "listening "))

	// No process accepts now; the connections wait in the sockets' queues.
	var conns []net.Conn
	for _, name := range []string{"a.sock", "b.sock"} {
		conn, err := net.Dial("unix", filepath.Join(dir, name))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		conns = append(conns, conn)
	}
	_, err = stdin.Write([]byte("go\n"))
	require.NoError(t, err)
	for i, name := range []string{"a.sock", "b.sock"} {
		answer, err := bufio.NewReader(conns[i]).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, name+" served "+pid+" true <nil>\n", answer, "the same process, another program")
	}
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "the last word\n", line)
	require.NoError(t, cmd.Wait())
}

func TestInvalidDescriptorIsAnError(t *testing.T) {
	for value, want := range map[string]string{
		"x":             "not a name and a file descriptor",
		"a.sock=1":      "not a name and a file descriptor",
		"=7":            "not a name and a file descriptor",
		"a.sock=99999,": "not a name and a file descriptor",
		"a.sock=99999":  "not a listening socket",
	} {
		t.Setenv("GPUREADY_LISTEN_FDS", value)
		_, err := takeListeners()
		require.ErrorContains(t, err, want)
	}
	for _, value := range []string{"x", "2", "99999"} {
		t.Setenv("GPUREADY_HANDOVER_FD", value)
		_, err := takeData()
		require.ErrorContains(t, err, "do not set it by hand")
	}
}

func TestWithoutAPredecessorThereIsNoListener(t *testing.T) {
	lns, err := takeListeners()
	require.NoError(t, err)
	require.Nil(t, lns)
	word, err := takeData()
	require.NoError(t, err)
	require.Nil(t, word)
}
