package handover_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/handover"
)

// The test binary is also the program that replaces itself: as "first" it makes
// the socket and executes itself again, as "second" it serves what it was left.
func TestMain(m *testing.M) {
	if os.Getenv("HANDOVER_SOCKET") != "" {
		if err := program(os.Getenv("HANDOVER_SOCKET")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func program(socket string) error {
	ln, err := handover.Listener()
	if err != nil {
		return err
	}
	if ln == nil {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			return err
		}
		ln.SetUnlinkOnClose(false)
		file, err := handover.Keep(ln)
		if err != nil {
			return err
		}
		_ = ln.Close()
		fmt.Println("listening", os.Getpid())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until a client is waiting
		return handover.Exec("/proc/self/exe", file)
	}
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	// What another such process would find: nothing.
	again, err := handover.Listener()
	fmt.Fprintln(conn, "served", os.Getpid(), again == nil, err)
	return conn.Close()
}

func TestAClientThatConnectsMeanwhileIsServedByTheNextProgram(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "HANDOVER_SOCKET="+socket)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	pid := strings.TrimSpace(strings.TrimPrefix(line, "listening "))

	// Nobody accepts now; the connection waits in the socket's queue.
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err = stdin.Write([]byte("go\n"))
	require.NoError(t, err)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "served "+pid+" true <nil>\n", answer, "the same process, another program")
	require.NoError(t, cmd.Wait())
}

func TestAWrongDescriptorIsSaid(t *testing.T) {
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	for value, want := range map[string]string{
		"x": "no file descriptor",
		"1": "no file descriptor",
	} {
		t.Setenv("GPUREADY_LISTEN_FD", value)
		_, err := handover.Listener()
		require.ErrorContains(t, err, want)
	}
}

func TestWithoutAPredecessorThereIsNoListener(t *testing.T) {
	ln, err := handover.Listener()
	require.NoError(t, err)
	require.Nil(t, ln)
}
