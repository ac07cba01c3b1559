package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

func TestRecordingIsAnAsciicast(t *testing.T) {
	var to buffer
	r, err := newRecording(&to, "A title")
	require.NoError(t, err)
	require.NoError(t, r.command("Why it is run:", "kubectl get nodes", []chunk{{34 * time.Second, "NODE"}, {time.Hour, "\r\n"}, {3 * time.Second, "n1\r\n"}, {17 * time.Second, ""}}))
	lines := strings.Split(strings.TrimSpace(to.String()), "\n")
	var head struct{ Version, Width, Height int }
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &head))
	require.Equal(t, 2, head.Version)
	last, text := 0.0, ""
	for _, line := range lines[1:] {
		var at float64
		var kind, what string
		require.NoError(t, json.Unmarshal([]byte(line), &[]any{&at, &kind, &what}))
		require.Equal(t, "o", kind)
		require.GreaterOrEqual(t, at, last)
		require.LessOrEqual(t, at-last, longestWait.Seconds()+0.001)
		last, text = at, text+what
	}
	require.Equal(t, "# Why it is run:\n$ kubectl get nodes\n… 34 s later\nNODE\n… 3 s later\nn1\n… 17 s later\n\n", plainText([]chunk{{text: text}}))
}

func TestCommandsAreRecordedOnATerminal(t *testing.T) {
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip(err)
	}
	printed, err := runOnTerminal(exec.CommandContext(t.Context(), "sh", "-c", `stty size; printf '\033[32mgreen\033[0m\n'; sleep 0.3; test -t 1 && echo "a terminal"; exit 3`))
	exit, is := errors.AsType[*exec.ExitError](err)
	require.True(t, is, "%v", err)
	require.Equal(t, 3, exit.ExitCode())
	require.Equal(t, "34 120\ngreen\na terminal\n", plainText(printed))
	require.Greater(t, len(printed), 1)
	require.Greater(t, printed[len(printed)-2].after, 200*time.Millisecond)
}

func TestCharactersAreNotDivided(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "aé": "aé", "a\xc3": "a", "─\xe2\x94": "─", "\xf0\x9f\x8d": "", "a\xff": "a\xff"} {
		require.Equal(t, want, string(wholeRunes([]byte(text))), "%q", text)
	}
}

func TestTheLogOfAClientIsNoOutput(t *testing.T) {
	const printed = `I1129 11:13:01.692380  23080 reflector.go:664] "Warning: watch ended with error" err="context canceled"
node/n1 condition met
E1129 11:13:01.692380       1 reflector.go:664] "x"
I was not written by klog
`
	require.Equal(t, "node/n1 condition met\nI was not written by klog\n", withoutLog(printed))
}
