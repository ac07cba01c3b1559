package apply_test

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
)

const (
	loopVar  = "GPUREADY_TEST_LOOP" // the host on which a helper process loops
	childVar = "GPUREADY_TEST_CHILD"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(loopVar); at != "" {
		os.Exit(loop(at)) //nolint:revive // the helper ends here
	}
	if os.Getenv(childVar) != "" {
		time.Sleep(time.Hour) // until its parent kills it; select {} would end as a deadlock
	}
	os.Exit(m.Run())
}

// loop applies and restores until it is killed.
func loop(at string) int {
	root, err := host.Open(at)
	if err == nil {
		_, err = apply.Lock(context.Background(), root, "/run/lock", nil)
	}
	println("ready")
	for err == nil {
		err = round(root)
	}
	println(err.Error())
	return 1
}

// round applies two configurations, and restores the host.
func round(root *host.Root) error {
	for _, do := range []func() error{
		func() error { return start(root, "boot", one) },
		func() error { return start(root, "boot", two) },
		func() error { return undo(root, "boot") },
		func() error { return restore(root, "boot") },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func TestRecoveryAfterAKillAtAnyMoment(t *testing.T) {
	kills := 20
	if long {
		kills = 250
	}
	e := expect(t)
	at := scratch(t)
	node(t, at)
	require.NoError(t, os.MkdirAll(at+"/run/lock", 0o755))
	unfinished := 0 // counted twice: checkRecovery checks each twice
	random := rand.New(rand.NewPCG(1, 2))
	// Disk and load decide how long a round takes: a kill may come at any time of one. If that one was
	// a fast one, and no kill came within a transaction, more of them come, and later.
	began := time.Now()
	require.NoError(t, round(open(t, at)))
	length := time.Since(began)
	i := 0
	for ; i < kills || unfinished == 0 && i < 10*kills; i++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), loopVar+"="+at)
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(stderr)
		require.True(t, lines.Scan())
		require.Equal(t, "ready", lines.Text(), "kill %d", i)
		// Any moment will do, whatever its progress.
		time.Sleep(time.Duration(random.Int64N(int64(length) * int64(1+i/kills))))
		require.NoError(t, cmd.Process.Kill())
		rest := ""
		for lines.Scan() {
			rest += lines.Text() + "\n"
		}
		_ = cmd.Wait()
		require.Empty(t, rest, "it failed before it was killed")
		e.checkRecovery(t, func(copied string) {
			duplicate(t, at, copied)
			if m, err := storeOf(open(t, copied), "boot").Manifest(); err == nil && m.Journal != nil {
				unfinished++
			}
		}, "boot")
	}
	t.Logf("%d kills, %d of them within a transaction", i, unfinished/2)
	require.Positive(t, unfinished)
}

// duplicate copies a host without the lock of the killed process.
func duplicate(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.RemoveAll(to+"/run/lock"))
}
