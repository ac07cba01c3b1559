package supervisor

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestSyslogGivesTheReason(t *testing.T) {
	b := newBench(t, Daemon{Name: "fake", Args: []string{"-say=see syslog", "-syslog=DIR/log", "-exit=1"}, Required: true})
	b.Syslog = filepath.Join(b.dir, "log")
	b.run()
	b.until(func(all []Status) bool { return all[0].LastExit != "" && !all[0].Running })
	text := b.Ready().Error()
	require.Contains(t, text, "fake is not ready: exit status 1, started again 0 times; it said: ")
	require.Contains(t, text, "see syslog")
	require.Contains(t, text, "logged by fake")
	require.NoError(t, b.stop())
	require.NoFileExists(t, b.Syslog)
}

func TestSyslogSocketInUseIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	other, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	s, err := listenSyslog(path, func(string, string) { t.Error("it is not ours") })
	require.NoError(t, err)
	require.Nil(t, s)
	s.waitHandled()
	require.NoError(t, s.close())
	require.FileExists(t, path)

	// A killed process leaves its socket.
	require.NoError(t, other.Close())
	var heard []string
	s, err = listenSyslog(path, func(ident, text string) { heard = append(heard, ident+"|"+text) })
	require.NoError(t, err)
	c, err := dialDatagram(path)
	require.NoError(t, err)
	for _, message := range []string{
		"<27>Nov  4 23:28:37 nvidia-persistenced: Failed to query NVIDIA devices.\x00",
		"<29>Nov 24 23:28:37 nv-fabricmanager[12]: one: two",
		"<13>no time", "", "<", mark + "99", strings.Repeat("x", 2*maxMessage),
	} {
		_, err := c.Write([]byte(message))
		require.NoError(t, err)
	}
	s.waitHandled()
	require.NoError(t, c.Close())
	require.NoError(t, s.close())
	require.Len(t, heard, 5)
	require.Equal(t, []string{
		"nvidia-persistenced|Failed to query NVIDIA devices.", "nv-fabricmanager|one: two", "|<13>no time", "|<",
	}, heard[:4])
	require.NoFileExists(t, path)

	require.NoError(t, os.Mkdir(path, 0o755))
	_, err = listenSyslog(path, nil)
	require.Error(t, err)
}

func FuzzSyslog(f *testing.F) {
	f.Add("<27>Nov 24 23:28:37 nvidia-persistenced[12]: Failed to query NVIDIA devices.\n")
	f.Add("<13>1 2026-11-24T23:28:37Z host program - - - text")
	f.Fuzz(func(t *testing.T, message string) {
		ident, text := parseSyslog(message)
		require.True(t, strings.Contains(message, text))
		require.NotContains(t, ident, " ")
		if utf8.ValidString(message) {
			require.True(t, utf8.ValidString(ident) && utf8.ValidString(text))
		}
	})
}
