package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
)

// The test binary is its own child, which behaves as this variable says.
const behaviour = "PROBE_TEST_CHILD"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		os.Exit(child(os.Getenv(behaviour)))
	}
	leak.Main(m)
}

func child(how string) int {
	answer := message{Snapshot: gputest.Node("t4", 2), Library: "/lib/libnvidia-ml.so.580.95.05"}
	switch how {
	case "no symbol": // the output of glibc's loader before exit 127
		fmt.Fprintln(os.Stderr, "child: symbol lookup error: undefined symbol: nvmlNewThing")
		return 127
	case "crash":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	case "garbage":
		fmt.Print("NVRM: \x1b[2J")
		return 0
	case "flood":
		_, _ = os.Stdout.Write(bytes.Repeat([]byte("x"), maxOutput+1))
		return 0
	case "no driver":
		answer = message{Error: "loading: no driver", Kind: "NoDriver"}
	}
	if json.NewEncoder(os.Stdout).Encode(answer) != nil {
		return 1
	}
	return 0
}

func read(t *testing.T, how string) (check.Reading, error) {
	t.Helper()
	t.Setenv(behaviour, how)
	root, err := host.Open("/")
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	return Read(t.Context(), check.Node{Root: root, DriverRoot: "/"})
}

func TestAReadingIsReturnedUnchanged(t *testing.T) {
	r, err := read(t, "good")
	require.NoError(t, err)
	require.True(t, r.Snapshot.Equal(gputest.Node("t4", 2)))
	require.Equal(t, "/lib/libnvidia-ml.so.580.95.05", r.Library)
}

func TestADeadChildIsAnError(t *testing.T) {
	for how, says := range map[string]string{
		"no symbol": "exit status 127: child: symbol lookup error: undefined symbol: nvmlNewThing",
		"crash":     "signal: killed",
		"garbage":   "gave no answer",
		"flood":     "gave no answer",
	} {
		_, err := read(t, how)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "\x1b")
		require.NotErrorIs(t, err, gpu.ErrNoDriver)
	}
}

func TestSentinelsSurviveTheChild(t *testing.T) {
	_, err := read(t, "no driver")
	require.ErrorIs(t, err, gpu.ErrNoDriver)
	for kind, sentinel := range sentinels {
		_, err := decode([]byte(`{"error": "x", "kind": "` + kind + `"}`))
		require.ErrorIs(t, err, sentinel)
		require.EqualError(t, err, "x")
	}
	_, err = decode([]byte(`{"error": "x", "kind": "unheard of"}`))
	require.EqualError(t, err, "x")
}

func TestTheChildReportsThatThereIsNoDriver(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Child(t.Context(), []string{t.TempDir(), "/"}, &out))
	_, err := decode(out.Bytes())
	require.Error(t, err)
	require.Error(t, Child(t.Context(), []string{"relative", "/"}, &out))
	require.Error(t, Child(t.Context(), nil, &out))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"error": "x", "kind": "NoDriver"}`))
	f.Add([]byte(`{"snapshot": {"Devices": [{"UUID": "GPU-x"}]}, "library": "/x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := decode(data); err != nil && !errors.Is(err, gpu.ErrNoDriver) && strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("%q", err)
		}
	})
}
